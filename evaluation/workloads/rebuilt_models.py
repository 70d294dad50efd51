"""Models rebuilt to match public traces.

Two purposes:

- comparison of operator sequences with execution traces: a stack of linear layers, and GPT-2 Large of `transformers` 4.4x;
- shapes for Kineto traces that were recorded without shapes: ResNets, AlexNet, and matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.attention_operators import Projection
from pipeline.workloads.language_models import gelu
from pipeline.workloads.training_step import Batch, Step, phase
from pipeline.workloads.vision import RESNET50, resnet


def linear_stack(layers: int = 21, width: int = 1024, batch: int = 512) -> Step:
    """`rtx2080ti_linear`: linear and ReLU layers in turn, softmax, cross entropy; gradients are zeroed after the forward pass."""
    with torch.device("meta"):
        blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
        model = nn.Sequential(*blocks, nn.Softmax(1))

    def procedure(batch_: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        x, label = batch_
        with phase("forward"):
            output = model(x)
        with phase("zero_grad"):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
        with phase("loss"):
            value = F.cross_entropy(output, label)
        with phase("backward"):
            value.backward()  # type: ignore[no-untyped-call]
        with phase("optimizer"):
            optimizers[0].step()

    inputs = (
        torch.empty(batch, width, device="meta"),
        torch.empty(batch, dtype=torch.long, device="meta"),
    )
    return Step([model], [inputs], model, None, "meta", {"optimizer": "sgd"}, procedure=procedure)


class Block(nn.Module):
    """Attention and MLP with residuals, in the order of `transformers` 4.4x."""

    def __init__(self, width: int, heads: int, positions: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = Projection(width, 3 * width), Projection(width, width)
        self.up, self.down = Projection(width, 4 * width), Projection(4 * width, width)
        self.drop = nn.Dropout(0.1)
        self.bias: Tensor
        mask = torch.ones(positions, positions, dtype=torch.bool).view(1, 1, positions, positions)
        self.register_buffer("bias", mask, persistent=False)

    def _split(self, x: Tensor) -> Tensor:
        return x.view((*x.size()[:-1], self.heads, self.width // self.heads)).permute(0, 2, 1, 3)

    def _attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).split(self.width, dim=2)
        q, k, v = self._split(q), self._split(k), self._split(v)
        weights = torch.matmul(q, k.transpose(-1, -2))
        weights = weights / torch.full(
            [], v.size(-1) ** 0.5, dtype=weights.dtype, device=weights.device
        )
        queries, keys = q.size(-2), k.size(-2)
        causal = self.bias[:, :, keys - queries : keys, :keys]
        lowest = torch.full(
            [], torch.finfo(weights.dtype).min, dtype=weights.dtype, device=weights.device
        )
        weights = torch.where(causal, weights.to(weights.dtype), lowest)
        weights = self.drop(F.softmax(weights, dim=-1).type(v.dtype))
        merged = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous()
        out: Tensor = self.drop(self.out(merged.view(*merged.size()[:-2], self.width)))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states (samples, tokens, width) -> the same shape."""
        x = self._attend(self.ln1(x)) + x
        out: Tensor = x + self.drop(self.down(gelu(self.up(self.ln2(x)))))
        return out


