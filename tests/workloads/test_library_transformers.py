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
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.question.question import ask
from pipeline.workloads import make_step
from pipeline.workloads.workload_files import file_digests
from tests.workloads.small import TINY, config_of, refusal, step_on_meta

HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}


@pytest.fixture(autouse=True)
def transformers(own_cache: Path) -> Any:
    declare_torchvision_operators()
    return pytest.importorskip("transformers", minversion="5")


@pytest.mark.parametrize(
    ("config", "options", "task", "labels"),
    [
        ("BertConfig", TINY, None, (2, 8)),
        ("BertConfig", TINY, "sequence_classification", (2,)),
        ("BertConfig", TINY, "token_classification", (2, 8)),
        ("BertConfig", TINY, "question_answering", (2,)),
        ("LlamaConfig", TINY, None, (2, 8)),
        (
            "T5Config",
            {"d_model": 32, "d_ff": 64, "num_layers": 1, "vocab_size": 100},
            None,
            (2, 8),
        ),
        (
            "ViTConfig",
            {
                "hidden_size": 24,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 32,
            },
            None,
            (2,),
        ),
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
    assert tuple(make_step(given, 2, "meta").pool[0][-1].shape) == labels
    graph = capture(given, 2)
    assert unknown_operators(graph, map_calls(graph)) == {}
    assert {"forward", "backward", "optimizer"} <= set(map_calls(graph)["phase"])


def test_images_have_the_size_that_is_asked_for() -> None:
    options = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    step = step_on_meta(
        "transformers", 2, config="ViTConfig", config_options=options, image_size=64
    )
    assert step.pool[0][0].shape == (2, 3, 64, 64)
    assert step.modules[0].vit.embeddings.position_embeddings.shape == (1, 1 + 4 * 4, 24)


def test_clip_compares_texts_with_images() -> None:
    step = step_on_meta("transformers", 3, config="CLIPConfig")
    assert {tuple(tensor.shape) for tensor in step.pool[0]} == {(3, 77), (3, 3, 224, 224)}


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_the_step_runs_on_a_cpu(mode: str) -> None:
    options = {"d_model": 32, "d_ff": 64, "num_layers": 1, "vocab_size": 100}
    make_step(
        config_of("transformers", config="T5Config", config_options=options, seq_len=8, mode=mode),
        2,
        "cpu",
    ).run()


@pytest.mark.parametrize(
    ("attention", "fused"), [("eager", False), ("fused", True), ("flash_attention_2", True)]
)
def test_attention_is_one_kernel_or_several(attention: str, fused: bool) -> None:
    tiny = [f"model.config_options.{key}={value}" for key, value in TINY.items()]
    asked = ask(
        [
            "model=transformers",
            "model.config=LlamaConfig",
            f"model.attention={attention}",
            "model.seq_len=64",
            *tiny,
        ]
    )
    assert ("attention" in set(map_calls(capture(asked.section("model"), 2))["family"])) == fused


def test_a_file_says_the_sizes_and_the_task(tmp_path: Path) -> None:
    content = {
        "model_type": "bert",
        "architectures": ["BertForTokenClassification"],
        **TINY,
        "id2label": {"0": "a", "1": "b", "2": "c"},
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    step = step_on_meta(
        "transformers",
        2,
        config=str(tmp_path),
        seq_len=8,
        config_options={"num_hidden_layers": 2},
    )
    (model,) = step.modules
    assert type(model).__name__ == "BertForTokenClassification"
    assert model.classifier.out_features == 3 and model.config.num_hidden_layers == 2


def test_an_edited_file_is_another_workload(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    before = file_digests({"config": str(path)})
    path.write_text("{ }")
    assert len(before) == 1 and file_digests({"config": str(tmp_path)}) != before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"config": "LlamaConfg"}, "did you mean 'LlamaConfig'"),
        (
            {"config": "LlamaForCausalLM"},
            "this is not the configuration of a model: give one such as LlamaConfig",
        ),
        ({"config": "meta-llama/Llama-3.1-8B"}, "did you mean 'LlamaConfig'"),
        ({"config": "bert-base-uncased"}, "did you mean 'BertConfig'"),
        (
            {"config": "bert-base-uncased"},
            "needs its file, `hf download bert-base-uncased config.json`",
        ),
        ({"config": "gpt2"}, "needs its file, `hf download gpt2 config.json`"),
        (
            {"config": "nowhere/config.json"},
            "model.config=nowhere/config.json: there is no such file",
        ),
        (
            {"config": "LlamaConfig", "task": "masked_lm"},
            "model.task=masked_lm: LlamaConfig has causal_lm, ",
        ),
        (
            {"config": "LlamaConfig", "config_options": {"hiden_size": 3}},
            "did you mean 'hidden_size'",
        ),
        ({"config": "GPT2Config", "seq_len": 2048}, "GPT2Config has 1024 positions"),
        (
            {"config": "DebertaV2Config", "attention": "fused"},
            "model.attention=fused: refused: ValueError",
        ),
        (
            {"config": "BertConfig", "config_options": {"hidden_size": 100}},
            "refused: ValueError: The hidden size (100)",
        ),
        (
            {"config": "WhisperConfig", "audio_seconds": 5},
            "model.audio_seconds=5: refused: ValueError: Whisper expects",
        ),
    ],
    ids=lambda value: value.get("config") if isinstance(value, dict) else "",
)
def test_what_cannot_be_built_is_one_line(changes: dict[str, Any], says: str) -> None:
    assert says in refusal(InputError, "transformers", **changes)


def test_slow_code_in_place_of_a_package_is_a_warning_every_time() -> None:
    if find_spec("mamba_ssm"):
        pytest.skip("mamba_ssm is installed")
    given = config_of(
        "transformers",
        config="MambaConfig",
        config_options={"hidden_size": 32, "num_hidden_layers": 1},
        seq_len=8,
    )
    for _ in range(2):
        assert any("`mamba_ssm` is not installed" in text for text in capture(given, 1).warnings)


@pytest.mark.parametrize(("precision", "warned"), [("autocast", True), ("pure", False)])
def test_experts_that_autocast_leaves_in_fp32_are_a_warning(precision: str, warned: bool) -> None:
    options = {**TINY, "num_key_value_heads": 2, "num_local_experts": 4, "hidden_size": 64}
    given = config_of(
        "transformers",
        config="MixtralConfig",
        config_options=options,
        seq_len=8,
        dtype="bf16",
        precision=precision,
    )
    graph = capture(given, 2)
    calls = map_calls(graph)
    grouped = calls[calls["name"].str.contains("grouped_mm")] if "name" in calls else calls
    assert any("experts in fp32" in text for text in graph.warnings) == warned
    assert ("fp32" in set(grouped["dtype"])) == warned or "name" not in calls
