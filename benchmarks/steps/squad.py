"""BERT fine-tuned on SQuAD: a head for the ends of the answer over 384 tokens, as a step of `model=custom`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.workloads.step import Step, host_empty

TOKENS = 384

SIZES = {"bert_base": (768, 12, 12), "bert_large": (1024, 24, 16)}
"""Width, layers and heads."""


def make_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """The step; `model.options.size` is one of `SIZES`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers as hf

    width, layers, heads = SIZES[config["options"]["size"]]
    sizes = hf.BertConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
                          intermediate_size=4 * width, attn_implementation="eager")  # fmt: skip
    with torch.device(device):
        model = hf.BertForQuestionAnswering(sizes)
    ids, mask = host_empty(batch_size, TOKENS, dtype=torch.long), host_empty(batch_size, 1, 1, TOKENS)
    first, last = (host_empty(batch_size, dtype=torch.long) for _ in range(2))

    def forward(ids: Tensor, mask: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        output = model(input_ids=ids, attention_mask=mask)
        return output.start_logits, output.end_logits

    def loss(output: tuple[Tensor, Tensor], ids: Tensor, mask: Tensor, first: Tensor, last: Tensor) -> Tensor:
        return (nn.functional.cross_entropy(output[0], first) + nn.functional.cross_entropy(output[1], last)) / 2

    return Step([model], [(ids, mask, first, last)], forward, loss, device, config)
