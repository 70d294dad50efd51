"""Steps of BERT, GPT-2 (also in GPT-3's sizes) and OPT, with random weights.

The heads are those of the public measurements:

* BERT has its pre-training heads in training, and a classification head with two labels in inference.
* GPT and OPT have a language-model head.

Sequences have full length. BERT's eager attention still adds a mask, as it does for the output of tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.workloads.bert import Bert, Classifier, Pretraining
from pipeline.workloads.decoders import Decoder, next_token_loss
from pipeline.workloads.training_step import Step, host_empty, is_dry


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a language model on random tokens."""
    tokens, vocabulary = int(config["seq_len"]), int(config["vocabulary"])
    positions = int(config.get("positions", tokens))
    if tokens > positions:
        raise ConfigError(f"model.seq_len={tokens}: {config.get('name')} has {positions} positions (model.positions)")
    width, layers, heads = (int(config[key]) for key in ("width", "layers", "heads"))
    if width % heads:
        raise ConfigError(f"model.width={width}: must be a multiple of the number of heads (model.heads={heads})")
    fused = config.get("attention", "eager") == "fused"
    training = config.get("mode", "train") == "train"
    dry = is_dry(device)
    ids = host_empty(batch_size, tokens, dtype=torch.long) if dry else torch.randint(vocabulary, (batch_size, tokens))
    if config["architecture"] != "bert":
        with torch.device(device):
            decoder = Decoder(width, layers, heads, vocabulary, positions, config["architecture"] == "opt", fused)

        def forward(ids: Tensor) -> Tensor:
            logits: Tensor = decoder(ids)
            return next_token_loss(logits, ids) if training else logits

        return Step([decoder], [(ids,)], forward, None, device, config)
    with torch.device(device):
        bert = Bert(width, layers, heads, vocabulary, positions, fused)
        model = Pretraining(bert) if training else Classifier(bert)
    batch: tuple[Tensor, ...] = (ids,)
    if training:
        batch += (host_empty(batch_size, dtype=torch.long) if dry else torch.randint(2, (batch_size,)),)
    if not fused:
        batch += (host_empty(batch_size, 1, 1, tokens) if dry else torch.zeros(batch_size, 1, 1, tokens),)
    return Step([model], [batch], model, None, device, config)
