"""Residual networks (He et al. 2016) and Inception v3 (Szegedy et al. 2016) in plain PyTorch, in torchvision's sizes.

torchvision's own models would give the same device calls (`tests/workloads/test_torchvision.py`). They are not used where
they are installed: predictions would depend on its version, and a build for another torch fails when it is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.inception import InceptionV3
from pipeline.workloads.training_step import Step, host_empty, is_dry

AUXILIARY_WEIGHT = 0.4
"""Weight of the auxiliary head's loss, without unit (Szegedy et al. 2016; torchvision's training uses this value)."""

RESNET50 = ((3, 4, 6, 3), True, 1, 64)
"""Arguments of `resnet`."""


class Residual(nn.Module):
    """Two 3x3 convolutions, or a bottleneck of 1x1, 3x3 and 1x1, with a shortcut; the first 3x3 has the stride."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, bottleneck: bool, groups: int) -> None:
        super().__init__()
        plan = [(inputs, width, 1, 1, 1), (width, width, 3, stride, groups), (width, outputs, 1, 1, 1)]
        if not bottleneck:
            plan = [(inputs, outputs, 3, stride, 1), (outputs, outputs, 3, 1, 1)]
        layers: list[nn.Module] = []
        for position, (c, k, edge, step, count) in enumerate(plan):
            conv = nn.Conv2d(c, k, edge, step, edge // 2, groups=count, bias=False)
            layers += [conv, nn.BatchNorm2d(k)] + ([nn.ReLU(inplace=True)] if position < len(plan) - 1 else [])
        self.body, self.relu = nn.Sequential(*layers), nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H/stride, W/stride)."""
        y = self.body(x)
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


def resnet(counts: tuple[int, ...], bottleneck: bool, groups: int, base: int, classes: int = 1000) -> nn.Module:
    """A residual network.

    Args:
        counts: blocks per stage.
        bottleneck: whether they are bottleneck blocks.
        groups: number of groups of the 3x3 convolution of a bottleneck.
        base: width of a group in the first stage.
        classes: number of logits.
    """
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, count in enumerate(counts):
        outputs = (256 if bottleneck else 64) * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            blocks.append(Residual(inputs, groups * base * 2**stage, outputs, stride, bottleneck, groups))
            inputs = outputs
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of an image classifier on random images."""
    residual = config["architecture"] == "resnet"
    classes, side = int(config.get("classes", 1000)), int(config.get("image_size", 224 if residual else 299))
    with torch.device(device):
        model = resnet(*RESNET50, classes) if residual else InceptionV3(classes)
    dry = is_dry(device)
    image = host_empty(batch_size, 3, side, side) if dry else torch.rand(batch_size, 3, side, side)
    label = host_empty(batch_size, dtype=torch.long) if dry else torch.randint(classes, (batch_size,))

    def loss(output: Any, image: Tensor, label: Tensor) -> Tensor:
        if isinstance(output, Tensor):
            return F.cross_entropy(output, label)
        return F.cross_entropy(output[0], label) + AUXILIARY_WEIGHT * F.cross_entropy(output[1], label)

    return Step([model], [(image, label)], lambda x, y: model(x), loss, device, config)
