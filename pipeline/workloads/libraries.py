"""What the builders of models of other libraries share: names, imports, modules without weights, errors.

`model=timm`, `torchvision` and `transformers` build a model by its name: no weights are loaded and no network is used.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.as_on_cuda.patches import replaced
from pipeline.errors import ConfigError, SteptimeWarning
from pipeline.workloads.training_step import host_empty, is_dry

SLOWER = ("falling back", "fast path is not available")
"""Parts of a library's messages which say that it runs reference code, because a package with CUDA kernels is missing."""


def made(make: Callable[[], nn.Module], device: str) -> nn.Module:
    """A module on a device; on the meta device also one whose constructor reads values of tensors.

    Such a module is made on the CPU, and each of its parameters and buffers moves to the meta device when it is registered,
    before it is filled.
    """
    with torch.device(device):
        try:
            return make().to(
                device
            )  # some constructors make a parameter on the CPU, whatever the context says
        except (NotImplementedError, RuntimeError) as error:
            if device != "meta" or "meta" not in str(error):
                raise
    parameter = nn.Module.register_parameter
    buffer = nn.Module.register_buffer

    def register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        on_meta = (
            param
            if param is None or param.is_meta
            else nn.Parameter(param.data.to("meta"), param.requires_grad)
        )
        parameter(self, name, on_meta)

    def register_buffer(
        self: nn.Module, name: str, tensor: Tensor | None, persistent: bool = True
    ) -> None:
        buffer(self, name, tensor if tensor is None else tensor.to("meta"), persistent)

    with replaced(
        nn.Module, register_parameter=register_parameter, register_buffer=register_buffer
    ):
        return make()


def part_of_batch(config: Mapping[str, Any], batch_size: int) -> int:
    """Samples of one forward pass: a batch is accumulated from `model.accumulation` equal parts.

    Raises:
        ConfigError: the batch has no such parts.
    """
    parts = int(config.get("accumulation") or 1) if config.get("mode", "train") == "train" else 1
    if batch_size % parts:
        raise ConfigError(
            f"batch_size={batch_size}: give a multiple of model.accumulation={parts}, its number of"
            " parts"
        )
    return batch_size // parts


def sides(size: Any) -> tuple[int, int]:
    """Height and width of images, from one number or both."""
    both = list(size) if isinstance(size, (list, tuple)) else [size, size]
    return int(both[0]), int(both[-1])


def numbers(*shape: int, device: str) -> Tensor:
    """An input of numbers on the host; without values where nothing is computed."""
    return host_empty(*shape) if is_dry(device) else torch.rand(*shape)


def classes_of(count: int, *shape: int, device: str, dtype: torch.dtype = torch.long) -> Tensor:
    """An input of whole numbers below `count` on the host: labels or tokens."""
    return (
        host_empty(*shape, dtype=dtype)
        if is_dry(device)
        else torch.randint(count, shape, dtype=dtype)
    )


@contextmanager
def slow_code_reported(library: str) -> Iterator[None]:
    """Report that a library runs reference code in place of a package with CUDA kernels; its log shows nothing meanwhile."""
    log = logging.getLogger(library)
    before = log.handlers
    log.handlers = [_SlowCode()]
    with suppress(AttributeError):  # the library says each sentence once in a process
        log.warning_once.cache_clear()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        log.handlers = before


class _SlowCode(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split()).partition(". ")[0]
        if any(part in text.lower() for part in SLOWER):
            warnings.warn(
                f"reference code is predicted, not the faster CUDA package: {text}",
                SteptimeWarning,
                stacklevel=2,
            )
