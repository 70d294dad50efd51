"""Single layers that others compiled and measured: norms in bf16, and an embedding in fp32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.as_on_cuda.mixed_precision import DTYPES
from pipeline.workloads.training_step import Step, host_empty

BF16 = DTYPES["bf16"]


def make_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """A step of the layer `options.kind` on `batch_size` rows of `options.width`; an embedding has `options.entries` rows.

    The input of a norm takes a gradient, as an activation does.
    """
    options = config["options"]
    kind, width = str(options["kind"]), int(options["width"])
    looks_up = kind == "embedding"
    with torch.device(device):
        if looks_up:
            layer: nn.Module = nn.Embedding(int(options["entries"]), width)
        elif kind == "layer_norm":
            layer = nn.LayerNorm(width, dtype=BF16)
        else:
            layer = nn.RMSNorm(width, dtype=BF16)
    shape = (batch_size,) if looks_up else (batch_size, width)
    x = host_empty(*shape, dtype=torch.long if looks_up else BF16)

    def forward(x: Tensor) -> Any:
        return layer(x if looks_up else x.requires_grad_())

    return Step([layer], [(x,)], forward, lambda output, _: output.sum(), device, config)
