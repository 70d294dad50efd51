"""Embedding tables spread over ranks: the lookups of one rank, and what ranks exchange for them, as TorchRec does it.

A rank looks up its tables for the samples of all ranks. Before that, ranks exchange indices, grouped by table; after it, the sums
of rows, of which each rank gets those of its own samples; in the backward pass, the gradients of these sums. The indices of the
next batch are exchanged on a stream of their own while this one is computed (TorchRec's `TrainPipelineSparseDist`): the host waits
for the sizes of its parts.

Operators and their order are those of the trace `v100x8_dlrm` and of TorchRec (`distributed/dist_data.py`, `comm_ops.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import Any

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
from pipeline.workloads.row_exchange import Exchange, Permute, Receive, Send, SumParts, finished


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
        self.groups = groups_of(plan, rank, rows, lookups, dim)
        self.anchor = torch.zeros(0, requires_grad=True)
        self.weights = [torch.zeros(sum(group.rows), group.columns) for group in self.groups]
        self.states = [[torch.zeros_like(w) for _ in range(states)] for w in self.weights]
        whole = plan.of_kind(REPLICATED)
        self.replicated = Replicated([rows[table] for table in whole], dim) if whole else None
        self.ready: tuple[Tensor, Tensor] | None = None
        dry = self.anchor.device.type == "meta"
        self._beside: Any = MarkedStream() if dry else nullcontext()
        self._batch_is_there: MarkedEvent | None = None

    @property
    def wanted(self) -> list[list[int]]:
        """Of each rank, the tables whose indices it needs, in the order in which it holds them."""
        shared = self.plan.of_kind(ROW_WISE)
        return [[*(table for table, _ in parts), *shared] for parts in self.plan.parts]

    def begin(self, training: bool) -> None:
        """Note that the batch is on the device: the exchange of its indices waits for no more than that.

        Args:
            training: whether the step before has exchanged the indices of this batch.
        """
        self.ready = self.ready if training else None
        if isinstance(self._beside, MarkedStream):
            self._batch_is_there = MarkedStream.now.record_event()

    def distribute(self, indices: Tensor, lengths: Tensor) -> None:
        """Exchange the indices of a batch: each rank gets those of its tables, for the samples of all ranks.

        Args:
            indices: of all lookups, by table, int32.
            lengths: lookups of each sample in each table, by table, shape (tables x samples,), int32.
        """
        if any(self.wanted):
            with self._beside:
                if self._batch_is_there:
                    self._beside.wait_event(self._batch_is_there)
                self.ready = self._exchanged(indices, lengths)

    def _exchanged(self, indices: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Lengths and indices of this rank's tables, for the samples of all ranks."""
        ranks, batch, wanted = self.plan.ranks, self.batch, self.wanted
        sent_lengths, sent, counts = self._by_rank(indices, lengths)
        mine = len(wanted[self.rank])
        sizes = torch.tensor([[batch * len(one) for one in wanted], counts, [batch] * ranks])
        told = sizes.t().reshape(-1).to(indices.device)
        got = torch.empty_like(told)
        finished(dist.all_to_all_single(got, told, async_op=True))
        # the host allocates what arrives
        arriving = read_sizes(got, self._arriving(), ranks)
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
            finished(work)
        order = [source * mine + part for part in range(mine) for source in range(ranks)]
        return permute(got_lengths, got_indices, batch, order, sum(arriving))

    def _by_rank(self, indices: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Lengths and indices in the order of the ranks that get them, and how many each gets."""
        batch, shared = self.batch, self.plan.of_kind(ROW_WISE)
        if shared:
            indices, lengths = self._by_rows(indices, lengths)
        order, counts = [], []
        for rank, wanted in enumerate(self.wanted):
            own = [
                len(self.rows) + rank * len(shared) + shared.index(table)
                if table in shared
                else table
                for table in wanted
            ]
            order += own
            counts.append(self._count(own, lengths))
        return *permute(lengths, indices, batch, order, sum(counts)), counts

    def _by_rows(self, indices: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The features, then those of the tables that all ranks share, once more for each rank with the indices of its rows."""
        ranks, batch, shared = self.plan.ranks, self.batch, self.plan.of_kind(ROW_WISE)
        if is_empty(indices):
            count = sum(self.counts[table] for table in shared)
            made = feature_operators().block_bucketize_sparse_features(
                indices, lengths, ranks, batch * len(shared), count
            )
            return made[0], made[1]
        each = list(split(indices, [int(n) for n in lengths.view(-1, batch).sum(1)]))
        of = list(lengths.view(-1, batch))
        for rank in range(ranks):
            for table in shared:
                height = -(-self.rows[table] // ranks)
                mine = each[table] // height == rank
                samples = torch.repeat_interleave(torch.arange(batch), of[table].long())
                of.append(torch.bincount(samples[mine], minlength=batch).to(lengths.dtype))
                each.append(each[table][mine] - rank * height)
        return torch.cat(each), torch.cat(of)

    def _count(self, features: Sequence[int], lengths: Tensor) -> int:
        """Indices of some features."""
        if not is_empty(lengths):
            each = lengths.view(-1, self.batch).sum(1)
            return int(each[list(features)].sum()) if features else 0
        shared, tables = self.plan.of_kind(ROW_WISE), len(self.rows)
        return sum(
            self.counts[feature]
            if feature < tables
            else self._of_rank(shared[(feature - tables) % len(shared)])
            for feature in features
        )

    def _of_rank(self, table: int) -> int:
        """Indices of a batch that fall on a rank's rows of a shared table, the mean."""
        return round(self.batch * self.lookups[table] / self.plan.ranks)

    def _arriving(self) -> list[int]:
        """Indices that arrive from each rank, in the mean."""
        own = sum(self.counts[table] for table, _ in self.plan.parts[self.rank])
        shared = sum(map(self._of_rank, self.plan.of_kind(ROW_WISE)))
        return [own + shared] * self.plan.ranks

    def sums(self, indices: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        """The sums of rows of this rank's samples in all tables, shape (samples, tables, columns).

        Args:
            indices: as of `distribute`; the first step exchanges them itself.
            lengths: as of `distribute`.
            dtype: in which sums are exchanged.
        """
        if self.ready is None:
            self.distribute(indices, lengths)
        if isinstance(self._beside, MarkedStream):
            MarkedStream.now.wait_stream(self._beside)
        looked_up = self._looked_up() if self.ready is not None else []
        pieces: dict[int, Tensor] = {}
        pairs = list(zip(self.groups, looked_up, strict=bool(looked_up)))
        own = [sums for group, sums in pairs if not group.shared]
        widths = [sum(columns for _, columns in parts) for parts in self.plan.parts]
        if any(widths):
            joined = torch.cat(own, 1) if len(own) > 1 else own[0] if own else self._nothing()
            sizes = [self.batch * width for width in widths]
            exchange = Exchange([sizes[self.rank]] * len(sizes), sizes, self.batch)
            started = apply(Send, joined.to(dtype), exchange)
        for summed in (sums for group, sums in pairs if group.shared):
            tables = self.plan.of_kind(ROW_WISE)
            parts = split(apply(SumParts, summed.to(dtype)), [self.dim] * len(tables), 1)
            pieces |= dict(zip(tables, parts, strict=True))
        if self.replicated is not None:
            tables = self.plan.of_kind(REPLICATED)
            held = self.replicated(*self._features(indices, lengths, tables)).to(dtype)
            whole = held.view(len(tables), self.batch, self.dim)
            pieces |= dict(zip(tables, whole.unbind(0), strict=True))
        if any(widths):
            pieces |= self._by_table(apply(Receive, started, exchange))
        joined = torch.cat([pieces[table] for table in sorted(pieces)], 1)
        return joined.view(self.batch, len(self.rows), self.dim)

    def _by_table(self, received: Tensor) -> dict[int, Tensor]:
        """The sums of each table from those that arrive, in the order of ranks; parts of columns are put together first."""
        arriving = [part for parts in self.plan.parts for part in parts]
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

    def _nothing(self) -> Tensor:
        """The sums of a rank without tables."""
        return self.anchor.new_empty(self.batch * self.plan.ranks, 0).requires_grad_()

    def _features(
        self, indices: Tensor, lengths: Tensor, tables: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Indices into the joint weight of some tables, and offsets, from a batch with equal numbers of lookups."""
        ends = [0, *accumulate(self.counts)]
        starts, first = [], 0
        for table in tables:
            starts.append(indices[ends[table] : ends[table + 1]] + first)
            first += self.rows[table]
        of = torch.cat([lengths.view(-1, self.batch)[table] for table in tables])
        return torch.cat(starts).long(), offsets_of(of)[:-1].long()

    def _looked_up(self) -> list[Tensor]:
        """The sums of each group for the samples of all ranks, shape (ranks x samples, columns of all its parts)."""
        assert self.ready is not None
        lengths, indices = self.ready
        indices = indices.long()
        offsets = offsets_of(lengths).long()
        bags = self.batch * self.plan.ranks
        found, at, begin = [], 0, 0
        for group, weight, states in zip(self.groups, self.weights, self.states, strict=True):
            parts = len(group.tables)
            count = round(bags * sum(group.lookups))
            own = offsets[at : at + parts * bags]
            if is_empty(indices):
                index = indices[begin : begin + count]
            else:
                begin, end = int(offsets[at]), int(offsets[at + parts * bags])
                first = torch.tensor([sum(group.rows[:part]) for part in range(parts)])
                own = own - begin
                index = indices[begin:end] + first.repeat_interleave(
                    lengths[at : at + parts * bags].view(parts, -1).sum(1)
                )
            sums = apply(FusedLookup, self.anchor, weight, index, own, parts, states)
            shape = (parts, bags, group.columns)
            sums = (
                sums.view(bags, parts * group.columns)  # FBGEMM writes samples first
                if is_empty(indices)
                else sums.view(shape).transpose(0, 1).reshape(bags, -1)
            )
            found.append(sums)
            at, begin = at + parts * bags, begin + count
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


def read_sizes(got: Tensor, expected: Sequence[int], ranks: int) -> list[int]:
    """The numbers of indices that arrive from each rank, which the host reads: of a tensor without data, those expected."""
    if is_empty(got):
        read(got)
        return list(expected)
    return [int(n) for n in got.view(ranks, -1)[:, 1]]
