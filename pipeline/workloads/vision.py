"""Residual networks, Inception v3 and DCGAN in plain PyTorch.

* Residual networks (He et al. 2016) and Inception v3 (Szegedy et al. 2016, "Rethinking the Inception Architecture") have
  torchvision's sizes, and give the same device calls (`tests/workloads/test_torchvision.py`). torchvision is not used:
  predictions would depend on its version, and a build for another torch fails when it is imported.
* DCGAN (Radford et al. 2016) makes images of 64 x 64 pixels: one step of the discriminator, one of the generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.training_step import Batch, Step, host_empty, is_dry, phase, stored_dtype

AUXILIARY_WEIGHT = 0.4
"""Weight of the auxiliary head's loss, without unit (Szegedy et al. 2016; torchvision's training uses this value)."""

RESNET50 = ((3, 4, 6, 3), True, 1, 64)
"""Arguments of `resnet`."""


class Residual(nn.Module):
    """Two 3x3 convolutions, or a bottleneck of 1x1, 3x3 and 1x1, with a shortcut; the first 3x3 has the stride."""

    def __init__(
        self, inputs: int, width: int, outputs: int, stride: int, bottleneck: bool, groups: int
    ) -> None:
        super().__init__()
        plan = [
            (inputs, width, 1, 1, 1),
            (width, width, 3, stride, groups),
            (width, outputs, 1, 1, 1),
        ]
        if not bottleneck:
            plan = [(inputs, outputs, 3, stride, 1), (outputs, outputs, 3, 1, 1)]
        layers: list[nn.Module] = []
        for position, (c, k, edge, step, count) in enumerate(plan):
            conv = nn.Conv2d(c, k, edge, step, edge // 2, groups=count, bias=False)
            layers += [conv, nn.BatchNorm2d(k)] + (
                [nn.ReLU(inplace=True)] if position < len(plan) - 1 else []
            )
        self.body = nn.Sequential(*layers)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H/stride, W/stride)."""
        y = self.body(x)
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


def resnet(
    counts: tuple[int, ...], bottleneck: bool, groups: int, base: int, classes: int = 1000
) -> nn.Module:
    """A residual network.

    Args:
        counts: blocks per stage.
        bottleneck: whether they are bottleneck blocks.
        groups: number of groups of the 3x3 convolution of a bottleneck.
        base: width of a group in the first stage.
        classes: number of logits.
    """
    stem = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, count in enumerate(counts):
        outputs = (256 if bottleneck else 64) * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            blocks.append(
                Residual(inputs, groups * base * 2**stage, outputs, stride, bottleneck, groups)
            )
            inputs = outputs
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)
    )


Size = int | tuple[int, int]


class Conv(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: Size, stride: int = 1, padding: Size = 0
    ) -> None:
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

    def __init__(self, before: nn.Module, width: int) -> None:
        super().__init__()
        self.before = before
        self.wide = Conv(width, 384, (1, 3), padding=(0, 1))
        self.high = Conv(width, 384, (3, 1), padding=(1, 0))

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


ACROSS = ((1, 7), 1, (0, 3))
DOWN = ((7, 1), 1, (3, 0))
"""Kernel, stride and padding of a 7x7 convolution in two factors."""


def chain(inputs: int, *plan: tuple[Any, ...]) -> nn.Sequential:
    """Convolutions one after another; each of the plan has outputs, kernel, and stride and padding if not 1 and 0."""
    layers = []
    for outputs, *rest in plan:
        layers.append(Conv(inputs, outputs, *rest))
        inputs = outputs
    return nn.Sequential(*layers)


def block_a(inputs: int, pooled: int) -> Branches:
    """A block for images of 35 x 35 pixels."""
    return Branches(
        Conv(inputs, 64, 1),
        chain(inputs, (48, 1), (64, 5, 1, 2)),
        chain(inputs, (64, 1), (96, 3, 1, 1), (96, 3, 1, 1)),
        AveragePooled(inputs, pooled),
    )


def block_b(inputs: int) -> Branches:
    """A block that reduces images from 35 x 35 to 17 x 17 pixels."""
    double = chain(inputs, (64, 1), (96, 3, 1, 1), (96, 3, 2))
    return Branches(Conv(inputs, 384, 3, 2), double, nn.MaxPool2d(3, 2))


def block_c(inputs: int, width: int) -> Branches:
    """A block for images of 17 x 17 pixels, with factorised 7x7 convolutions."""
    across = (width, *ACROSS)
    down = (width, *DOWN)
    return Branches(
        Conv(inputs, 192, 1),
        chain(inputs, (width, 1), across, (192, *DOWN)),
        chain(inputs, (width, 1), down, across, down, (192, *ACROSS)),
        AveragePooled(inputs, 192),
    )


def block_d(inputs: int) -> Branches:
    """A block that reduces images from 17 x 17 to 8 x 8 pixels."""
    return Branches(
        chain(inputs, (192, 1), (320, 3, 2)),
        chain(inputs, (192, 1), (192, *ACROSS), (192, *DOWN), (192, 3, 2)),
        nn.MaxPool2d(3, 2),
    )


