"""Two models of one family: the second predicts the calls that the first does not cover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.kernels.estimate import Estimate, KernelModel, merge


@dataclass(frozen=True)
class FallbackModel(KernelModel):
    """Two models of one family. `first` predicts the rows that it covers, and `other` the rest."""

    first: KernelModel
    other: KernelModel

    @property
    def evidence(self) -> str:
        """Evidence of rows that neither model covers: that of `first`."""
        return self.first.evidence

    def evidence_of(self, calls: pd.DataFrame) -> npt.NDArray[np.object_]:
        """Evidence of each row, shape (rows,)."""
        first, other = self.first.evidence_of(calls), self._others(calls)
        return np.where(other, self.other.evidence_of(calls), first).astype(object) if other.any() else first

    def covers(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Rows that either model covers."""
        first = self.first.covers(calls)
        return first if first.all() else np.asarray(first | self.other.covers(calls))

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Predict each row by its model. Rows that neither covers are predicted by `first`."""
        other = self._others(calls)
        if other.all() and len(other):
            return self.other.predict(calls)
        found = self.first.predict(calls)
        return merge(found, self.other.predict(calls[other]), other) if other.any() else found

    def _others(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        rest = ~self.first.covers(calls)
        return rest if not rest.any() else np.asarray(rest & self.other.covers(calls))


def with_fallback(models: Mapping[str, KernelModel], others: Mapping[str, KernelModel]) -> dict[str, KernelModel]:
    """Models by family. Each model of `others` predicts the calls that the family's own model does not cover, if it has
    one.
    """
    return {
        **models,
        **{name: FallbackModel(models[name], model) if name in models else model for name, model in others.items()},
    }
