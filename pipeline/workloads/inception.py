"""Layers of Inception v3 (Szegedy et al. 2016, "Rethinking the Inception Architecture"), in torchvision's sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Size = int | tuple[int, int]


class Conv(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: Size, stride: int = 1, padding: Size = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H', W')."""
        return F.relu(self.bn(self.conv(x)), inplace=True)


class AveragePooled(nn.Module):
    """3x3 average pooling, then a 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = Conv(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Same image size."""
        out: Tensor = self.conv(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        return out


class Forked(nn.Module):
    """A chain of convolutions whose result is the input of two parallel convolutions (1x3 and 3x1)."""

    def __init__(self, before: Sequence[nn.Module], width: int) -> None:
        super().__init__()
        self.before = nn.Sequential(*before)
        self.wide, self.high = Conv(width, 384, (1, 3), padding=(0, 1)), Conv(width, 384, (3, 1), padding=(1, 0))

    def forward(self, x: Tensor) -> Tensor:
        """Both results, concatenated."""
        y = self.before(x)
        return torch.cat([self.wide(y), self.high(y)], 1)


class Branches(nn.Module):
    """Parallel branches, concatenated over channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, sum of the branches' channels, H', W')."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def block_a(inputs: int, pooled: int) -> Branches:
    """A block for images of 35 x 35 pixels."""
    return Branches(
        Conv(inputs, 64, 1),
        nn.Sequential(Conv(inputs, 48, 1), Conv(48, 64, 5, padding=2)),
        nn.Sequential(Conv(inputs, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, padding=1)),
        AveragePooled(inputs, pooled),
    )


def block_b(inputs: int) -> Branches:
    """A block that reduces images from 35 x 35 to 17 x 17 pixels."""
    double = nn.Sequential(Conv(inputs, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, stride=2))
    return Branches(Conv(inputs, 384, 3, stride=2), double, nn.MaxPool2d(3, 2))


def block_c(inputs: int, width: int) -> Branches:
    """A block for images of 17 x 17 pixels, with factorised 7x7 convolutions."""
    across: tuple[Size, Size] = ((1, 7), (0, 3))
    down: tuple[Size, Size] = ((7, 1), (3, 0))
    return Branches(
        Conv(inputs, 192, 1),
        nn.Sequential(Conv(inputs, width, 1), Conv(width, width, across[0], padding=across[1]),
                      Conv(width, 192, down[0], padding=down[1])),
        nn.Sequential(Conv(inputs, width, 1), Conv(width, width, down[0], padding=down[1]),
                      Conv(width, width, across[0], padding=across[1]), Conv(width, width, down[0], padding=down[1]),
                      Conv(width, 192, across[0], padding=across[1])),
        AveragePooled(inputs, 192),
    )  # fmt: skip


def block_d(inputs: int) -> Branches:
    """A block that reduces images from 17 x 17 to 8 x 8 pixels."""
    factorised = nn.Sequential(Conv(inputs, 192, 1), Conv(192, 192, (1, 7), padding=(0, 3)),
                               Conv(192, 192, (7, 1), padding=(3, 0)), Conv(192, 192, 3, stride=2))  # fmt: skip
    return Branches(nn.Sequential(Conv(inputs, 192, 1), Conv(192, 320, 3, stride=2)), factorised, nn.MaxPool2d(3, 2))


def block_e(inputs: int) -> Branches:
    """A block for images of 8 x 8 pixels."""
    return Branches(
        Conv(inputs, 320, 1),
        Forked([Conv(inputs, 384, 1)], 384),
        Forked([Conv(inputs, 448, 1), Conv(448, 384, 3, padding=1)], 384),
        AveragePooled(inputs, 192),
    )


class Auxiliary(nn.Module):
    """The classifier on the 17 x 17 features, used in training."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.conv0, self.conv1 = Conv(inputs, 128, 1), Conv(128, 768, 5)
        self.fc = nn.Linear(768, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, 17, 17) -> logits (B, classes)."""
        y = self.conv1(self.conv0(F.avg_pool2d(x, kernel_size=5, stride=3)))
        logits: Tensor = self.fc(torch.flatten(F.adaptive_avg_pool2d(y, (1, 1)), 1))
        return logits


class InceptionV3(nn.Module):
    """Stem, three A, one B, four C, one D and two E blocks, with the auxiliary head."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Conv(3, 32, 3, stride=2), Conv(32, 32, 3), Conv(32, 64, 3, padding=1), nn.MaxPool2d(3, 2),
            Conv(64, 80, 1), Conv(80, 192, 3), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.middle = nn.Sequential(
            block_a(192, 32), block_a(256, 64), block_a(288, 64), block_b(288),
            block_c(768, 128), block_c(768, 160), block_c(768, 160), block_c(768, 192),
        )  # fmt: skip
        self.auxiliary = Auxiliary(768, classes)
        self.late = nn.Sequential(block_d(768), block_e(1280), block_e(2048))
        self.dropout, self.fc = nn.Dropout(), nn.Linear(2048, classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """(B, 3, 299, 299) -> logits (B, classes); in training also the logits of the auxiliary head."""
        y = self.middle(self.stem(x))
        auxiliary = self.auxiliary(y) if self.training else None
        y = F.adaptive_avg_pool2d(self.late(y), (1, 1))
        logits: Tensor = self.fc(torch.flatten(self.dropout(y), 1))
        return logits if auxiliary is None else (logits, auxiliary)
