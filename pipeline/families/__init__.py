"""Kernel families, one file for those that share formulas: dims, work, times by physics, feature columns, colour.

A new family needs an entry in one of the files, rows of `pipeline/graph/opmap.yaml` if PyTorch operators launch it, and, for a
new file, an import below and its name in `_FILES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from pipeline.errors import UnknownNameError
from pipeline.families import (
    bytes_moved,
    conv,
    embeddings,
    fused,
    gemm,
    images,
    row_wise,
    sequences,
    training,
)
from pipeline.families.dims import Dims, Work
from pipeline.families.family import Family, stated_work
from pipeline.palette import OTHER

_FILES = (gemm, conv, embeddings, row_wise, images, training, sequences, bytes_moved, fused)

FAMILIES: Mapping[str, Family] = {entry.name: entry for file in _FILES for entry in file.FAMILIES}
"""Every family by name."""

NEUSIGHT_OPS: Mapping[str, str] = {
    "linear": "gemm",
    "bmm": "bmm",
    "conv": "conv2d_forward",
    "softmax": "softmax",
    "ln": "layer_norm",
    **dict.fromkeys(row_wise.ELEMENTWISE_OPS[:11], "elementwise"),
}
"""Family of each op of the public NeuSight latencies."""


def _op_names() -> dict[str, str]:
    """Ops that only one family has, families under their own names, and NeuSight's ops with their meaning there."""
    families = [entry for entry in FAMILIES.values() if entry.required]
    owners = Counter(op for entry in FAMILIES.values() for op in entry.ops)
    single = {op: entry.name for entry in families for op in entry.ops if owners[op] == 1}
    single.pop("other")
    return {**single, **{entry.name: entry.name for entry in families}, **NEUSIGHT_OPS}


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


COLOURS: Mapping[str, str] = {
    name: entry.colour for name, entry in FAMILIES.items() if name != "other"
}
"""Colour of every kernel family."""


def family_colour(name: str) -> str:
    """Colour of a kernel family; `OTHER` for a name that is no family."""
    return COLOURS.get(name, OTHER)


def work_of(name: str, calls: pd.DataFrame, own_columns: bool = True) -> Work:
    """FLOPs and traffic of calls of one family, each of shape (rows,).

    With `own_columns`, the table's own `flops`, `bytes_read` and `bytes_written` are used first; a calls table has
    them, from real operand shapes. The formula fills missing values. The result is NaN where neither is known.
    """
    d = Dims(calls)
    formula = family(name).work(d)
    return stated_work(d, formula) if own_columns else formula
