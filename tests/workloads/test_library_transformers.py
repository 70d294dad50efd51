"""Models of `transformers` by their configuration: what is built, what is refused, and what PyTorch runs instead."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pipeline.as_on_cuda.torchvision_operators import declare_torchvision_operators
from pipeline.errors import InputError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.question.question import ask
from pipeline.workloads import make_step
from pipeline.workloads.workload_files import file_digests
from tests.workloads.small import TINY, config_of, known_calls, refusal, step_on_meta

HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
T5 = {"d_model": 32, "d_ff": 64, "num_layers": 1, "vocab_size": 100}
VIT = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32}


@pytest.fixture(autouse=True)
def transformers(own_cache: Path) -> Any:
    declare_torchvision_operators()
    return pytest.importorskip("transformers", minversion="5")


@pytest.mark.parametrize(
    ("config", "options", "task", "labels"),
    [
        ("BertConfig", TINY, "sequence_classification", (2,)),
        ("BertConfig", TINY, "question_answering", (2,)),
        ("LlamaConfig", TINY, None, (2, 8)),
        ("T5Config", T5, None, (2, 8)),
        ("ViTConfig", VIT, None, (2,)),
        ("SegformerConfig", {"depths": [1] * 4}, "semantic_segmentation", (2, 224, 224)),
        (
            "WhisperConfig",
            {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, **HEADS},
            None,
            (2, 8),
        ),
        ("Wav2Vec2Config", {**TINY, "num_conv_pos_embedding_groups": 2}, "ctc", (2, 8)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_is_trained_for_its_task(
    config: str, options: dict[str, Any], task: str | None, labels: tuple[int, ...]
) -> None:
    given = config_of("transformers", config=config, config_options=options, task=task, seq_len=8)
    shapes = [tuple(tensor.shape) for tensor in make_step(given, 2, "meta").pool[0]]
    assert labels == shapes[-1]
    assert {"forward", "backward", "optimizer"} <= set(known_calls(capture(given, 2))["phase"])


def test_images_have_the_size_that_is_asked_for() -> None:
    step = step_on_meta("transformers", 2, config="ViTConfig", config_options=VIT, image_size=64)
    assert step.pool[0][0].shape == (2, 3, 64, 64)
    assert step.modules[0].vit.embeddings.position_embeddings.shape == (1, 1 + 4 * 4, 24)


def test_clip_compares_texts_with_images() -> None:
    step = step_on_meta("transformers", 3, config="CLIPConfig")
    assert {tuple(tensor.shape) for tensor in step.pool[0]} == {(3, 77), (3, 3, 224, 224)}


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_the_step_runs_on_a_cpu(mode: str) -> None:
    given = config_of("transformers", config="T5Config", config_options=T5, seq_len=8, mode=mode)
    make_step(given, 2, "cpu").run()


@pytest.mark.parametrize(
    ("attention", "fused"), [("eager", False), ("fused", True), ("flash_attention_2", True)]
)
def test_attention_is_one_kernel_or_several(attention: str, fused: bool) -> None:
    tiny = [f"model.config_options.{key}={value}" for key, value in TINY.items()]
    words = f"model=transformers model.config=LlamaConfig model.attention={attention}"
    asked = ask([*words.split(), "model.seq_len=64", *tiny])
    assert ("attention" in set(map_calls(capture(asked.section("model"), 2))["family"])) == fused


def test_a_file_says_the_sizes_and_the_task(tmp_path: Path) -> None:
    content = {
        "model_type": "bert",
        "architectures": ["BertForTokenClassification"],
        **TINY,
        "id2label": {"0": "a", "1": "b", "2": "c"},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    given: Any = {"config": str(tmp_path), "config_options": {"num_hidden_layers": 2}}
    (model,) = step_on_meta("transformers", 2, seq_len=8, **given).modules
    assert type(model).__name__ == "BertForTokenClassification"
    assert model.classifier.out_features == 3 and model.config.num_hidden_layers == 2
    before = file_digests(given)
    path.write_text("{ }")
    assert len(before) == 1 and file_digests(given) != before


@pytest.mark.parametrize(
    ("config", "changes", "says"),
    [
        ("LlamaConfg", {}, "did you mean 'LlamaConfig'"),
        ("LlamaForCausalLM", {}, "this is not the configuration of a model: give one such as"),
        ("meta-llama/Llama-3.1-8B", {}, "did you mean 'LlamaConfig'"),
        ("bert-base-uncased", {}, "needs its file, `hf download bert-base-uncased config.json`"),
        ("nowhere/config.json", {}, "model.config=nowhere/config.json: there is no such file"),
        ("LlamaConfig", {"task": "masked_lm"}, "model.task=masked_lm: LlamaConfig has causal_lm, "),
        ("LlamaConfig", {"config_options": {"hiden_size": 3}}, "did you mean 'hidden_size'"),
        ("GPT2Config", {"seq_len": 2048}, "GPT2Config has 1024 positions"),
        (
            "DebertaV2Config",
            {"attention": "fused"},
            "model.attention=fused: refused: ValueError",
        ),
        (
            "BertConfig",
            {"config_options": {"hidden_size": 100}},
            "refused: ValueError: The hidden size (100)",
        ),
        (
            "WhisperConfig",
            {"audio_seconds": 5},
            "model.audio_seconds=5: refused: ValueError: Whisper expects",
        ),
    ],
)
def test_what_cannot_be_built_is_one_line(config: str, changes: dict[str, Any], says: str) -> None:
    assert says in refusal(InputError, "transformers", config=config, **changes)


@pytest.mark.skipif(find_spec("mamba_ssm") is not None, reason="mamba_ssm is installed")
def test_slow_code_in_place_of_a_package_is_a_warning_every_time() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1}
    given = config_of("transformers", config="MambaConfig", config_options=sizes, seq_len=8)
    for _ in range(2):
        assert any("`mamba_ssm` is not installed" in text for text in capture(given, 1).warnings)


@pytest.mark.parametrize(("precision", "warned"), [("autocast", True), ("pure", False)])
def test_experts_that_autocast_leaves_in_fp32_are_a_warning(precision: str, warned: bool) -> None:
    options = {**TINY, "num_key_value_heads": 2, "num_local_experts": 4, "hidden_size": 64}
    given: Any = {"config": "MixtralConfig", "config_options": options, "seq_len": 8}
    graph = capture(config_of("transformers", **given, dtype="bf16", precision=precision), 2)
    calls = known_calls(graph)
    assert any("experts in fp32" in text for text in graph.warnings) == warned
    assert ("fp32" in set(calls.loc[calls["name"].str.contains("grouped_mm"), "dtype"])) == warned
