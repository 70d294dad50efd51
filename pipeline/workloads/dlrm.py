"""DLRM (Naumov et al., arXiv:1906.00091) with dot interaction, in the sizes of Lin et al.'s experiments.

`embedding` is the kind of the embedding lookup:

  fused         One batched operator over all tables (FBGEMM's SplitTableBatchedEmbedding). Its backward pass applies
                the optimizer, so no gradient of the weights is stored.
  sparse        One `EmbeddingBag` per table, with sparse gradients.
  joint_sparse  One `EmbeddingBag` over the rows of all tables, with a sparse gradient. This is how PyTorch looks up all
                tables at once without FBGEMM. Measurement campaigns use it, because they do not have FBGEMM.
  joint_rows    The same with one `Embedding`, for tables with one lookup per sample: no bags, hence no offsets.
  dense         One `EmbeddingBag` per table, with dense gradients.

`interaction` is the way to multiply pairs of vectors:

  by_parts      PyTorch's operators: a batched product, an index of its lower triangle, a concatenation.
  fused         One kernel in each direction (`pipeline.workloads.dlrm_operators`).
  cross         A low-rank cross network (DCN v2, Wang et al., arXiv:2008.13535) over all vectors joined, in place of products of
                pairs: `cross_layers` layers of rank `cross_rank` (TorchRec's `LowRankCrossNet`).

With `placed`, the tables are spread over ranks (`pipeline.workloads.spread_tables`), and lookups are fused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.as_on_cuda.shape_operators import apply
from pipeline.errors import ConfigError
from pipeline.question.embedding_tables import JOINT, STATES, tables
from pipeline.question.index_distributions import distributions
from pipeline.question.placed_tables import placed_by
from pipeline.workloads.dlrm_operators import (
    FusedInteraction,
    FusedLookup,
    interaction_width,
)
from pipeline.workloads.spread_tables import SpreadTables
from pipeline.workloads.training_step import Batch, Step, host_empty, is_dry

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "bce": F.binary_cross_entropy,
    "bce_logits": F.binary_cross_entropy_with_logits,
}
"""Losses of click probabilities, or of logits."""

BOUND = 0.01
"""Largest random weight of a table."""


def mlp(widths: Sequence[int], last: nn.Module) -> nn.Sequential:
    """Linear layers with ReLU between them and `last` at the end."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False)):
        layers += [nn.Linear(a, b), last if i == len(widths) - 2 else nn.ReLU()]
    return nn.Sequential(*layers)


class LowRankCross(nn.Module):
    """Cross layers x0 (W V x + b) + x, with V of few rows.

    Args:
        width: of x.
        layers: number of layers.
        rank: rows of V.
    """

    def __init__(self, width: int, layers: int, rank: int) -> None:
        super().__init__()
        self.narrow = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(layers))
        self.wide = nn.ModuleList(nn.Linear(rank, width, bias=False) for _ in range(layers))
        self.bias = nn.ParameterList(torch.zeros(width) for _ in range(layers))

    def forward(self, first: Tensor) -> Tensor:
        """(B, width) -> (B, width)."""
        x = first
        for narrow, wide, bias in zip(self.narrow, self.wide, self.bias, strict=True):
            x = first * (wide(narrow(x)) + bias) + x
        return x


