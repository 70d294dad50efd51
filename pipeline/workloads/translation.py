"""Two translators: the Transformer (Vaswani et al. 2017, base) and a GNMT-like LSTM model (Wu et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.attention import eager_attention, plain_layers
from pipeline.workloads.recurrent import Lstm
from pipeline.workloads.step import Step, host_empty, is_dry


class Translator(nn.Module):
    """`nn.Transformer` with learned positions and an output projection."""

    def __init__(self, width: int, heads: int, layers: int, vocabulary: int, tokens: int, eager: bool) -> None:
        super().__init__()
        self.eager = eager  # said outright, so that nothing compares the mask on the device
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(1, tokens, width))
        self.core = nn.Transformer(width, heads, layers, layers, 4 * width, 0.1, batch_first=True)
        self.out = nn.Linear(width, vocabulary)
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
    """One bidirectional and three more encoder layers, additive attention, four decoder layers with residuals."""

    def __init__(self, width: int, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList([Lstm(width, width, bidirectional=True), Lstm(2 * width, width),
                                      Lstm(width, width), Lstm(width, width)])  # fmt: skip
        self.decoder = nn.ModuleList([Lstm(width, width), *(Lstm(2 * width, width) for _ in range(3))])
        self.query, self.key, self.score = (nn.Linear(width, n, bias=False) for n in (width, width, 1))
        self.drop, self.out = nn.Dropout(dropout), nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(B, T), (B, T) -> logits of each target token, all steps at once (teacher forcing)."""
        x = self.drop(self.source(source))
        for i, layer in enumerate(self.encoder):
            y = layer(self.drop(x) if i else x)
            x = x + y if i > 1 else y
        y = self.decoder[0](self.drop(self.target(target)))
        weights = self.score(torch.tanh(self.query(y).unsqueeze(2) + self.key(x).unsqueeze(1))).squeeze(3).softmax(2)
        context = torch.bmm(weights, x)
        for i, layer in enumerate(list(self.decoder)[1:]):
            z = layer(torch.cat([self.drop(y), context], 2))
            y = y + z if i else z
        logits: Tensor = self.out(y)
        return logits


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """The step of a translator on random tokens."""
    tokens, vocabulary, width = (int(config[key]) for key in ("seq_len", "vocabulary", "width"))
    eager = config["architecture"] == "transformer" and config.get("attention", "eager") == "eager"
    with torch.device(device):
        if config["architecture"] == "gnmt":
            model: nn.Module = Gnmt(width, vocabulary, float(config.get("dropout", 0.2)))
        else:
            model = Translator(width, int(config["heads"]), int(config["layers"]), vocabulary, tokens, eager)
    shape = (batch_size, tokens)
    random = [
        host_empty(*shape, dtype=torch.long) if is_dry(device) else torch.randint(vocabulary, shape) for _ in range(3)
    ]

    def forward(source: Tensor, target: Tensor, label: Tensor) -> Tensor:
        with plain_layers(), eager_attention(eager):
            found: Tensor = model(source, target)
        return found

    def loss(output: Tensor, source: Tensor, target: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), label.flatten())

    return Step([model], [tuple(random)], forward, loss, device, config)
