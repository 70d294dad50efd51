"""Steptime: how long one training step takes, on a GPU you may not have.

    from pipeline import advise, compare, load_trace, plan, predict, predict_grid, track

    predict(gpu="A100", model="resnet50").plot()

Importing this package loads neither torch nor mlflow. The functions are imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline import plotter

if TYPE_CHECKING:
    from pipeline.answers.advice import advise
    from pipeline.answers.plan import plan
    from pipeline.answers.predict import predict, predict_grid
    from pipeline.answers.sharding_plan import plan_sharding
    from pipeline.answers.tracker import load_trace, track
    from pipeline.show.comparison import compare
    from pipeline.show.figures.python_plots import draw_step, draw_steps

__all__ = [
    "advise",
    "compare",
    "draw_step",
    "draw_steps",
    "load_trace",
    "plan",
    "plan_sharding",
    "predict",
    "predict_grid",
    "track",
]

_HOMES = {
    "advise": "pipeline.answers.advice",
    "plan": "pipeline.answers.plan",
    "plan_sharding": "pipeline.answers.sharding_plan",
    "predict": "pipeline.answers.predict",
    "predict_grid": "pipeline.answers.predict",
    "compare": "pipeline.show.comparison",
    "difference": "pipeline.answers.difference",
    "draw_advice": "pipeline.show.figures.waterfall",
    "draw_difference": "pipeline.show.figures.waterfall",
    "draw_roofline": "pipeline.show.figures.roofline",
    "draw_stages": "pipeline.show.figures.pipeline_stages",
    "draw_step": "pipeline.show.figures.python_plots",
    "draw_steps": "pipeline.show.figures.python_plots",
    "load_trace": "pipeline.answers.tracker",
    "module_table": "pipeline.answers.modules",
    "track": "pipeline.answers.tracker",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _at_first_use(name: str) -> Callable[..., Any]:
    return lambda *arguments: __getattr__(name)(*arguments)


for _name in plotter.__annotations__:
    setattr(plotter, _name, _at_first_use(_name))