class Dlrm(nn.Module):
    """Bottom MLP, embedding lookups, pairwise dot products, top MLP.

    Args:
        bottom: widths, the dense input first.
        top: widths of the top MLP without its input.
        rows: rows per table.
        dim: embedding dimension.
        embedding: "fused", "joint_sparse", "joint_rows", "sparse", "dense" or "spread".
        logits: omit the sigmoid at the end.
        states: number of tensors of the weight's size that the optimizer of a fused lookup keeps.
        interaction: "by_parts", "fused" or "cross".
        cross: layers and rank of the cross network.
        spread: the tables of this rank, where ranks share them.
    """

    def __init__(
        self,
        bottom: Sequence[int],
        top: Sequence[int],
        rows: Sequence[int],
        dim: int,
        embedding: str,
        logits: bool,
        states: int = 0,
        interaction: str = "by_parts",
        cross: tuple[int, int] = (0, 0),
        spread: SpreadTables | None = None,
    ) -> None:
        super().__init__()
        self.row: Tensor
        self.column: Tensor
        self.tables = len(rows)
        self.dim = dim
        features = self.tables + 1
        self.bottom = mlp(bottom, nn.ReLU())
        self.one_kernel = interaction == "fused"
        self.cross = LowRankCross(features * dim, *cross) if interaction == "cross" else None
        joined = {
            "fused": interaction_width(features, dim),
            "cross": features * dim,
            "by_parts": dim + features * (features - 1) // 2,
        }[interaction]
        self.top = mlp((joined, *top), nn.Identity() if logits else nn.Sigmoid())
        self.spread = spread
        if interaction == "by_parts":
            lower = torch.tril_indices(features, features, offset=-1)
            self.register_buffer("row", lower[0].contiguous())
            self.register_buffer("column", lower[1].contiguous())
        self.fused: Tensor | None = None
        self.states: list[Tensor] = []
        self.joint: nn.EmbeddingBag | nn.Embedding | None = None
        self.bags = nn.ModuleList()

        def weight(count: int) -> Tensor:
            return torch.empty(count, dim).uniform_(-BOUND, BOUND)

        def bag(count: int, sparse: bool) -> nn.EmbeddingBag:
            return nn.EmbeddingBag(count, dim, mode="sum", sparse=sparse, _weight=weight(count))

        if embedding == "fused":
            self.anchor = nn.Parameter(torch.zeros(0))
            self.fused = weight(sum(rows))
            self.states = [torch.zeros(sum(rows), dim) for _ in range(states)]
        elif embedding == "joint_rows":
            self.joint = nn.Embedding(sum(rows), dim, sparse=True, _weight=weight(sum(rows)))
        elif embedding == "joint_sparse":
            self.joint = bag(sum(rows), sparse=True)
        elif spread is None:
            self.bags.extend(bag(count, embedding == "sparse") for count in rows)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Dlrm:
        """Like `nn.Module._apply`, but also for the optimizer's tensors, which are not buffers."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for state in self.states:
            state.data = fn(state.data)
        return self

    def forward(self, dense: Tensor, indices: Tensor, *offsets: Tensor) -> Tensor:
        """Click probabilities (or logits) of a batch: `dense` (B, width) -> (B,); spread tables take lengths for offsets."""
        x = self.bottom(dense)
        batch, dim = x.shape
        if self.bags:
            lookups = zip(self.bags, self._split(indices), offsets[0].unbind(0), strict=True)
            parts = [self._as(x, bag(i, o)) for bag, i, o in lookups]
            z = torch.cat([x, *parts], 1).view(batch, self.tables + 1, dim)
        else:
            rows = self._looked_up(x, indices, *offsets)
            z = torch.cat([x.unsqueeze(1), self._as(x, rows)], 1)
        if self.cross is not None:
            joined = self.cross(z.view(batch, -1))
        elif self.one_kernel:
            joined = apply(FusedInteraction, z, x)
        else:
            joined = torch.cat([x, torch.bmm(z, z.transpose(1, 2))[:, self.row, self.column]], 1)
        output: Tensor = self.top(joined)
        return output.squeeze(1)

    def _looked_up(self, x: Tensor, indices: Tensor, *offsets: Tensor) -> Tensor:
        """The sums of rows (B, tables, dim) from one weight of all tables, or from those of all ranks."""
        if self.spread is not None:
            return self.spread.sums(indices, offsets[0], x.dtype)
        if self.joint is not None:  # bags in order (sample, table)
            rows: Tensor = self.joint(indices, *offsets)
        else:
            of = indices, *offsets, self.tables, self.states
            rows = apply(FusedLookup, self.anchor, self.fused, *of)
        return rows.view(x.shape[0], self.tables, self.dim)

    def _as(self, x: Tensor, looked_up: Tensor) -> Tensor:
        """Cast the looked-up rows to the dtype of the bottom MLP's output, if one kernel reads both.

        Otherwise nothing is cast here, because `bmm` casts its inputs under autocast, and ranks exchange rows in that dtype.
        """
        return looked_up.to(x.dtype) if self.one_kernel and not self.spread else looked_up

    def _split(self, indices: Tensor) -> Sequence[Tensor]:
        if indices.dim() == 2:
            return indices.unbind(0)
        return torch.split(indices, self.lookups_per_table)

    lookups_per_table: list[int] = []  # noqa: RUF012 - set where lookups differ between tables


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a DLRM config."""
    rows, lookups = tables(config)
    distributions(config, len(rows))  # refuses others
    embedding = str(config.get("embedding", "fused"))
    loss = str(config.get("loss", "bce"))
    dim = int(config["dim"])
    bottom = [int(w) for w in config["bottom_mlp"]]
    if bottom[-1] != dim:
        raise ConfigError(f"model.bottom_mlp ends in {bottom[-1]}, but must end in model.dim={dim}")
    optimizer = str(config.get("optimizer", "sgd"))
    training = config.get("mode", "train") == "train"
    if embedding != "dense" and optimizer not in STATES and training:
        raise ConfigError(
            f"model.embedding={embedding} does not support {optimizer}: use one of"
            f" {', '.join(STATES)}, or model.embedding=dense"
        )
    if embedding == "joint_rows" and set(lookups) != {1}:
        raise ConfigError(
            "model.embedding=joint_rows needs one lookup per table: set model.lookups=1, or use"
            " joint_sparse"
        )
    if loss not in LOSSES:
        raise ConfigError(f"model.loss={loss}: choose one of {', '.join(LOSSES)}")
    states, placed = STATES.get(optimizer, 0) if training else 0, placed_by(config)
    with torch.device(device):
        spread = placed and SpreadTables(*placed, rows, lookups, dim, batch_size, states)
        embedding = "spread" if spread else embedding
        model = Dlrm(
            bottom,
            [int(w) for w in config["top_mlp"]],
            rows,
            dim,
            embedding,
            loss == "bce_logits",
            states,
            str(config.get("interaction", "by_parts")),
            (int(config.get("cross_layers") or 0), int(config.get("cross_rank") or 0)),
            spread,
        )
    model.lookups_per_table = [batch_size * n for n in lookups]
    fused = [model.fused] if model.fused is not None else spread.weights if spread else []
    pool = _pool(rows, lookups, bottom[0], embedding, batch_size, device)

    def criterion(output: Tensor, *batch: Tensor) -> Tensor:
        value = LOSSES[loss](output, batch[-1])
        if spread:
            spread.distribute(*batch[1:3])
        return value

    replicated = [spread.replicated] if spread and spread.replicated else []

    def forward(*batch: Tensor) -> Tensor:
        if spread:
            spread.begin(training)
        output: Tensor = model(*batch[:-1])
        return output

    return Step([model, *replicated], pool, forward, criterion, device, config, fused)


