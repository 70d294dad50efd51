"""Two translation models: the Transformer (Vaswani et al. 2017, base) and a GNMT-like LSTM model (Wu et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.torch_names import log_softmax_of_half
from pipeline.workloads.attention_operators import attend
from pipeline.workloads.training_step import Step, host_empty, is_dry


def plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    """softmax(q·kᵀ/√d + mask)·v with two matrix products and a softmax; q, k, v (..., T, D)."""
    scale = scale or 1.0 / math.sqrt(q.shape[-1])
    return attend(
        q, k, v, attn_mask, scale, lambda weights: F.dropout(weights, dropout_p, dropout_p > 0)
    )


@contextmanager
def eager_attention(on: bool) -> Iterator[None]:
    """While the body runs, `F.scaled_dot_product_attention` is computed with separate operators."""
    if not on:
        yield
        return
    with replaced(F, scaled_dot_product_attention=plain_attention):
        yield


@contextmanager
def plain_layers() -> Iterator[None]:
    """While the body runs, `nn.TransformerEncoderLayer` does not use its fused fast path in inference."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class Lstm(nn.LSTM):
    """A batch-first LSTM that returns only its output sequence."""

    def __init__(
        self, inputs: int, hidden: int, layers: int = 1, bidirectional: bool = False
    ) -> None:
        super().__init__(inputs, hidden, layers, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """(B, T, I) -> (B, T, H·directions)."""
        output: Tensor = super().forward(x)[0]
        return output


class Translator(nn.Module):
    """`nn.Transformer` with learned positions and an output projection."""

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int,
        vocabulary: int,
        tokens: int,
        eager: bool,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.eager = (
            eager  # given explicitly, so that PyTorch does not compare the mask on the device
        )
        self.source = nn.Embedding(vocabulary, width)
        self.target = self.source if shared else nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(1, tokens, width))
        self.core = nn.Transformer(width, heads, layers, layers, 4 * width, 0.1, batch_first=True)
        self.out = nn.Linear(width, vocabulary)
        if shared:
            self.out.weight = self.source.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(B, T), (B, T) -> logits of each target token (B, T, vocabulary)."""
        decoded = self.core(
            self.source(source) + self.position,
            self.target(target) + self.position,
            tgt_mask=self.mask,
            tgt_is_causal=not self.eager,
        )
        logits: Tensor = self.out(decoded)
        return logits


class Gnmt(nn.Module):
    """One bidirectional and three more encoder layers, additive attention, four decoder layers with residuals.

    `shared`: source and target have one common embedding. `normalised`: the attention adds a bias to its sums, and
    the weight of its scores is a unit direction times a length, as in NVIDIA's model.
    """

    def __init__(
        self,
        width: int,
        vocabulary: int,
        dropout: float,
        shared: bool = False,
        normalised: bool = False,
    ) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = self.source if shared else nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(
            [
                Lstm(width, width, bidirectional=True),
                *(Lstm(inputs, width) for inputs in (2 * width, width, width)),
            ]
        )
        self.decoder = nn.ModuleList(
            [Lstm(width, width), *(Lstm(2 * width, width) for _ in range(3))]
        )
        self.query, self.key, self.score = (
            nn.Linear(width, n, bias=False) for n in (width, width, 1)
        )
        self.bias = nn.Parameter(torch.zeros(width)) if normalised else None
        self.length = nn.Parameter(torch.full((1,), width**-0.5)) if normalised else None
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(B, T), (B, T) -> logits of each target token, all steps at once (teacher forcing)."""
        x = self.drop(self.source(source))
        for i, layer in enumerate(self.encoder):
            y = layer(self.drop(x) if i else x)
            x = x + y if i > 1 else y
        y = self.decoder[0](self.drop(self.target(target)))
        context = torch.bmm(
            self.scores(self.query(y).unsqueeze(2) + self.key(x).unsqueeze(1)).softmax(2), x
        )
        for i, layer in enumerate(list(self.decoder)[1:]):
            z = layer(torch.cat([self.drop(y), context], 2))
            y = y + z if i else z
        logits: Tensor = self.out(y)
        return logits

    def scores(self, sums: Tensor) -> Tensor:
        """(B, target, source, width) of queries plus keys -> (B, target, source)."""
        if self.bias is None or self.length is None:
            plain: Tensor = self.score(torch.tanh(sums)).squeeze(3)
            return plain
        direction = self.score.weight.squeeze(0)
        return torch.tanh(sums + self.bias).matmul(direction / direction.norm() * self.length)


def smoothed(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Cross entropy with label smoothing: logits (N, vocabulary), labels (N,) -> scalar.

    It combines the label's log-softmax (in fp32) and the mean over all classes. The operators are those of NVIDIA's
    GNMT.
    """
    if logits.dtype is torch.float16 and logits.device.type != "cpu":
        logs = log_softmax_of_half(logits)  # one kernel; in other cases there is a cast before it
    else:
        logs = logits.log_softmax(-1, dtype=torch.float32)
    of_label = -logs.gather(1, labels.unsqueeze(1)).squeeze(1)
    return ((1.0 - smoothing) * of_label - smoothing * logs.mean(1)).mean()


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a translation model on random tokens."""
    tokens, vocabulary, width = (int(config[key]) for key in ("seq_len", "vocabulary", "width"))
    eager = config["architecture"] == "transformer" and config.get("attention", "eager") == "eager"
    shared = bool(config.get("shared_embedding", False))
    smoothing = float(config.get("label_smoothing", 0.0))
    with torch.device(device):
        if config["architecture"] == "gnmt":
            normalised = bool(config.get("normalised_attention", False))
            model: nn.Module = Gnmt(
                width, vocabulary, float(config.get("dropout", 0.2)), shared, normalised
            )
        else:
            model = Translator(
                width,
                int(config["heads"]),
                int(config["layers"]),
                vocabulary,
                tokens,
                eager,
                shared,
            )
    shape = (batch_size, tokens)
    random = [
        host_empty(*shape, dtype=torch.long) if is_dry(device) else torch.randint(vocabulary, shape)
        for _ in range(3)
    ]

    def forward(source: Tensor, target: Tensor, label: Tensor) -> Tensor:
        with plain_layers(), eager_attention(eager):
            logits: Tensor = model(source, target)
        return logits

    def loss(output: Tensor, source: Tensor, target: Tensor, label: Tensor) -> Tensor:
        if smoothing:
            return smoothed(output.flatten(0, 1), label.flatten(), smoothing)
        return F.cross_entropy(output.flatten(0, 1), label.flatten())

    return Step([model], [tuple(random)], forward, loss, device, config)
