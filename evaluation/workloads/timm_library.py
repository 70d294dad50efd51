"""Networks of the installed timm library as steps of `model=custom`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from pipeline.workloads.training_step import Step, host_empty

SIDES = {"xception41": 299}
"""Edge of the images in pixels, where it is not `SIDE`."""

SIDE = 224
"""Edge of the images of most networks in timm's benchmark, in pixels."""


def make_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """The training step of a network of timm, `model.options.network`."""
    import timm  # only the benchmark that names this step needs it

    network = config["options"]["network"]
    with torch.device(device):
        model = timm.create_model(network)
    side = SIDES.get(network, SIDE)
    images, labels = host_empty(batch_size, 3, side, side), host_empty(batch_size, dtype=torch.long)
    return Step([model], [(images, labels)], lambda x, y: model(x), lambda z, x, y: F.cross_entropy(z, y), device,
                config)  # fmt: skip
