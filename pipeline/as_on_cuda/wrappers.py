"""Wrappers that a capture sees through: models distributed over GPUs, and compiled code.

The constructor of `DistributedDataParallel` needs a process group and compares weights between ranks. A capture has
neither. The forward pass of the wrapper is that of the module. Code inside `torch.compile` runs uncompiled.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeline.as_on_cuda.data_parallel import exchanges_recorded
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.recording_group import is_recording
from pipeline.as_on_cuda.shape_operators import is_empty
from pipeline.as_on_cuda.sync_batch_norm import norms_of_all_ranks
from pipeline.errors import SteptimeWarning

_TORCH = str(Path(torch.__file__).parent)


@contextmanager
def unwrapped() -> Iterator[None]:
    """While the body runs, `DistributedDataParallel` around a module without data only holds it, and warns about it.

    In a step of several ranks it exchanges gradients (`data_parallel`), and `SyncBatchNorm` its sums.
    """
    if is_recording():
        with exchanges_recorded(), norms_of_all_ranks():
            yield
        return
    kind: Any = DistributedDataParallel
    init, forward, no_sync = kind.__init__, kind.forward, kind.no_sync

    def begin(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not _without_data(module):
            init(self, module, *args, **kwargs)
            return
        nn.Module.__init__(self)
        self.module = module
        warnings.warn(
            "DistributedDataParallel: the step of one GPU is predicted, without the exchange of gradients",
            SteptimeWarning,
            stacklevel=2,
        )

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs) if _without_data(self.module) else forward(self, *args, **kwargs)

    def without_exchange(self: Any) -> Any:
        return nullcontext() if _without_data(self.module) else no_sync(self)

    with replaced(kind, __init__=begin, forward=run, no_sync=without_exchange):
        yield


def _without_data(module: nn.Module) -> bool:
    first: Tensor | None = next(module.parameters(), None)
    return first is not None and is_empty(first)


@contextmanager
def compiled_as_written() -> Iterator[None]:
    """While the body runs, `torch.compile` warns that the prediction is of the code as it is written.

    Calls from installed libraries do not warn: many of them compile functions that the step never calls.
    """
    usual: Any = torch.compile

    def reported(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_TORCH):  # such as `Module.compile`
            frame = frame.f_back
        if "site-packages" not in frame.f_code.co_filename:
            warnings.warn(
                "torch.compile: predicted is the code as it is written; compiled code has fewer kernels and is faster",
                SteptimeWarning,
                stacklevel=2,
            )
        return usual(*args, **kwargs)

    with replaced(torch, compile=reported):
        yield
