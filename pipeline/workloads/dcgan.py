"""DCGAN (Radford et al. 2016) on 64 x 64 images: one step of the discriminator, one of the generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.training_step import Batch, Step, host_empty, is_dry, phase, stored_dtype


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
        layers += [nn.Conv2d(k * width, 2 * k * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * k * width),
                   nn.LeakyReLU(0.2, True)]  # fmt: skip
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a DCGAN; inference runs only the generator."""
    width, size = int(config.get("width", 64)), int(config.get("noise", 100))
    dtype = stored_dtype(config)
    with torch.device(device):
        critic, made = discriminator(width), generator(size, width)
        ones, zeros = torch.ones(batch_size, dtype=dtype), torch.zeros(batch_size, dtype=dtype)
    image = host_empty(batch_size, 3, 64, 64) if is_dry(device) else torch.rand(batch_size, 3, 64, 64) * 2 - 1
    bce = F.binary_cross_entropy_with_logits

    def procedure(batch: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        (real,) = batch
        noise = torch.randn(batch_size, size, 1, 1, device=device, dtype=dtype)
        step.zero_grad(optimizers[:1])
        fake = made_under_autocast(noise)
        for images, target in ((real, ones), (fake.detach(), zeros)):
            _backward(step, critic, bce, images, target)
        _update(optimizers[:1])
        step.zero_grad(optimizers[1:])
        value = _backward(step, critic, bce, fake, ones)
        _update(optimizers[1:])
        step.read(value, "at_end")

    def made_under_autocast(noise: Tensor) -> Tensor:
        with step.autocast(), phase("forward"):
            found: Tensor = made(noise)
        return found

    def generate(image: Tensor) -> Tensor:
        found: Tensor = made(torch.randn(batch_size, size, 1, 1, device=device, dtype=dtype))
        return found

    step = Step([critic, made], [(image,)], generate, None, device, config, procedure=procedure)
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
