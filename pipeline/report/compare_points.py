"""Compare points from Python: `compare(gpu="V100,T4", model="resnet50", batch_size="32,64")`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.answers.predict_grid import Answer, predict_points
from pipeline.answers.predict_grid import in_order as answers_in_order
from pipeline.answers.predict_point import points_of
from pipeline.config import Point
from pipeline.errors import SteptimeWarning
from pipeline.prices import prices_of
from pipeline.report.comparison_table import Comparison, Unpredicted


def compare(gpu: str = "V100", model: str = "dlrm_default", **overrides: Any) -> Comparison:
    """Predict several points side by side, as `steptime compare` does.

    Args:
        gpu: names or aliases of GPUs, separated by commas.
        model: names of workloads, separated by commas.
        overrides: any other override, as for `predict_grid`.

    Returns:
        The comparison: `table` (a DataFrame), `best` (a prediction per model), `plot()`; in a notebook it shows itself.

    Raises:
        SteptimeError: a name or value does not exist, or no point can be predicted.
    """
    points = points_of(gpu, model, overrides)
    found = compared(points, predict_points(points))
    for text in dict.fromkeys(text for each in found.predictions for text in each.warnings):
        warnings.warn(text, SteptimeWarning, stacklevel=2)
    return found


def compared(points: Sequence[Point], answers: Iterable[Answer]) -> Comparison:
    """The answers of points side by side, in the order of the points.

    Raises:
        SteptimeError: there is no prediction at all, or the price list is damaged.
    """
    prices = prices_of([point.gpu for point in points])
    found = answers_in_order(points, answers)
    predictions = [each.prediction for each in found if each.prediction is not None]
    if not predictions:
        raise next(each.error for each in found if each.error is not None)
    unpredicted = [Unpredicted.of(each.point, each.reason) for each in found if each.reason is not None]
    return Comparison(predictions, prices=prices, unpredicted=unpredicted)
