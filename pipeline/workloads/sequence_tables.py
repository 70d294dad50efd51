"""Embedding tables of sequences spread over ranks: each index gives a row of its own (TorchRec's `EmbeddingCollection`).

Indices travel as those of sums do. Rows travel without being summed, so that a rank gets as many as its sequences have tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from pipeline.as_on_cuda.marked_streams import MarkedStream
from pipeline.as_on_cuda.shape_operators import apply, is_empty
from pipeline.question.table_plan import REPLICATED
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
        if self.ready is None:
            self.distribute(indices, lengths)
        if isinstance(self._beside, MarkedStream):
            MarkedStream.now.wait_stream(self._beside)
        own = [self._count([table], lengths) for table in range(len(self.rows))]
        found: list[list[Tensor]] = [[] for _ in self.rows]
        arriving = [part for parts in self.plan.parts for part in parts]
        if arriving:
            received = [sum(own[t] * columns for t, columns in parts) for parts in self.plan.parts]
            joined, sent = self._by_receiver(own)
            exchange = Exchange(sent, received)
            line = apply(Receive, apply(Send, joined.to(dtype), exchange), exchange)
            parts = split(line, [own[table] * columns for table, columns in arriving])
            for (table, columns), part in zip(arriving, parts, strict=True):
                found[table].append(part.view(-1, columns))
        if self.replicated is not None:
            copied = self.plan.of_kind(REPLICATED)
            index, _ = self._features(indices, lengths, copied)
            rows = split(self.replicated(index, each_alone(index)), [own[t] for t in copied])
            for table, part in zip(copied, rows, strict=True):
                found[table].append(part.to(dtype))
        return [torch.cat(parts, 1) if len(parts) > 1 else parts[0] for parts in found]

    def _by_receiver(self, own: Sequence[int]) -> tuple[Tensor, list[int]]:
        """The rows of this rank's tables in the order of the ranks that get them, in a line, and the elements of each."""
        ranks, parts = self.plan.ranks, self.plan.parts[self.rank]
        if self.ready is None or not parts:
            return self._nothing(), [0] * ranks
        lengths, indices = self.ready
        counts = [[own[table]] * ranks for table, _ in parts]
        if not is_empty(indices):
            counts = lengths.view(len(parts), ranks, -1).sum(2).tolist()
        sent = [
            sum(of[rank] * columns for of, (_, columns) in zip(counts, parts, strict=True))
            for rank in range(ranks)
        ]
        begin, at, looked_up, pieces = 0, 0, list[Tensor](), list[tuple[Tensor, ...]]()
        for group, weight, states in zip(self.groups, self.weights, self.states, strict=True):
            of = counts[at : at + len(group.tables)]
            index = indices[begin : begin + sum(map(sum, of))].long()
            if not is_empty(index):
                first = torch.tensor([0, *accumulate(group.rows[:-1])])
                index = index + first.repeat_interleave(torch.tensor(of).sum(1))
            offsets = each_alone(index)
            rows = apply(FusedLookup, self.anchor, weight, index, offsets, len(of), states)
            looked_up.append(rows)
            tables = split(rows, [*map(sum, of)])
            pieces += [split(part, each) for part, each in zip(tables, of, strict=True)]
            begin, at = begin + len(index), at + len(of)
        if is_empty(indices):  # one kernel of FBGEMM
            return apply(Permute, torch.cat([rows.view(-1) for rows in looked_up]), ()), sent
        return torch.cat([one[rank].reshape(-1) for rank in range(ranks) for one in pieces]), sent
