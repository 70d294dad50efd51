"""Two translation models: the Transformer (Vaswani et al. 2017, base) and a GNMT-like LSTM model (Wu et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.attention_layers import eager_attention, plain_layers
from pipeline.workloads.recurrent_layers import Lstm
from pipeline.workloads.training_step import Step, host_empty, is_dry


class Translator(nn.Module):
    """`nn.Transformer` with learned positions and an output projection."""

    def __init__(
        self, width: int, heads: int, layers: int, vocabulary: int, tokens: int, eager: bool, shared: bool = False
    ) -> None:
        super().__init__()
        self.eager = eager  # given explicitly, so that PyTorch does not compare the mask on the device
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
            self.source(source) + self.position, self.target(target) + self.position, tgt_mask=self.mask,
            tgt_is_causal=not self.eager,
        )  # fmt: skip
        logits: Tensor = self.out(decoded)
        return logits


class Gnmt(nn.Module):
    """One bidirectional and three more encoder layers, additive attention, four decoder layers with residuals.

    `shared`: source and target have one common embedding. `normalised`: the attention adds a bias to its sums, and
    the weight of its scores is a unit direction times a length, as in NVIDIA's model.
    """

    def __init__(
        self, width: int, vocabulary: int, dropout: float, shared: bool = False, normalised: bool = False
    ) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = self.source if shared else nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList([Lstm(width, width, bidirectional=True), Lstm(2 * width, width),
                                      Lstm(width, width), Lstm(width, width)])  # fmt: skip
        self.decoder = nn.ModuleList([Lstm(width, width), *(Lstm(2 * width, width) for _ in range(3))])
        self.query, self.key, self.score = (nn.Linear(width, n, bias=False) for n in (width, width, 1))
        self.bias = nn.Parameter(torch.zeros(width)) if normalised else None
        self.length = nn.Parameter(torch.full((1,), width**-0.5)) if normalised else None
        self.drop, self.out = nn.Dropout(dropout), nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(B, T), (B, T) -> logits of each target token, all steps at once (teacher forcing)."""
        x = self.drop(self.source(source))
        for i, layer in enumerate(self.encoder):
            y = layer(self.drop(x) if i else x)
            x = x + y if i > 1 else y
        y = self.decoder[0](self.drop(self.target(target)))
        context = torch.bmm(self.scores(self.query(y).unsqueeze(2) + self.key(x).unsqueeze(1)).softmax(2), x)
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
        found = torch._log_softmax(logits, -1, True)  # one kernel; in other cases there is a cast before it
    else:
        found = logits.log_softmax(-1, dtype=torch.float32)
    own = -found.gather(1, labels.unsqueeze(1)).squeeze(1)
    return ((1.0 - smoothing) * own - smoothing * found.mean(1)).mean()


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a translation model on random tokens."""
    tokens, vocabulary, width = (int(config[key]) for key in ("seq_len", "vocabulary", "width"))
    eager = config["architecture"] == "transformer" and config.get("attention", "eager") == "eager"
    shared, smoothing = bool(config.get("shared_embedding", False)), float(config.get("label_smoothing", 0.0))
    with torch.device(device):
        if config["architecture"] == "gnmt":
            normalised = bool(config.get("normalised_attention", False))
            model: nn.Module = Gnmt(width, vocabulary, float(config.get("dropout", 0.2)), shared, normalised)
        else:
            model = Translator(width, int(config["heads"]), int(config["layers"]), vocabulary, tokens, eager, shared)
    shape = (batch_size, tokens)
    random = [
        host_empty(*shape, dtype=torch.long) if is_dry(device) else torch.randint(vocabulary, shape) for _ in range(3)
    ]

    def forward(source: Tensor, target: Tensor, label: Tensor) -> Tensor:
        with plain_layers(), eager_attention(eager):
            found: Tensor = model(source, target)
        return found

    def loss(output: Tensor, source: Tensor, target: Tensor, label: Tensor) -> Tensor:
        if smoothing:
            return smoothed(output.flatten(0, 1), label.flatten(), smoothing)
        return F.cross_entropy(output.flatten(0, 1), label.flatten())

    return Step([model], [tuple(random)], forward, loss, device, config)
