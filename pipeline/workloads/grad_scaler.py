"""Keeps a step's own `GradScaler` enabled during capture, as on a machine with a GPU.

PyTorch disables it if there is no GPU. The scaler multiplies the loss, divides every gradient and searches for
infinities (one more pass over all gradients). Before the optimizer may step, the host waits for the device and reads
whether there were infinities.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.amp.grad_scaler import GradScaler

from pipeline.workloads.loss_item import read


@contextmanager
def own_scaler() -> Iterator[None]:
    """While the body runs, a scaler of a step acts on the meta device as on CUDA; no value overflows."""
    usual, common = GradScaler.__init__, torch.cuda.amp.common

    def begin(self: Any, device: str = "cuda", *given: Any, **named: Any) -> None:
        with mock.patch.object(common, "amp_definitely_not_available", lambda: False):
            usual(self, "cuda" if device == "meta" else device, *given, **named)

    def step(self: Any, optimizer: Any, state: dict[str, Any], *given: Any, **named: Any) -> Any:
        for found in state["found_inf_per_device"].values():
            read(found)
        return optimizer.step(*given, **named)

    with mock.patch.multiple(GradScaler, __init__=begin, _maybe_opt_step=step):
        yield
