"""The language models against those of the `transformers` library, where a release with known operators is installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.graph.table import Graph
from pipeline.schemas import DIMS
from pipeline.workloads import make_step
from pipeline.workloads.training_step import Step, host_empty
from tests.workloads.small import config_of

CALL = ["family", "op", "phase", "dtype", *DIMS, "flops", "bytes_read", "bytes_written"]
SIZES = {"width": 64, "heads": 2, "vocabulary": 3000, "positions": 320, "seq_len": 256}
"""Sizes at which scores and logits are the largest tensors, as in the real models."""

MODELS = ("bert_large", "gpt2_large", "opt_13")


@pytest.fixture(scope="module", autouse=True)
def library() -> Any:
    """`transformers` of a release whose operators these tests know."""
    pytest.importorskip(
        "torch", minversion="2.13"
    )  # before, slices of whole tensors were operators
    found = pytest.importorskip("transformers")
    if not found.__version__.startswith("5."):
        pytest.skip(f"transformers {found.__version__}: its operators may be others")
    return found


def their_model(config: Mapping[str, Any]) -> nn.Module:
    """The library's model of one of our configurations."""
    import transformers

    hf: Any = transformers
    width, layers, heads, positions = (
        config[name] for name in ("width", "layers", "heads", "positions")
    )
    common: dict[str, Any] = {
        "vocab_size": config["vocabulary"],
        "attn_implementation": "eager" if config["attention"] == "eager" else "sdpa",
    }
    if config["architecture"] == "gpt2":
        sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": positions}
        kind, own = hf.GPT2LMHeadModel, hf.GPT2Config(use_cache=False, **sizes, **common)
        return kind(own)  # type: ignore[no-any-return]
    common |= {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
    }
    if config["architecture"] == "opt":
        sizes = {"ffn_dim": 4 * width, "word_embed_proj_dim": width}
        kind, own = hf.OPTForCausalLM, hf.OPTConfig(use_cache=False, **sizes, **common)
    else:
        trains = config["mode"] == "train"
        kind = hf.BertForPreTraining if trains else hf.BertForSequenceClassification
        own = hf.BertConfig(intermediate_size=4 * width, num_labels=2, **common)
    return kind(own)  # type: ignore[no-any-return]


def their_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """The step of a user who brings the library's model."""
    own = config["options"]
    with torch.device(device):
        model = their_model(own)
    tokens = own["seq_len"]
    training = own["mode"] == "train"
    pool = {"input_ids": host_empty(batch_size, tokens, dtype=torch.long)}
    if own["architecture"] == "bert":
        if training:
            pool["next_sentence_label"] = host_empty(batch_size, dtype=torch.long)
        if own["attention"] == "eager":
            pool["attention_mask"] = host_empty(batch_size, 1, 1, tokens)

    def forward(*batch: Tensor) -> Any:
        given = dict(zip(pool, batch, strict=True))
        output = model(**given, **({"labels": given["input_ids"]} if training else {}))
        return output.loss if training else output.logits

    return Step([model], [tuple(pool.values())], forward, None, device, config)


def captured(name: str, theirs: bool, **changes: Any) -> Graph:
    """The graph of a step with four samples."""
    config = config_of(name, **{**SIZES, "layers": 1, "foreach": False, **changes})
    if theirs:
        own = {"architecture": "custom", "target": f"{__name__}:their_step"}
        config = {**config, **own, "options": dict(config)}
    return capture(config, 4)


def calls(graph: Graph) -> Counter[tuple[str, ...]]:
    """How often each call occurs, without those that make positions and constants."""
    table = map_calls(graph)
    whole = (table["dtype"] == "int64") & table["family"].isin(["elementwise", "index"])
    constant = (table["op"] == "fill") & (table["bytes_written"] <= 8)
    return Counter(map(tuple, table.loc[~whole & ~constant, CALL].astype(str).to_numpy()))


@pytest.mark.parametrize(
    ("attention", "dtype", "precision", "mode"),
    [
        ("eager", "fp16", "autocast", "train"),
        ("eager", "fp16", "autocast", "inference"),
        ("fused", "bf16", "pure", "train"),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_every_call_is_one_of_the_library(
    name: str, attention: str, dtype: str, precision: str, mode: str
) -> None:
    changes = {"attention": attention, "mode": mode, "dtype": dtype, "precision": precision}
    ours, theirs = (captured(name, one, **changes) for one in (False, True))
    assert calls(ours) == calls(theirs)
    assert len(calls(ours)) > 15
    for what in ("parameters", "gradients", "optimizer", "inputs"):
        assert getattr(ours.memory, what) == getattr(theirs.memory, what), what
    assert ours.memory.activations == pytest.approx(theirs.memory.activations, rel=0.01)


@pytest.mark.parametrize("mode", ["train", "inference"])
@pytest.mark.parametrize("attention", ["eager", "fused"])
@pytest.mark.parametrize("name", MODELS)
def test_with_their_weights_the_result_is_theirs(name: str, attention: str, mode: str) -> None:
    """The loss in training, the logits in inference; dropout is off."""
    config = config_of(name, **{**SIZES, "layers": 2, "attention": attention, "mode": mode})
    torch.manual_seed(0)
    ours, theirs = make_step(config, 4, "cpu"), their_step({"options": config}, 4, "cpu")
    values = theirs.parameters()
    if name == "opt_13":  # its last layer norm comes before the layers
        values = values[:2] + values[4:] + values[2:4]
    with torch.no_grad():
        for own, other in zip(ours.parameters(), values, strict=True):
            own.copy_(other.normal_(std=0.1))
        for module in (*ours.modules, *theirs.modules):
            module.eval()
        found, expected = (step.forward(*ours.pool[0]) for step in (ours, theirs))
    assert (found.dim() == 0) == (mode == "train") and expected.abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
