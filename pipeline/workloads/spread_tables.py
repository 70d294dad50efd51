"""Embedding tables spread over ranks: the lookups of one rank, and what ranks exchange for them, as TorchRec does it.

A rank looks up its tables for the samples of all ranks. Before that, ranks exchange indices, grouped by table; after it, the sums
of rows, of which each rank gets those of its own samples; in the backward pass, the gradients of these sums. The indices of the
next batch are exchanged on a stream of their own while this one is computed (TorchRec's `TrainPipelineSparseDist`): the host waits
for the sizes of its parts.

Operators and their order are those of the trace `v100x8_dlrm` and of TorchRec (`distributed/dist_data.py`, `comm_ops.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate, chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.as_on_cuda.host_reads import read
from pipeline.as_on_cuda.marked_streams import MarkedEvent, MarkedStream
from pipeline.as_on_cuda.shape_operators import apply, is_empty
from pipeline.question.placed_tables import groups_of
from pipeline.question.table_plan import REPLICATED, ROW_WISE, TablePlan
from pipeline.workloads.dlrm_operators import FusedLookup
from pipeline.workloads.feature_operators import feature_operators, offsets_of, permute, split
from pipeline.workloads.row_exchange import Exchange, Permute, Receive, Send, SumParts

Sizes = list[list[int]]
"""Of each part of a table that a rank holds, how many indices each rank looks up."""


class SpreadTables:
    """The tables of one rank. They are no parameters: their backward pass updates them.

    Args:
        plan: where the tables are.
        rank: this rank.
        rows: of each table of the model.
        lookups: of a sample in each table, the mean.
        dim: columns of all tables.
        batch: samples of a rank.
        states: tensors of a weight's size that the optimizer keeps.
    """

    def __init__(
        self,
        plan: TablePlan,
        rank: int,
        rows: Sequence[int],
        lookups: Sequence[float],
        dim: int,
        batch: int,
        states: int,
    ) -> None:
        self.plan, self.rank, self.dim, self.batch = plan, rank, dim, batch
        self.rows, self.lookups = list(rows), list(lookups)
        self.counts = [round(batch * each) for each in lookups]
        self.shared, self.copied = plan.of_kind(ROW_WISE), plan.of_kind(REPLICATED)
        self.groups = groups_of(plan, rank, rows, lookups, dim)
        self.anchor = torch.zeros(0, requires_grad=True)
        self.weights = [torch.zeros(sum(group.rows), group.columns) for group in self.groups]
        self.states = [[torch.zeros_like(w) for _ in range(states)] for w in self.weights]
        own = [rows[table] for table in self.copied]
        self.replicated = Replicated(own, dim) if own else None
        self.ready: tuple[Tensor, Tensor, Sizes] | None = None
        self._beside = MarkedStream() if is_empty(self.anchor) else None
        self._batch_is_there: MarkedEvent | None = None

    @property
    def wanted(self) -> list[list[int]]:
        """Of each rank, the features that it needs: of tables that it holds, in its order, and of its rows of shared ones.

        Features of shared tables, by rank, come after those of all tables.
        """
        first, count = len(self.rows), len(self.shared)
        return [
            [*(t for t, _ in parts), *range(first + rank * count, first + (rank + 1) * count)]
            for rank, parts in enumerate(self.plan.parts)
        ]

    def begin(self, training: bool) -> None:
        """Note that the batch is on the device: the exchange of its indices waits for no more than that.

        Args:
            training: whether the step before has exchanged the indices of this batch.
        """
        self.ready = self.ready if training else None
        if self._beside:
            self._batch_is_there = MarkedStream.now.record_event()

    def distribute(self, indices: Tensor, lengths: Tensor) -> None:
        """Exchange the indices of a batch: each rank gets those of its tables, for the samples of all ranks.

        Args:
            indices: of all lookups, by table, int32.
            lengths: lookups of each sample in each table, by table, shape (tables x samples,), int32.
        """
        if any(self.wanted):
            with self._beside or nullcontext():
                if self._beside and self._batch_is_there:
                    self._beside.wait_event(self._batch_is_there)
                self.ready = self._exchanged(indices, lengths)

    def arrived(self, indices: Tensor, lengths: Tensor) -> None:
        """Wait for what `distribute` exchanges; the first step exchanges it itself."""
        if self.ready is None:
            self.distribute(indices, lengths)
        if self._beside:
            MarkedStream.now.wait_stream(self._beside)

    def _exchanged(self, indices: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Sizes]:
        """Lengths and indices of this rank's tables, for the samples of all ranks, and how many there are."""
        ranks, batch, wanted = self.plan.ranks, self.batch, self.wanted
        if self.shared:
            indices, lengths = self._by_rows(indices, lengths)
        each = self.sizes(lengths)
        counts = [sum(each[feature] for feature in one) for one in wanted]
        order = list(chain(*wanted))
        sent_lengths, sent = permute(lengths, indices, batch, order, sum(counts))
        mine = len(wanted[self.rank])
        sizes = torch.tensor([[batch * len(one) for one in wanted], counts, [batch] * ranks])
        told = sizes.t().reshape(-1).to(indices.device)
        got = torch.empty_like(told)
        dist.all_to_all_single(got, told, async_op=True).wait()
        # the host allocates what arrives
        if is_empty(got):
            read(got)
            arriving = [counts[self.rank]] * ranks
        else:
            arriving = got.view(ranks, -1)[:, 1].tolist()
        got_lengths = lengths.new_empty(batch * ranks * mine)
        arriving_lengths, leaving = [batch * mine] * ranks, [batch * len(one) for one in wanted]
        got_indices = indices.new_empty(sum(arriving))
        works = [
            dist.all_to_all_single(received, given, taken, parts, async_op=True)
            for received, given, taken, parts in (
                (got_lengths, sent_lengths, arriving_lengths, leaving),
                (got_indices, sent, arriving, counts),
            )
        ]
        for work in works:
            work.wait()
        order = [source * mine + part for part in range(mine) for source in range(ranks)]
        lengths, indices = permute(got_lengths, got_indices, batch, order, sum(arriving))
        if is_empty(indices):
            return lengths, indices, [[each[feature]] * ranks for feature in wanted[self.rank]]
        of_parts = lengths.view(mine, ranks, batch).sum(2)
        firsts = [first for group in self.groups for first in accumulate((0, *group.rows[:-1]))]
        in_weight = torch.tensor(firsts, dtype=torch.long).repeat_interleave(of_parts.sum(1))
        return lengths, indices + in_weight, of_parts.tolist()

    def _by_rows(self, indices: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The features, then those of the tables that all ranks share, once more for each rank with the indices of its rows."""
        ranks, batch, shared = self.plan.ranks, self.batch, self.shared
        if is_empty(indices):
            count = sum(self.counts[table] for table in shared)
            made = feature_operators().block_bucketize_sparse_features(
                indices, lengths, ranks, batch * len(shared), count
            )
            return made[0], made[1]
        each, of = list(split(indices, self.sizes(lengths))), list(lengths.view(-1, batch))
        for rank in range(ranks):
            for table in shared:
                height = -(-self.rows[table] // ranks)
                mine = each[table] // height == rank
                samples = torch.repeat_interleave(torch.arange(batch), of[table].long())
                of.append(torch.bincount(samples[mine], minlength=batch).to(lengths.dtype))
                each.append(each[table][mine] - rank * height)
        return torch.cat(each), torch.cat(of)

    def sizes(self, lengths: Tensor) -> list[int]:
        """Indices of each feature; where there are no data, those of a mean batch."""
        if not is_empty(lengths):
            sizes: list[int] = lengths.view(-1, self.batch).sum(1).tolist()
            return sizes
        ranks = self.plan.ranks
        of_rank = [round(self.batch * self.lookups[table] / ranks) for table in self.shared]
        return [*self.counts, *of_rank * ranks]

    def sums(self, indices: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        """The sums of rows of this rank's samples in all tables, shape (samples, tables, columns).

        Args:
            indices: as of `distribute`.
            lengths: as of `distribute`.
            dtype: in which sums are exchanged.
        """
        self.arrived(indices, lengths)
        looked_up = self._looked_up()
        own = looked_up[: len(looked_up) - bool(self.shared)]
        pieces: dict[int, Tensor] = {}
        widths = [sum(columns for _, columns in parts) for parts in self.plan.parts]
        if any(widths):
            joined = torch.cat(own, 1) if len(own) > 1 else own[0] if own else self.nothing()
            sizes = [self.batch * width for width in widths]
            exchange = Exchange([sizes[self.rank]] * len(sizes), sizes, self.batch)
            started = apply(Send, joined.to(dtype), exchange)
        if self.shared:
            summed = apply(SumParts, looked_up[-1].to(dtype))
            parts = split(summed, [self.dim] * len(self.shared), 1)
            pieces |= dict(zip(self.shared, parts, strict=True))
        if self.replicated is not None:
            held = self.replicated(*self.copied_features(indices, lengths)).to(dtype)
            whole = held.view(len(self.copied), self.batch, self.dim)
            pieces |= dict(zip(self.copied, whole.unbind(0), strict=True))
        if any(widths):
            pieces |= self._by_table(apply(Receive, started, exchange))
        joined = torch.cat([pieces[table] for table in sorted(pieces)], 1)
        return joined.view(self.batch, len(self.rows), self.dim)

    def _by_table(self, received: Tensor) -> dict[int, Tensor]:
        """The sums of each table from those that arrive, in the order of ranks; parts of columns are put together first."""
        arriving = list(chain(*self.plan.parts))
        if any(columns != self.dim for _, columns in arriving):
            ends = list(accumulate(columns for _, columns in arriving))
            order = sorted(range(len(arriving)), key=lambda part: arriving[part][0])
            columns = [
                c for part in order for c in range(ends[part] - arriving[part][1], ends[part])
            ]
            received = apply(Permute, received, columns)
            arriving = [(table, self.dim) for table in sorted({table for table, _ in arriving})]
        parts = split(received, [columns for _, columns in arriving], 1)
        return {table: part for (table, _), part in zip(arriving, parts, strict=True)}

    def nothing(self) -> Tensor:
        """The sums of a rank without tables."""
        return self.anchor.new_empty(self.batch * self.plan.ranks, 0).requires_grad_()

    def copied_features(self, indices: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Indices into the joint weight of tables on all ranks, and offsets, from a batch with equal numbers of lookups."""
        ends = [0, *accumulate(self.counts)]
        starts, first = [], 0
        for table in self.copied:
            starts.append(indices[ends[table] : ends[table + 1]] + first)
            first += self.rows[table]
        of = torch.cat([lengths.view(-1, self.batch)[table] for table in self.copied])
        return torch.cat(starts).long(), offsets_of(of)[:-1].long()

    def together(self, sizes: Sizes) -> Iterator[tuple[Tensor, list[Tensor], slice, slice]]:
        """For each fused lookup its weight with states, which parts of `sizes` it reads, and which indices."""
        at = begin = 0
        for group, weight, states in zip(self.groups, self.weights, self.states, strict=True):
            parts = slice(at, at + len(group.tables))
            end = begin + sum(map(sum, sizes[parts]))
            yield weight, states, parts, slice(begin, end)
            at, begin = parts.stop, end

    def _looked_up(self) -> list[Tensor]:
        """The sums of each group for the samples of all ranks, shape (ranks x samples, columns of all its parts)."""
        if self.ready is None:
            return []
        lengths, indices, sizes = self.ready
        indices = indices.long()
        offsets, bags = offsets_of(lengths).long(), self.batch * self.plan.ranks
        found = []
        for weight, states, parts, own in self.together(sizes):
            begins = offsets[bags * parts.start : bags * parts.stop]
            if not is_empty(indices):
                begins = begins - own.start
            of = indices[own], begins, parts.stop - parts.start, states
            found.append(apply(FusedLookup, self.anchor, weight, *of).view(bags, -1))
        return found


class Replicated(nn.Module):
    """Tables that every rank holds whole, looked up at once; ranks exchange their dense gradients."""

    def __init__(self, rows: Sequence[int], dim: int) -> None:
        super().__init__()
        self.tables = nn.EmbeddingBag(sum(rows), dim, mode="sum")

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """The sums of rows, by table, shape (tables x samples, columns)."""
        sums: Tensor = self.tables(indices, offsets)
        return sums
