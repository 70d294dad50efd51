"""ResNet-50 (He et al. 2016) and Inception v3 (Szegedy et al. 2016) in plain PyTorch, in torchvision's sizes."""

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


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1 with a shortcut around them; the 3x3 convolution has the stride."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, 4·width, H/stride, W/stride)."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        out: Tensor = self.relu(y)
        return out


class ResNet50(nn.Module):
    """Four stages of 3, 4, 6 and 3 bottlenecks."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        inputs = 64
        for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            for block in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, 224, 224) -> logits (B, classes)."""
        y = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(self.blocks(y)), 1))
        return logits


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of an image classifier on random images."""
    resnet = config["architecture"] == "resnet"
    classes, side = int(config.get("classes", 1000)), int(config.get("image_size", 224 if resnet else 299))
    with torch.device(device):
        model: nn.Module = ResNet50(classes) if resnet else InceptionV3(classes)
    dry = is_dry(device)
    image = host_empty(batch_size, 3, side, side) if dry else torch.rand(batch_size, 3, side, side)
    label = host_empty(batch_size, dtype=torch.long) if dry else torch.randint(classes, (batch_size,))

    def loss(output: Any, image: Tensor, label: Tensor) -> Tensor:
        if isinstance(output, Tensor):
            return F.cross_entropy(output, label)
        return F.cross_entropy(output[0], label) + AUXILIARY_WEIGHT * F.cross_entropy(output[1], label)

    return Step([model], [(image, label)], lambda x, y: model(x), loss, device, config)
