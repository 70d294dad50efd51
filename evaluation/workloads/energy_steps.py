"""Networks of Zeus's power traces (NSDI 2023) that no workload has, as steps of `model=custom`: `model.options.network`.

Sizes that the traces do not state are assumptions, named here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.bert import Bert
from pipeline.workloads.training_step import Step, host_empty

TOKENS = {"squad": 384, "sentiment140": 128}
"""Tokens of a sample: the maximum of the question-answering example; for tweets assumed."""
FRAMES, BINS, LETTERS = 1230, 161, 29
"""LibriSpeech's mean of 12.3 s in frames of 10 ms; bins of a spectrum; outputs of a frame."""


class Head(nn.Module):
    """BERT-base with two outputs for each token, or for the first alone."""

    def __init__(self, each_token: bool) -> None:
        super().__init__()
        self.bert, self.out = Bert(768, 12, 12, 30522, 512, fused=False), nn.Linear(768, 2)
        self.each_token = each_token

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, 2) or (B, 2)."""
        hidden = self.bert(ids)
        found: Tensor = self.out(hidden if self.each_token else hidden[:, 0])
        return found


class DeepSpeech2(nn.Module):
    """Two convolutions and five bidirectional LSTM layers of 1,024 (SeanNaren/deepspeech.pytorch)."""

    def __init__(self, width: int = 1024, layers: int = 5) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        sizes = [32 * 41] + [width] * (layers - 1)
        self.rnns = nn.ModuleList(nn.LSTM(size, width, bidirectional=True) for size in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in sizes[1:])
        self.head = nn.Linear(width, LETTERS)

    def forward(self, spectra: Tensor) -> Tensor:
        """(B, 1, bins, frames) -> (frames / 2, B, letters)."""
        x = self.conv(spectra).flatten(1, 2).permute(2, 0, 1)
        for layer, rnn in enumerate(self.rnns):
            if layer:
                x = self.norms[layer - 1](x.reshape(-1, x.shape[2])).view(x.shape)
            both = rnn(x)[0]
            x = both.view(both.shape[0], both.shape[1], 2, -1).sum(2)
        found: Tensor = self.head(x)
        return found


class ShuffleUnit(nn.Module):
    """Unit of ShuffleNetV2 (weiaicunzai/pytorch-cifar100)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, half = stride, outputs // 2
        entering = inputs if stride == 2 else inputs // 2

        def point(a: int) -> list[nn.Module]:
            return [nn.Conv2d(a, half, 1), nn.BatchNorm2d(half), nn.ReLU(inplace=True)]

        def depth(a: int) -> list[nn.Module]:
            return [nn.Conv2d(a, a, 3, stride, 1, groups=a), nn.BatchNorm2d(a)]

        self.main = nn.Sequential(*point(entering), *depth(half), *point(half))
        side = [*depth(entering), *point(entering)] if stride == 2 else []
        self.side = nn.Sequential(*side)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        side, main = (x, x) if self.stride == 2 else x.chunk(2, 1)
        y = torch.cat([self.side(side), self.main(main)], 1)
        return y.view(y.shape[0], 2, -1, *y.shape[2:]).transpose(1, 2).reshape(y.shape)


def shufflenet() -> nn.Module:
    """ShuffleNetV2 for images of 32 pixels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24)]
    width = 24
    for outputs, repeats in ((116, 3), (232, 7), (464, 3)):
        layers += [ShuffleUnit(width, outputs, 2)]
        layers += [ShuffleUnit(outputs, outputs, 1) for _ in range(repeats)]
        width = outputs
    layers += [nn.Conv2d(464, 1024, 1), nn.BatchNorm2d(1024), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 100))


def _answers(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores[..., 0], labels) + F.cross_entropy(scores[..., 1], labels)


def _letters(scores: Tensor, labels: Tensor) -> Tensor:
    """In place of the CTC loss, which takes below 1 % of the step."""
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def make_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """The step of `model.options.network`: squad, sentiment140, deepspeech2 or shufflenetv2."""
    name = str(config["options"]["network"])
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    labels = host_empty(batch_size, dtype=torch.long)
    with torch.device(device):
        if name in TOKENS:
            model: nn.Module = Head(name == "squad")
            batch = host_empty(batch_size, TOKENS[name], dtype=torch.long)
            loss = _answers if name == "squad" else loss
        elif name == "deepspeech2":
            model, batch = DeepSpeech2(), host_empty(batch_size, 1, BINS, FRAMES)
            labels = host_empty((FRAMES - 1) // 2 + 1, batch_size, dtype=torch.long)
            loss = _letters
        else:
            model, batch = shufflenet(), host_empty(batch_size, 3, 32, 32)
    return Step(
        [model],
        [(batch, labels)],
        lambda x, _: model(x),
        lambda scores, _, y: loss(scores, y),
        device,
        config,
    )
