"""Gradient-boosted trees on derived features (LightGBM), saved in LightGBM's text format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import PackError
from pipeline.kernels.work import Array

REGRESSION_PARAMETERS: dict[str, Any] = {
    "objective": "regression", "learning_rate": 0.15, "num_leaves": 31, "min_data_in_leaf": 10, "lambda_l2": 1.0,
    "linear_tree": True, "linear_lambda": 0.5,
    "bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.4, "verbose": -1, "num_threads": 1,
    "deterministic": True, "force_row_wise": True,
}  # fmt: skip
"""LightGBM's parameters for log times, chosen on development shapes of V100, A100 and T4. Linear leaves have smaller
errors than constant ones, in half the time; the squared error is better than L1 and Huber."""

REGRESSION_ROUNDS = 200
"""Boosting rounds for log times."""


@dataclass(frozen=True)
class Trees:
    """A boosted ensemble."""

    booster: Any

    def predict(self, features: Array, table_rows: int = 0) -> Array:
        """Log times of shape (rows,); float64, however many rows the table has."""
        return np.asarray(self.booster.predict(features, num_threads=1), dtype=np.float64)

    def text(self) -> str:
        """The trees in LightGBM's portable text format."""
        return str(self.booster.model_to_string())

    @classmethod
    def from_text(cls, text: str) -> Trees:
        """Rebuild from the string of `text`.

        Raises:
            PackError: the text is not a LightGBM model.
        """
        import lightgbm

        try:
            return cls(lightgbm.Booster(model_str=text))
        except lightgbm.basic.LightGBMError as error:
            raise PackError(f"not a LightGBM model ({str(error).splitlines()[0]}); rebuild the model") from None


def train_trees(
    features: Array, target: Array, seed: int, rounds: int | None = None, learning_rate: float | None = None
) -> Trees:
    """Boost trees on features (rows, columns) and log times (rows,).

    Rounds and learning rate are `REGRESSION_ROUNDS` and that of `REGRESSION_PARAMETERS` by default.
    """
    import lightgbm

    parameters = {**REGRESSION_PARAMETERS, "seed": seed}
    if learning_rate is not None:
        parameters["learning_rate"] = learning_rate
    if len(target) < 10 * parameters["min_data_in_leaf"]:
        parameters |= {"min_data_in_leaf": 1, "num_leaves": 7, "linear_tree": False}
    data = lightgbm.Dataset(
        features, np.asarray(target),
        params={"verbose": -1, "min_data_in_bin": 1, "linear_tree": parameters["linear_tree"]},
    )  # fmt: skip
    return Trees(lightgbm.train(parameters, data, rounds or REGRESSION_ROUNDS))
