"""BERT, GPT-2 (also in GPT-3's sizes) and OPT from the `transformers` library, with random weights.

The heads are those of the public measurements:

* BERT has its pre-training heads in training, and a classification head with two labels in inference.
* GPT and OPT have a language-model head.

Sequences have full length. BERT's eager attention still adds a mask, as it does for the output of tokenizers.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from pipeline.errors import ConfigError, InputError
from pipeline.workloads.training_step import Step, host_empty, is_dry


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a language model on random tokens."""
    tokens, vocabulary = int(config["seq_len"]), int(config["vocabulary"])
    positions = int(config.get("positions", tokens))
    if tokens > positions:
        raise ConfigError(f"model.seq_len={tokens}: {config.get('name')} has {positions} positions (model.positions)")
    with torch.device(device):
        model = make_model(config)
    training = config.get("mode", "train") == "train"
    bert = config["architecture"] == "bert"
    dry = is_dry(device)
    ids = host_empty(batch_size, tokens, dtype=torch.long) if dry else torch.randint(vocabulary, (batch_size, tokens))
    pool = {"input_ids": ids}
    if bert and training:
        pool["next_sentence_label"] = (
            host_empty(batch_size, dtype=torch.long) if dry else torch.randint(2, (batch_size,))
        )
    if bert and config.get("attention", "eager") == "eager" and _takes_ready_masks():
        pool["attention_mask"] = host_empty(batch_size, 1, 1, tokens) if dry else torch.zeros(batch_size, 1, 1, tokens)

    def forward(*batch: Tensor) -> Any:
        inputs = dict(zip(pool, batch, strict=True))
        labels = {"labels": inputs["input_ids"]} if training else {}
        with whole_sequences():
            output = model(**inputs, **labels)
        return output.loss if training else output.logits

    return Step([model], [tuple(pool.values())], forward, None, device, config)


def _takes_ready_masks() -> bool:
    """Whether BERT uses a given additive mask unchanged; older versions compute their own mask for every batch."""
    return importlib.util.find_spec("transformers.masking_utils") is not None


@contextmanager
def whole_sequences() -> Iterator[None]:
    """While the body runs, `transformers` does not read two facts from the device, for which the host would wait.

    * Whether sequences are packed: they are not.
    * Whether a mask hides any token: a mask that a step gives is assumed to do so, as in a batch with padding.
    """
    masking_utils: Any = importlib.import_module("transformers.masking_utils") if _takes_ready_masks() else None
    with ExitStack() as stack:
        if hasattr(masking_utils, "find_packed_sequence_indices"):
            packed = mock.patch.object(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)
            stack.enter_context(packed)
        if hasattr(masking_utils, "is_tracing"):
            asked = masking_utils.is_tracing

            def is_tracing(tensor: Tensor | None = None) -> bool:
                return bool(asked(tensor)) or (tensor is not None and tensor.device.type == "meta")

            stack.enter_context(mock.patch.object(masking_utils, "is_tracing", is_tracing))
        yield


def make_model(config: Mapping[str, Any]) -> nn.Module:
    """Make the Hugging Face model of a config.

    Raises:
        InputError: `transformers` is not installed.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        hf: Any = importlib.import_module("transformers")
    except ImportError:
        raise InputError(f"model {config.get('name')} needs transformers: pip install 'transformers>=4.45'") from None
    attention = "eager" if config.get("attention", "eager") == "eager" else "sdpa"
    width, layers, heads = (int(config[key]) for key in ("width", "layers", "heads"))
    vocabulary, positions = int(config["vocabulary"]), int(config.get("positions", config["seq_len"]))
    training = config.get("mode", "train") == "train"
    if config["architecture"] == "bert":
        sizes = hf.BertConfig(vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_labels=2,
                              num_attention_heads=heads, intermediate_size=4 * width, max_position_embeddings=positions,
                              attn_implementation=attention)  # fmt: skip
        bert: nn.Module = (hf.BertForPreTraining if training else hf.BertForSequenceClassification)(sizes)
        return bert
    if config["architecture"] == "opt":
        sizes = hf.OPTConfig(vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, ffn_dim=4 * width,
                             num_attention_heads=heads, max_position_embeddings=positions, use_cache=False,
                             word_embed_proj_dim=width, attn_implementation=attention)  # fmt: skip
        opt: nn.Module = hf.OPTForCausalLM(sizes)
        return opt
    sizes = hf.GPT2Config(vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=heads, n_positions=positions,
                          use_cache=False, attn_implementation=attention)  # fmt: skip
    gpt: nn.Module = hf.GPT2LMHeadModel(sizes)
    return gpt
