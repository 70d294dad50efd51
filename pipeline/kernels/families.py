"""The registry of kernel families: their dimensions, their ops, and the formulas of their work.

A new family needs an entry here. Where bytes over bandwidth is not accurate enough, it also needs a formula in
`physics.py` or samples for a fitted model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pandas as pd

from pipeline.errors import UnknownNameError
from pipeline.kernels import work
from pipeline.kernels.embedding_lookups import embedding_backward, embedding_forward
from pipeline.kernels.work import Dims, Work


class Law(Enum):
    """The formula that estimates a family's times without samples."""

    COMPUTE = "compute"  # the larger of FLOPs over throughput and bytes over bandwidth
    MOVEMENT = "movement"  # bytes over the device-memory bandwidth curve
    LINK = "link"  # bytes over PCIe
    EMBEDDING = "embedding"  # cold traffic over DRAM, hits over L2
    COLLECTIVE = "collective"  # bytes over the ranks' bus
    SORT = "sort"  # several passes over the keys


@dataclass(frozen=True)
class Family:
    """Kernels that one model predicts.

    A row is predicted from dims only if it has all `required` dims; other rows use the table's own `flops` and
    `bytes_*`. `ops` are the known ops of the family (tables of calls may have others). `passes` is the number of times
    that the traffic of `work` crosses memory (multi-pass algorithms).
    """

    name: str
    required: tuple[str, ...]
    law: Law
    work: Callable[[Dims], Work]
    ops: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    passes: float = 1.0

    @property
    def dims(self) -> tuple[str, ...]:
        """All dims that the family understands."""
        return self.required + self.optional

    @property
    def phase(self) -> str:
        """The default pass of the family's kernels, where a table does not give one."""
        return "backward" if "backward" in self.name else "forward"


_CONV = ("B", "in_channels", "out_channels", "kernel_size", "input_size")
_CONV_OPTIONAL = (
    "stride",
    "padding",
    "groups",
    "dilation",
    "kernel_size_w",
    "input_size_w",
    "stride_w",
    "padding_w",
)
_IO = ("inputs", "outputs")

ELEMENTWISE_OPS = (
    "add", "addu", "mul", "mulu", "div", "divu", "pow", "powu", "relu", "gelu", "tanh", "sigmoid",
    "sub", "sqrt", "exp", "log", "neg", "fill", "where", "cast", "addcmul", "addcdiv", "lerp",
    "maximum", "minimum", "silu", "other",
)  # fmt: skip

