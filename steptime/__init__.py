"""Steptime: how long one training step takes, on a GPU you may not have.

    import steptime

    steptime.predict(gpu="A100", model="resnet50").plot()

The code is in the package `pipeline`, beside this one; this package hands on its public names. Importing it loads neither
torch nor mlflow.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline import (
        advise,
        compare,
        draw_step,
        draw_steps,
        load_trace,
        plan,
        plan_sharding,
        predict,
        predict_grid,
        track,
    )
    from pipeline.workloads.training_step import Step

__all__ = [
    "Step",
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

_CODE = Path(__file__).resolve().parents[1] / "pipeline" / "__init__.py"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_not_hidden()
    if name == "Step":
        from pipeline.workloads.training_step import Step

        return Step
    import pipeline

    return getattr(pipeline, name)


def check_not_hidden() -> None:
    """Check that `import pipeline` finds Steptime's code, without running other code of this name.

    Raises:
        ImportError: another module of this name comes first on Python's path.
    """
    loaded = sys.modules.get("pipeline")
    spec = PathFinder.find_spec("pipeline") if loaded is None else loaded.__spec__
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != _CODE:
        where = "a module" if spec is None else spec.origin
        raise ImportError(
            f"steptime: {where} hides Steptime's own package `pipeline`: "
            f"rename that file, uninstall that package, or start "
            "Python in another folder"
        )