def _pool(
    rows: Sequence[int],
    lookups: Sequence[int],
    width: int,
    embedding: str,
    batch_size: int,
    device: str,
) -> list[Batch]:
    """Make batches with uniform random indices; if nothing is computed, one batch whose memory is never touched.

    The shape of the indices depends on the kind of lookup:

    * fused: (T·B·L,), indices into the joint weight, table-major.
    * joint_sparse, joint_rows: (T·B·L,), indices into the joint weight, sample-major; joint_rows has no offsets.
    * spread: (T·B·L,) in int32, table-major, with the lengths of all bags in place of offsets.
    * Others: (T, B·L), or flat if the number of lookups differs between tables.
    """
    if is_dry(device):
        return [_shapes(lookups, width, embedding, batch_size)]
    equal, random = len(set(lookups)) == 1, torch.Generator().manual_seed(batch_size)

    def indices(first: int, size: int, count: int) -> Tensor:
        return first + torch.randint(size, (batch_size * count,), generator=random)

    def batch() -> Batch:
        joint = embedding in ("fused", *JOINT)
        starts = [sum(rows[:t]) if joint else 0 for t in range(len(rows))]
        parts = [indices(*one) for one in zip(starts, rows, lookups, strict=True)]
        if embedding == "fused":
            counts = torch.tensor(lookups).repeat_interleave(batch_size)
            index = torch.cat(parts)
            offset = counts.cumsum(0) - counts
        elif embedding == "spread":
            index = torch.cat(parts).int()
            offset = torch.tensor(lookups).repeat_interleave(batch_size).int()
        elif embedding in JOINT:
            counts = torch.tensor(lookups).repeat(batch_size)
            index = torch.cat([part.view(batch_size, -1) for part in parts], 1).view(-1)
            offset = counts.cumsum(0) - counts
        else:
            index = torch.stack(parts) if equal else torch.cat(parts)
            offset = torch.stack([torch.arange(0, batch_size * n, n) for n in lookups])
        dense = torch.rand(batch_size, width, generator=random)
        label = torch.randint(2, (batch_size,), generator=random).float()
        return (dense, index, label) if embedding == "joint_rows" else (dense, index, offset, label)

    return [batch() for _ in range(4)]


def _shapes(lookups: Sequence[int], width: int, embedding: str, batch_size: int) -> Batch:
    """A batch of `_pool` whose memory is never touched, also of a symbolic number of samples."""
    joint = embedding in ("fused", "spread", *JOINT)
    kind = torch.int32 if embedding == "spread" else torch.long
    tables = len(lookups)
    apart = not joint and len(set(lookups)) == 1
    shape = (tables, batch_size * lookups[0]) if apart else (batch_size * sum(lookups),)
    index = host_empty(*shape, dtype=kind)
    offset = host_empty(*((batch_size * tables,) if joint else (tables, batch_size)), dtype=kind)
    dense, label = host_empty(batch_size, width), host_empty(batch_size)
    return (dense, index, label) if embedding == "joint_rows" else (dense, index, offset, label)
