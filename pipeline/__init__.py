"""Steptime: how long one training step takes, on a GPU you may not have.

    from pipeline import advise, load_trace, plan, predict, predict_grid, track

Importing this package loads neither torch nor mlflow. The functions are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.answers.advice import advise
    from pipeline.answers.plan import plan
    from pipeline.answers.predict_grid import predict_grid
    from pipeline.answers.predict_point import predict
    from pipeline.answers.tracker import load_trace, track

__all__ = ["advise", "load_trace", "plan", "predict", "predict_grid", "track"]

_HOMES = {
    "advise": "pipeline.answers.advice",
    "plan": "pipeline.answers.plan",
    "predict": "pipeline.answers.predict_point",
    "predict_grid": "pipeline.answers.predict_grid",
    "load_trace": "pipeline.answers.tracker",
    "track": "pipeline.answers.tracker",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
