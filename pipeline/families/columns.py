"""Feature columns of learned models: sizes as log2, alignments, and waves of blocks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.arrays import Array

MIN_LOG_ARGUMENT = 1e-9


class Columns:
    """Named feature columns in the order of their appearance."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.arrays: list[Array] = []

    def add(self, name: str, values: npt.ArrayLike) -> None:
        """Append one column."""
        self.names.append(name)
        self.arrays.append(np.asarray(values, dtype=float))

    def log(self, name: str, values: Array) -> None:
        """Append log2 of a positive quantity."""
        self.add(f"log {name}", np.log2(np.maximum(values, MIN_LOG_ARGUMENT)))

    def logs(self, **columns: Array) -> None:
        """Append log2 of several quantities by name."""
        for name, values in columns.items():
            self.log(name, values)

    def stack(self) -> Array:
        """Matrix of shape (rows, columns), with each column in contiguous memory; NaN become 0, infinities 60 or -60."""
        matrix = np.stack(self.arrays)
        if not np.isfinite(matrix).all():
            np.nan_to_num(matrix, copy=False, nan=0.0, posinf=60.0, neginf=-60.0)
        return matrix.T


def alignment(values: Array, largest: int = 5) -> Array:
    """log2 of the largest power of two, up to 2^largest, that divides each value."""
    whole = np.maximum(values, 1.0).astype(np.int64)
    lowest_bit = (whole & -whole).astype(float)
    return np.asarray(np.minimum(np.log2(lowest_bit), largest))


def wave_columns(columns: Columns, label: str, blocks: Array, useful: Array, sms: int) -> None:
    """Add waves at one block per SM, mean occupancy of these waves, and the useful share of the tiles' area."""
    waves = blocks / max(sms, 1)
    columns.log(f"waves {label}", waves)
    columns.log(f"whole waves {label}", np.ceil(waves))
    columns.add(f"wave efficiency {label}", waves / np.maximum(np.ceil(waves), 1.0))
    columns.add(f"tile efficiency {label}", useful)
