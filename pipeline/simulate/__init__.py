"""The critical path: programs, their simulation, timelines and the replay of traces.

`pipeline.simulate` is this package and the public function of the same name: importing any of its modules makes Python
set the package as that attribute of `pipeline`, after which `from pipeline import predict` gives the package. Called, it
predicts.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.prediction import Prediction


class _Callable(ModuleType):
    def __call__(self, gpu: str = "V100", model: str = "dlrm_default", **overrides: Any) -> Prediction:
        """See `pipeline.answers.predict_point.predict`."""
        from pipeline.answers.predict_point import predict

        return predict(gpu, model, **overrides)


sys.modules[__name__].__class__ = _Callable
