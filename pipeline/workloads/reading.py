"""Reading the loss on the host (`loss.item()`), for which the host waits until the device has caught up.

Loops that only log read at the end of a step; facebookresearch/dlrm reads before the backward pass. Where nothing is
computed there is no value to read: an operator of ours stands for it, and capture names it as CUDA runs record it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.workloads.standin import is_fake, meta_operators


def read(value: Tensor) -> None:
    """Read a tensor of one element on the host."""
    if value.device.type == "meta" or is_fake(value):
        with torch.no_grad():
            _operators().read(value)
    else:
        value.item()


@cache
def _operators() -> Any:
    """The operator of the meta device, registered when first needed."""
    return meta_operators("steptime_loss", {"read(Tensor value) -> ()": lambda value: None})
