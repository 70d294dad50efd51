"""Gradient-boosted trees on derived features (LightGBM), saved in LightGBM's text format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import PackError
from pipeline.kernels.work import Array

REGRESSION_PARAMETERS: dict[str, Any] = {
    "objective": "regression", "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 10, "lambda_l2": 1.0,
    "linear_tree": True, "linear_lambda": 0.5,
    "bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.4, "verbose": -1, "num_threads": 1,
    "deterministic": True, "force_row_wise": True,
}  # fmt: skip
"""LightGBM's parameters for log times, chosen on development shapes of V100, A100 and T4. Linear leaves have smaller
errors than constant ones, in half the time; the squared error is better than L1 and Huber."""

REGRESSION_ROUNDS = 600
"""Boosting rounds for log times."""

CLASSIFIER_PARAMETERS: dict[str, Any] = {
    "objective": "binary", "learning_rate": 0.1, "num_leaves": 127, "min_data_in_leaf": 10, "lambda_l2": 1.0,
    "bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.6, "verbose": -1, "num_threads": 1,
    "deterministic": True, "force_row_wise": True,
}  # fmt: skip
"""LightGBM's parameters for the classifier of kernel candidates (`cublas_choice_teachers`). In cross-validation on the
V100, trees of 31, 63, 127 and 255 leaves choose the right kernel in 63, 66, 68 and 69 % of the shapes. Final errors
with 127 and 255 leaves are nearly equal (1.83 and 1.84 % on a development split), and the fit with 127 takes an eighth
less time."""

CLASSIFIER_ROUNDS = 200
"""Boosting rounds of the classifier of kernel candidates."""


CLEAR_LOG_ODDS = 4.0
"""Log-odds beyond which the remaining trees of a classifier are not evaluated: the answer is clear, 98 to 2.

On 30,000 sizes the evaluation takes a third (V100) to a half (A100) less time, and the most probable kernel is the same
for 99.6 % of them."""

EARLY_STOP: dict[str, Any] = {
    "pred_early_stop": True, "pred_early_stop_freq": 10, "pred_early_stop_margin": 2.0 * CLEAR_LOG_ODDS,
}  # fmt: skip
"""LightGBM's parameters for `CLEAR_LOG_ODDS`. Its margin is twice the log-odds; it is checked every tenth tree."""


@dataclass(frozen=True)
class Trees:
    """A boosted ensemble."""

    booster: Any

    def predict(self, features: Array, table_rows: int = 0) -> Array:
        """Log times of shape (rows,); float64, however many rows the table has."""
        return np.asarray(self.booster.predict(features, num_threads=1), dtype=np.float64)

    def scores(self, features: Array) -> Array:
        """Log-odds of shape (rows,), for trees from `train_classifier`. They stop growing at `CLEAR_LOG_ODDS`."""
        return np.asarray(self.booster.predict(features, num_threads=1, raw_score=True, **EARLY_STOP), dtype=np.float64)

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


def train_fewer_trees(rounds: float, features: Array, target: Array, seed: int) -> Trees:
    """`train_trees` with a factor on the boosting rounds, by which the learning rate is divided."""
    rate = REGRESSION_PARAMETERS["learning_rate"] / rounds
    return train_trees(features, target, seed, round(rounds * REGRESSION_ROUNDS), rate)


def train_classifier(features: Array, true: npt.NDArray[np.bool_], seed: int, rounds: float = 1.0) -> Trees:
    """Train a binary classifier of labels (rows,) on features (rows, columns).

    `rounds` is a factor on the boosting rounds. The learning rate is divided by it.
    """
    import lightgbm

    parameters = {**CLASSIFIER_PARAMETERS, "seed": seed}
    parameters["learning_rate"] /= rounds
    data = lightgbm.Dataset(features, true.astype(np.float64), params={"verbose": -1})
    return Trees(lightgbm.train(parameters, data, round(rounds * CLASSIFIER_ROUNDS)))
