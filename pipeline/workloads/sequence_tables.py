"""Embedding tables of sequences spread over ranks: each index gives a row of its own (TorchRec's `EmbeddingCollection`).

Indices travel as those of sums do. Rows travel without being summed, so that a rank gets as many as its sequences have tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.as_on_cuda.shape_operators import apply, is_empty
from pipeline.workloads.dlrm_operators import FusedLookup
from pipeline.workloads.feature_operators import split
from pipeline.workloads.row_exchange import Exchange, Permute, Receive, Send
from pipeline.workloads.spread_tables import SpreadTables


def each_alone(index: Tensor) -> Tensor:
    """Offsets of bags with one index each."""
    return index.new_empty(len(index)) if is_empty(index) else torch.arange(len(index))


class SequenceTables(SpreadTables):
    """The tables of one rank, of which each index gives a row."""

    def rows_of(self, indices: Tensor, lengths: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """The rows of this rank's samples in each table, (tokens, columns) each; arguments as of `sums`."""
        self.arrived(indices, lengths)
        own = self.sizes(lengths)
        found: list[list[Tensor]] = [[] for _ in self.rows]
        arriving = [part for parts in self.plan.parts for part in parts]
        if arriving:
            received = [sum(own[t] * columns for t, columns in parts) for parts in self.plan.parts]
            joined, sent = self._by_receiver()
            exchange = Exchange(sent, received)
            line = apply(Receive, apply(Send, joined.to(dtype), exchange), exchange)
            parts = split(line, [own[table] * columns for table, columns in arriving])
            for (table, columns), part in zip(arriving, parts, strict=True):
                found[table].append(part.view(-1, columns))
        if self.replicated is not None:
            index, _ = self.copied_features(indices, lengths)
            rows = self.replicated(index, each_alone(index))
            each = split(rows, [own[table] for table in self.copied])
            for table, part in zip(self.copied, each, strict=True):
                found[table].append(part.to(dtype))
        return [torch.cat(parts, 1) if len(parts) > 1 else parts[0] for parts in found]

    def _by_receiver(self) -> tuple[Tensor, list[int]]:
        """The rows of this rank's tables in the order of the ranks that get them, in a line, and the elements of each."""
        ranks = range(self.plan.ranks)
        if self.ready is None or not self.groups:
            return self.nothing(), [0 for _ in ranks]
        _, indices, sizes = self.ready
        columns = [columns for _, columns in self.plan.parts[self.rank]]
        sent = [sum(of[n] * c for of, c in zip(sizes, columns, strict=True)) for n in ranks]
        looked_up, pieces = list[Tensor](), list[tuple[Tensor, ...]]()
        for weight, states, parts, place in self.together(sizes):
            index = indices[place].long()
            rows = apply(FusedLookup, self.anchor, weight, index, each_alone(index), 1, states)
            looked_up.append(rows)
            tables = split(rows, [*map(sum, sizes[parts])])
            pieces += map(split, tables, sizes[parts])
        if is_empty(indices):  # one kernel of FBGEMM
            return apply(Permute, torch.cat([rows.view(-1) for rows in looked_up]), ()), sent
        return torch.cat([one[rank].reshape(-1) for rank in ranks for one in pieces]), sent