def block_e(inputs: int) -> Branches:
    """A block for images of 8 x 8 pixels."""
    return Branches(
        Conv(inputs, 320, 1),
        Forked(chain(inputs, (384, 1)), 384),
        Forked(chain(inputs, (448, 1), (384, 3, 1, 1)), 384),
        AveragePooled(inputs, 192),
    )


class Auxiliary(nn.Module):
    """The classifier on the 17 x 17 features, used in training."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.conv0 = Conv(inputs, 128, 1)
        self.conv1 = Conv(128, 768, 5)
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
            Conv(3, 32, 3, stride=2),
            Conv(32, 32, 3),
            Conv(32, 64, 3, padding=1),
            nn.MaxPool2d(3, 2),
            Conv(64, 80, 1),
            Conv(80, 192, 3),
            nn.MaxPool2d(3, 2),
        )
        self.middle = nn.Sequential(
            *(block_a(*sizes) for sizes in ((192, 32), (256, 64), (288, 64))),
            block_b(288),
            *(block_c(768, width) for width in (128, 160, 160, 192)),
        )
        self.auxiliary = Auxiliary(768, classes)
        self.late = nn.Sequential(block_d(768), block_e(1280), block_e(2048))
        self.dropout = nn.Dropout()
        self.fc = nn.Linear(2048, classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """(B, 3, 299, 299) -> logits (B, classes); in training also the logits of the auxiliary head."""
        y = self.middle(self.stem(x))
        auxiliary = self.auxiliary(y) if self.training else None
        y = F.adaptive_avg_pool2d(self.late(y), (1, 1))
        logits: Tensor = self.fc(torch.flatten(self.dropout(y), 1))
        return logits if auxiliary is None else (logits, auxiliary)


def build_classifier(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of an image classifier on random images."""
    residual = config["architecture"] == "resnet"
    classes = int(config.get("classes", 1000))
    side = int(config.get("image_size", 224 if residual else 299))
    with torch.device(device):
        model = resnet(*RESNET50, classes) if residual else InceptionV3(classes)
    dry = is_dry(device)
    image = host_empty(batch_size, 3, side, side) if dry else torch.rand(batch_size, 3, side, side)
    label = (
        host_empty(batch_size, dtype=torch.long) if dry else torch.randint(classes, (batch_size,))
    )

    def loss(output: Any, image: Tensor, label: Tensor) -> Tensor:
        if isinstance(output, Tensor):
            return F.cross_entropy(output, label)
        return F.cross_entropy(output[0], label) + AUXILIARY_WEIGHT * F.cross_entropy(
            output[1], label
        )

    return Step([model], [(image, label)], lambda x, y: model(x), loss, device, config)


def generator(noise: int, width: int) -> nn.Sequential:
    """(B, noise, 1, 1) -> (B, 3, 64, 64)."""
    layers: list[nn.Module] = []
    sizes = [noise, 8 * width, 4 * width, 2 * width, width]
    for i, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False)):
        layers += [
            nn.ConvTranspose2d(a, b, 4, 2 if i else 1, 1 if i else 0, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(True),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(width: int) -> nn.Sequential:
    """(B, 3, 64, 64) -> logits (B,)."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
    for k in (1, 2, 4):
        layers += [
            nn.Conv2d(k * width, 2 * k * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * k * width),
            nn.LeakyReLU(0.2, True),
        ]
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def build_dcgan(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a DCGAN; inference runs only the generator."""
    width = int(config.get("width", 64))
    size = int(config.get("noise", 100))
    dtype = stored_dtype(config)
    with torch.device(device):
        critic = discriminator(width)
        painter = generator(size, width)
        ones = torch.ones(batch_size, dtype=dtype)
        zeros = torch.zeros(batch_size, dtype=dtype)
    image = (
        host_empty(batch_size, 3, 64, 64)
        if is_dry(device)
        else torch.rand(batch_size, 3, 64, 64) * 2 - 1
    )
    bce = F.binary_cross_entropy_with_logits

    def procedure(batch: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        (real,) = batch
        noise = torch.randn(batch_size, size, 1, 1, device=device, dtype=dtype)
        step.zero_grad(optimizers[:1])
        fake = painted(noise)
        for images, target in ((real, ones), (fake.detach(), zeros)):
            _backward(step, critic, bce, images, target)
        _update(optimizers[:1])
        step.zero_grad(optimizers[1:])
        value = _backward(step, critic, bce, fake, ones)
        _update(optimizers[1:])
        step.read(value, "at_end")

    def painted(noise: Tensor) -> Tensor:
        with step.autocast(), phase("forward"):
            images: Tensor = painter(noise)
        return images

    def generate(image: Tensor) -> Tensor:
        images: Tensor = painter(torch.randn(batch_size, size, 1, 1, device=device, dtype=dtype))
        return images

    step = Step([critic, painter], [(image,)], generate, None, device, config, procedure=procedure)
    return step


def _update(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    with phase("optimizer"):
        for optimizer in optimizers:
            optimizer.step()


def _backward(step: Step, critic: nn.Module, criterion: Any, images: Tensor, target: Tensor) -> Any:
    """Run the forward and backward pass of one loss and return the loss."""
    with step.autocast():
        with phase("forward"):
            logits = critic(images)
        with phase("loss"):
            value = criterion(logits, target)
    step.read(value, "before_backward")
    with phase("backward"):
        value.backward()
    return value
