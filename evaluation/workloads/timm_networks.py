"""Networks of timm's benchmark as steps of `model=custom`: ResNets, ResNeXt, VGGs and a vision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.training_step import Step, host_empty
from pipeline.workloads.vision import RESNET50, resnet

IMAGE_SIDE, CLASSES = 224, 1000

RESNETS = {
    "resnet18": ((2, 2, 2, 2), False, 1, 64),
    "resnet34": ((3, 4, 6, 3), False, 1, 64),
    "resnet50": RESNET50,
    "resnet101": ((3, 4, 23, 3), True, 1, 64),
    "resnet152": ((3, 8, 36, 3), True, 1, 64),
    "wide_resnet50_2": ((3, 4, 6, 3), True, 1, 128),
    "resnext50_32x4d": ((3, 4, 6, 3), True, 32, 4),
}
"""Arguments of `resnet`."""

VGGS = {"vgg11": (1, 1, 2, 2, 2), "vgg16": (2, 2, 3, 3, 3)}
"""Convolutions per stage."""

TRANSFORMERS = {"vit_base_patch16_224": (768, 12, 12, 16)}
"""Width, number of layers, number of heads, and edge of a patch in pixels."""

NETWORKS = (*RESNETS, *VGGS, *TRANSFORMERS)


def vgg(counts: tuple[int, ...]) -> nn.Module:
    """A VGG without batch norm. The classifier consists of 7 x 7 and 1 x 1 convolutions, as in timm."""
    layers: list[nn.Module] = []
    inputs = 3
    for stage, count in enumerate(counts):
        outputs = min(64 * 2**stage, 512)
        for _ in range(count):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = outputs
        layers.append(nn.MaxPool2d(2, 2))
    head = [nn.Conv2d(512, 4096, 7), nn.ReLU(inplace=True), nn.Conv2d(4096, 4096, 1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *head, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4096, CLASSES))


class TransformerLayer(nn.Module):
    """A layer of a vision transformer; attention scores are stored in memory (not fused), as in 2022."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.ln1, self.ln2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states (images, tokens, width) -> the same shape."""
        images, tokens, width = x.shape
        qkv = self.qkv(self.ln1(x)).reshape(images, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        x = x + self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(images, tokens, width))
        out: Tensor = x + self.mlp(self.ln2(x))
        return out


class VisionTransformer(nn.Module):
    """A vision transformer with a class token."""

    def __init__(self, width: int, layers: int, heads: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (IMAGE_SIDE // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(TransformerLayer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Images -> scores of the classes."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        out: Tensor = self.head(self.layers(x)[:, 0])
        return out


def network(name: str) -> nn.Module:
    """The network with this name in timm."""
    if name in RESNETS:
        return resnet(*RESNETS[name])
    return vgg(VGGS[name]) if name in VGGS else VisionTransformer(*TRANSFORMERS[name])


def make_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """The step; `model.options.network` is one of `NETWORKS`."""
    with torch.device(device):
        model = network(config["options"]["network"])
    images, labels = host_empty(batch_size, 3, IMAGE_SIDE, IMAGE_SIDE), host_empty(batch_size, dtype=torch.long)
    return Step([model], [(images, labels)], lambda x, y: model(x), lambda z, x, y: F.cross_entropy(z, y), device,
                config)  # fmt: skip
