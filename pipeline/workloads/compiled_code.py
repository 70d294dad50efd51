"""Reports the use of `torch.compile` in a step: the capture runs such code uncompiled."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from pipeline.errors import SteptimeWarning

_TORCH = str(Path(torch.__file__).parent)


@contextmanager
def compiled_as_written() -> Iterator[None]:
    """While the body runs, `torch.compile` warns that the prediction is of the code as it is written.

    Calls from installed libraries do not warn: many of them compile functions that the step never calls.
    """
    usual: Any = torch.compile

    def reported(*given: Any, **named: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_TORCH):  # such as `Module.compile`
            frame = frame.f_back
        if "site-packages" not in frame.f_code.co_filename:
            warnings.warn(
                "torch.compile: predicted is the code as it is written; compiled code has fewer kernels and is faster",
                SteptimeWarning,
                stacklevel=2,
            )
        return usual(*given, **named)

    with mock.patch.object(torch, "compile", reported):
        yield
