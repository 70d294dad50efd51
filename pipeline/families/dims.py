"""Arithmetic and memory traffic of kernel calls, as functions of their dimensions.

`Dims` gives every function the same view of a calls or samples table: float64 columns by name, with defaults for absent
dimensions. A multiply-add counts as two FLOPs. Traffic is the number of bytes that must cross DRAM if no data is
cached. Broadcast operands count once, and so do tensors that are changed in place.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags, Texts

ELEMENT_BYTES = {
    "fp64": 8, "int64": 8, "fp32": 4, "tf32": 4, "int32": 4, "fp16": 2, "bf16": 2, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "fp8": 1,
}  # fmt: skip
"""Bytes of one element, by dtype name. An unknown dtype counts as fp32."""

SECTOR_BYTES = 32.0
"""Bytes of a sector, the smallest unit that DRAM and L2 move (Lin et al., section on embedding lookup)."""


def values_of(keys: Texts, values: Mapping[str, float], default: float) -> Array:
    """The value of each key, or `default`, shape (rows,). Each distinct key is looked up only once."""
    if _one_text(keys):
        return np.full(len(keys), values.get(keys[0], default), dtype=float)
    codes, distinct = pd.factorize(keys)
    return np.array([*(values.get(key, default) for key in distinct), default], dtype=float)[codes]


def is_one_of(keys: Texts, wanted: Collection[str]) -> Flags:
    """Whether each key is in `wanted`, shape (rows,)."""
    if _one_text(keys):
        return np.full(len(keys), keys[0] in wanted)
    return values_of(keys, dict.fromkeys(wanted, 1.0), 0.0) > 0


def _one_text(keys: Texts) -> bool:
    """Whether the keys are a column of one text, from `Dims.text`."""
    return keys.strides == (0,) and len(keys) > 0


class Dims:
    """Columns of a table as float64 arrays, with defaults where a dimension is absent or null."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        self.rows = len(table)

    def at(self, rows: Flags) -> Dims:
        """The rows of a mask of shape (rows,)."""
        return Dims(self.table[rows])

    def __call__(self, name: str, default: float | Array = np.nan) -> Array:
        """Column `name` as float64 of length `rows`; `default` where it is missing or null."""
        if name not in self.table.columns:
            return np.broadcast_to(np.asarray(default, dtype=float), (self.rows,)).copy()
        column = self.table[name]
        if column.dtype != np.float64:
            if not pd.api.types.is_numeric_dtype(column):
                column = pd.to_numeric(column, errors="coerce")
            column = column.astype(float)
        values = column.to_numpy()
        missing = np.isnan(values)
        return np.where(missing, default, values) if missing.any() else values.copy()

    def text(self, name: str, default: str = "") -> Texts:
        """Column `name` as text; `default` where it is missing or null.

        The text of a column with a single one is stored once, in an array that cannot be changed.
        """
        if name not in self.table.columns:
            return np.broadcast_to(np.array(default, dtype=object), (self.rows,))
        column = self.table[name].array
        if isinstance(column, pd.Categorical):
            kinds, codes = np.array([*column.categories, default], dtype=object), column.codes
            one = len(codes) > 0 and bool((codes == codes[0]).all())
            return np.broadcast_to(kinds[codes[:1]], (self.rows,)) if one else kinds[codes]
        values = column.to_numpy(dtype=object)
        missing = pd.isna(values)
        return (
            np.where(missing, np.array(default, dtype=object), values)
            if missing.any()
            else values.copy()
        )

    @property
    def dtype(self) -> Texts:
        """The dtype of each call, fp32 where it is missing, shape (rows,)."""
        return self.text("dtype", "fp32")

    @property
    def op(self) -> Texts:
        """The op of each call, shape (rows,)."""
        return self.text("op")

    def element_bytes(self, default: str = "fp32") -> Array:
        """Bytes of one element, from the `dtype` column; those of `default` where it is missing, and 4 of an unknown one."""
        return values_of(self.text("dtype", default), ELEMENT_BYTES, 4.0)

    def dtype_in(self, names: Collection[str]) -> Flags:
        """Whether the dtype of each call is one of `names`, shape (rows,)."""
        return is_one_of(self.dtype, names)

    def backward(self) -> Flags:
        """Whether each call belongs to the backward pass, shape (rows,)."""
        return np.asarray(self.text("phase", "forward") == "backward", dtype=bool)

    def flag(self, name: str) -> Flags:
        """Whether `name` is true in `attributes` (JSON), shape (rows,)."""
        codes, texts = pd.factorize(self.text("attributes"))
        flags = [f'"{name}":true' in str(text).replace(" ", "") for text in texts]
        return np.array(flags, dtype=bool)[codes]

    def channels_last(self) -> Flags:
        """Whether images have the channels innermost (`layout` in `attributes`), shape (rows,)."""
        return (
            pd.Series(self.text("attributes"))
            .str.contains('"layout":"nhwc"', regex=False)
            .to_numpy(dtype=bool)
        )

    def op_in(self, names: tuple[str, ...]) -> Flags:
        """Whether the op of each call is one of `names`, shape (rows,)."""
        return is_one_of(self.op, names)


@dataclass(frozen=True)
class Work:
    """Arithmetic and traffic per call: `flops`, bytes `read` and `written`, each of shape (rows,)."""

    flops: Array
    read: Array
    written: Array

    @property
    def bytes(self) -> Array:
        """Traffic in both directions."""
        return self.read + self.written


def sectors(size: Array) -> Array:
    """Bytes rounded up to whole sectors."""
    return np.ceil(size / SECTOR_BYTES) * SECTOR_BYTES


@lru_cache(maxsize=256)
def attributes_in(text: str) -> Mapping[str, Any]:
    """An entry of the `attributes` column; no JSON, or damaged JSON, gives an empty one."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError):
        value = {}
    return value if isinstance(value, dict) else {}


def attributes_of(d: Dims) -> list[Mapping[str, Any]]:
    """The `attributes` of each call."""
    return [attributes_in(text) for text in d.text("attributes", "{}")]