_REGISTERED = (
    Family(
        "gemm",
        ("M", "N", "K"),
        Law.COMPUTE,
        work.matrix_product,
        ("linear", "mm"),
        ("B", "trans_a", "trans_b"),
    ),
    Family(
        "bmm",
        ("B", "M", "N", "K"),
        Law.COMPUTE,
        work.matrix_product,
        ("bmm",),
        ("trans_a", "trans_b"),
    ),
    Family("conv2d_forward", _CONV, Law.COMPUTE, work.conv_forward, ("conv",), _CONV_OPTIONAL),
    Family(
        "conv2d_backward_data",
        _CONV,
        Law.COMPUTE,
        work.conv_backward_data,
        ("conv",),
        _CONV_OPTIONAL,
    ),
    Family(
        "conv2d_backward_weight",
        _CONV,
        Law.COMPUTE,
        work.conv_backward_weight,
        ("conv",),
        _CONV_OPTIONAL,
    ),
    Family(
        "embedding_forward",
        ("B", "D"),
        Law.EMBEDDING,
        embedding_forward,
        ("fused", "bag", "gather"),
        ("E", "T", "L"),
    ),
    Family(
        "embedding_backward",
        ("B", "D"),
        Law.EMBEDDING,
        embedding_backward,
        ("fused_sgd", "sparse", "dense"),
        ("E", "T", "L"),
    ),
    Family("elementwise", ("B", "H"), Law.MOVEMENT, work.elementwise, ELEMENTWISE_OPS, _IO),
    Family(
        "softmax", ("B", "H"), Law.MOVEMENT, work.normalised_rows, ("softmax", "log_softmax"), _IO
    ),
    Family(
        "layer_norm",
        ("B", "H"),
        Law.MOVEMENT,
        work.normalised_rows,
        ("ln", "ln_weight_gradient"),
        _IO,
    ),
    Family(
        "batch_norm",
        ("B", "C", "HW"),
        Law.MOVEMENT,
        work.batch_norm,
        ("batch_norm", "batch_norm_inference"),
        _IO,
    ),
    Family(
        "pooling", ("B", "C", "HW"), Law.MOVEMENT, work.pooling, ("max", "average", "adaptive"), _IO
    ),
    Family("dropout", ("B", "H"), Law.MOVEMENT, work.dropout, ("dropout",), _IO),
    Family(
        "reduction", ("B", "H"), Law.MOVEMENT, work.reduction, ("sum", "mean", "max", "norm"), _IO
    ),
    Family(
        "loss",
        ("B",),
        Law.MOVEMENT,
        work.loss,
        ("mse", "bce", "nll", "cross_entropy"),
        ("H", "T", *_IO),
    ),
    Family(
        "concat", ("bytes",), Law.MOVEMENT, work.moved_bytes, ("cat", "stack"), ("tensors", *_IO)
    ),
    Family("copy", ("bytes",), Law.MOVEMENT, work.moved_bytes, ("copy", "transpose", "cast"), _IO),
    Family("memcpy_d2d", ("bytes",), Law.MOVEMENT, work.moved_bytes, ("memcpy",)),
    Family("memset", ("bytes",), Law.MOVEMENT, work.written_bytes, ("memset",)),
    Family("memcpy_h2d", ("bytes",), Law.LINK, work.written_bytes, ("pinned", "pageable")),
    Family("memcpy_d2h", ("bytes",), Law.LINK, work.written_bytes, ("pinned", "pageable")),
    Family(
        "tril_index_forward", ("B", "F"), Law.MOVEMENT, work.tril_index, ("tril",), _IO, passes=1.5
    ),
    Family(
        "tril_index_backward", ("B", "F"), Law.MOVEMENT, work.tril_index, ("tril",), _IO, passes=2.0
    ),
    Family("interaction", ("B", "F", "D"), Law.MOVEMENT, work.interaction, ("fused",), _IO),
    Family("rnn", ("B", "T", "I", "H"), Law.COMPUTE, work.recurrent, ("lstm", "gru"), ("layers",)),
    Family(
        "optimizer",
        ("bytes",),
        Law.MOVEMENT,
        work.optimizer,
        ("sgd", "adam", "adamw", "adagrad"),
        ("tensors",),
    ),
    Family("sort", ("bytes",), Law.SORT, work.moved_bytes, ("sort", "unique", "topk")),
    Family(
        "index",
        ("bytes",),
        Law.MOVEMENT,
        work.moved_bytes,
        ("gather", "scatter", "index", "index_put"),
        _IO,
    ),
    Family(
        "collective",
        ("bytes",),
        Law.COLLECTIVE,
        work.moved_bytes,
        (
            "all_reduce",
            "all_to_all",
            "all_gather",
            "reduce_scatter",
            "broadcast",
            "reduce",
            "send_recv",
        ),
        ("ranks", "nodes", "node_groups"),
    ),
    Family(
        "attention",
        ("B", "M", "N", "K"),
        Law.COMPUTE,
        work.attention,
        ("flash", "cudnn", "efficient", "math"),
    ),
    Family("other", (), Law.MOVEMENT, work.given_work, (), ("bytes", "B", "H", *_IO)),
)

FAMILIES: Mapping[str, Family] = {family.name: family for family in _REGISTERED}
"""Every family by name."""

NEUSIGHT_OPS: Mapping[str, str] = {
    "linear": "gemm",
    "bmm": "bmm",
    "conv": "conv2d_forward",
    "softmax": "softmax",
    "ln": "layer_norm",
    **dict.fromkeys(ELEMENTWISE_OPS[:11], "elementwise"),
}
"""Family of each op of the public NeuSight latencies."""


def _op_names() -> dict[str, str]:
    """Ops that only one family has, families under their own names, and NeuSight's ops with their meaning there."""
    owners = Counter(op for entry in _REGISTERED for op in entry.ops)
    with_dims = [entry for entry in _REGISTERED if entry.required]
    of_one_family = {
        op: entry.name
        for entry in with_dims
        for op in entry.ops
        if owners[op] == 1 and op != "other"
    }
    return {**of_one_family, **{entry.name: entry.name for entry in with_dims}, **NEUSIGHT_OPS}


OP_NAMES: Mapping[str, str] = _op_names()
"""Family of each value of the column `op` in tables of calls: NeuSight's ops, ops of one family only, families."""


def family(name: str) -> Family:
    """Look a family up.

    Raises:
        UnknownNameError: no family has that name; the message lists the names.
    """
    if name not in FAMILIES:
        raise UnknownNameError("kernel family", name, list(FAMILIES))
    return FAMILIES[name]


def work_of(name: str, calls: pd.DataFrame, own_columns: bool = True) -> Work:
    """FLOPs and traffic of calls of one family, each of shape (rows,).

    With `own_columns`, the table's own `flops`, `bytes_read` and `bytes_written` are used first; a calls table has
    them, from real operand shapes. The formula fills missing values. The result is NaN where neither is known.
    """
    d = Dims(calls)
    formula = family(name).work(d)
    if not own_columns or "bytes_read" not in calls.columns:
        return formula
    flops, read, written = d("flops", np.nan), d("bytes_read", np.nan), d("bytes_written", np.nan)
    bytes_known = (read + written) > 0
    return Work(
        np.where(flops > 0, flops, formula.flops),
        np.where(bytes_known, read, formula.read),
        np.where(bytes_known, written, formula.written),
    )