class Gpt2(nn.Module):
    """GPT-2 with its language-model head tied to the token embedding; returns the loss."""

    def __init__(
        self, width: int = 1280, layers: int = 36, heads: int = 20, positions: int = 1024
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50257, width), nn.Embedding(positions, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, heads, positions) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, 50257, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Loss of predicting each next token of `ids` (samples, tokens)."""
        shape = ids.size()
        ids = ids.view(-1, shape[-1])
        position = torch.arange(0, shape[-1], dtype=torch.long, device=ids.device).unsqueeze(0)
        x = self.drop(self.tokens(ids) + self.positions(position))
        for block in self.blocks:
            x = block(x)
        x = self.ln(x).view((-1, shape[-1], x.size(-1)))
        logits = self.head(x)
        labels = ids.to(logits.device)
        shifted, wanted = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        return F.cross_entropy(shifted.view(-1, shifted.size(-1)), wanted.view(-1))


def gpt2_large(tokens: int = 512) -> Step:
    """`gpt2_et`: one step, the first of its optimizer."""
    with torch.device("meta"):
        model = Gpt2()
    ids = torch.empty(1, tokens, dtype=torch.long, device="meta")
    return Step([model], [(ids,)], model, None, "meta", {"optimizer": "adam"})


def resnet18(batch: int = 128) -> Step:
    """`rtx2080ti_resnet`: torchvision's ResNet-18; its copies hold 77,070,336 bytes of images and 1,024 of labels."""
    with torch.device("meta"):
        model = resnet((2, 2, 2, 2), False, 1, 64)
    images = (
        torch.empty(batch, 3, 224, 224, device="meta"),
        torch.empty(batch, dtype=torch.long, device="meta"),
    )
    step = Step(
        [model],
        [images],
        lambda x, y: model(x),
        lambda z, x, y: F.cross_entropy(z, y),
        "meta",
        {"optimizer": "sgd_momentum"},
    )
    step.optimizers[0].param_groups[0]["weight_decay"] = (
        1e-4  # the trace shows weight decay as `_foreach_add`
    )
    return step


def resnet50(batch: int = 32) -> Step:
    """`v100_ddp`: torchvision's ResNet-50 on 32 images of 224 pixels.

    The grids of the matrix products imply 32 images. SGD with momentum; the targets of the loss are probabilities.
    """
    with torch.device("meta"):
        model = resnet(*RESNET50)
    images = torch.empty(batch, 3, 224, 224, device="meta"), torch.empty(batch, 1000, device="meta")
    return Step(
        [model],
        [images],
        lambda x, y: model(x),
        lambda z, x, y: F.cross_entropy(z, y),
        "meta",
        {"optimizer": "sgd_momentum"},
    )


def alexnet(batch: int = 128) -> Step:
    """`a100_alexnet`: torchvision's AlexNet, created on the host, copied, and run twice in training mode."""
    images = torch.empty(batch, 3, 224, 224, device="meta")

    def procedure(_: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        model = _alexnet()
        model.to("meta")
        x = torch.empty(
            batch, 3, 224, 224, device="meta"
        ).uniform_()  # torch.rand, which has no nested operator on the meta device
        for _number in range(2):
            model(x)

    return Step(
        [nn.Identity()],
        [(images,)],
        lambda x: x,
        None,
        "meta",
        {"optimizer": "none"},
        procedure=procedure,
    )


def three_products(width: int = 1024) -> Step:
    """`a100_event_sync`: three products of square matrices, each on its own stream.

    The width 1024 follows from the grid, 8 x 16 tiles of 128 x 64, and from the time, 123 us at the GPU's 17 TFLOP/s.
    """
    a, b = (torch.empty(width, width, device="meta") for _ in range(2))

    def procedure(_: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        for _number in range(3):
            torch.matmul(a, b)

    return Step(
        [nn.Identity()],
        [(a,)],
        lambda x: x,
        None,
        "meta",
        {"optimizer": "none"},
        procedure=procedure,
    )


SHAPES = {
    "rtx2080ti_resnet": resnet18,
    "v100_ddp": resnet50,
    "a100_alexnet": alexnet,
    "a100_event_sync": three_products,
}
"""Traces without shapes, and the function that rebuilds the model of each."""


def _alexnet() -> nn.Module:
    sizes = [
        (3, 64, 11, 4, 2),
        (64, 192, 5, 1, 2),
        (192, 384, 3, 1, 1),
        (384, 256, 3, 1, 1),
        (256, 256, 3, 1, 1),
    ]
    layers: list[nn.Module] = []
    for i, size in enumerate(sizes):
        layers += [nn.Conv2d(*size), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(3, 2)] if i in (0, 1, 4) else []
    layers += [
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(9216, 4096),
        nn.ReLU(inplace=True),
    ]
    layers += [nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers)
