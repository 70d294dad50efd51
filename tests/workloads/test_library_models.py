"""Models of other libraries by name: what is built, what is refused, and that neither weights nor a network are needed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.as_on_cuda.torchvision_operators import declare_torchvision_operators
from pipeline.errors import ConfigError, InputError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.paths import project_dir
from pipeline.question.question import ask
from pipeline.workloads import make_step, model_names
from pipeline.workloads.image_libraries import classification_loss
from pipeline.workloads.workload_files import file_digests
from tests.workloads.small import config_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def timm() -> Any:
    declare_torchvision_operators()
    return pytest.importorskip("timm")


@pytest.fixture
def torchvision() -> Any:
    declare_torchvision_operators()
    return pytest.importorskip("torchvision")


@pytest.fixture
def transformers() -> Any:
    declare_torchvision_operators()
    return pytest.importorskip("transformers", minversion="5")


def configured(library: str, **changes: Any) -> dict[str, Any]:
    return {**config_of(library), **changes}


def steps_of(library: str, batch_size: int, **changes: Any) -> Any:
    return make_step(configured(library, **changes), batch_size, "meta")


def said(error: type[Exception], library: str, batch_size: int = 2, **changes: Any) -> str:
    """The message of a capture that is refused."""
    with pytest.raises(error) as raised:
        capture(configured(library, **changes), batch_size)
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.usefixtures("timm")
class TestTimm:
    def test_a_model_has_its_own_size_of_images_and_its_own_classes(self) -> None:
        step = steps_of("timm", 4, name="resnet18")
        assert [tuple(tensor.shape) for tensor in step.pool[0]] == [(4, 3, 224, 224), (4,)]
        assert step.parameters_bytes == 4 * 11_689_512  # as torchvision's documentation states it

    def test_images_and_classes_can_be_chosen(self) -> None:
        step = steps_of("timm", 2, name="vit_tiny_patch16_224", image_size=[64, 32], classes=7)
        assert step.pool[0][0].shape == (2, 3, 64, 32)
        (model,) = step.modules
        assert model.head.out_features == 7 and model.pos_embed.shape[1] == 1 + 4 * 2

    @pytest.mark.parametrize("attention", ["eager", "fused"])
    def test_attention_is_one_kernel_or_several(self, timm: Any, attention: str) -> None:
        before = timm.layers.use_fused_attn()
        graph = capture(
            configured(
                "timm", name="vit_tiny_patch16_224", attention=attention, options={"depth": 1}
            ),
            2,
        )
        assert ("attention" in set(map_calls(graph)["family"])) == (attention == "fused")
        assert graph.computed["attention"] == attention
        assert timm.layers.use_fused_attn() == before

    def test_checkpointing_computes_again_and_keeps_less(self) -> None:
        plain, checkpointed = (
            capture(configured("timm", name="vit_tiny_patch16_224", checkpointing=on), 2)
            for on in (False, True)
        )
        counts = [
            map_calls(graph)["family"].value_counts()["attention"]
            for graph in (plain, checkpointed)
        ]
        assert counts == [
            2 * 12,
            3 * 12,
        ]  # forward and backward of 12 layers, and the forward pass once more
        assert checkpointed.memory.peak < plain.memory.peak

    def test_an_accumulated_batch_has_one_update(self) -> None:
        whole, parts = (
            map_calls(
                capture(configured("timm", name="resnet18", image_size=32, accumulation=n), 4)
            )
            for n in (1, 2)
        )
        of_whole, of_parts = (calls["phase"].value_counts() for calls in (whole, parts))
        assert of_parts["forward"] == 2 * of_whole["forward"]
        assert of_parts["loss"] == 2 * (of_whole["loss"] + 1)  # each loss is divided by 2
        assert of_parts["optimizer"] == of_whole["optimizer"]

    def test_the_whole_answer_comes_from_one_line(self) -> None:
        question = ask(["gpu=A100", "model=timm", "model.name=resnet18", "batch_size=8"])
        assert question.model == "timm" and question.workload["name"] == "resnet18"
        graph = capture(question.section("model"), 8)
        assert unknown_operators(graph, map_calls(graph)) == {}

    @pytest.mark.parametrize("name", ["vit_base_patch16_22", "vit_bas", "vit_bse_patch16_224"])
    def test_an_unknown_name_is_one_line_with_names_that_begin_with_it_or_are_close(
        self, name: str
    ) -> None:
        message = said(InputError, "timm", name=name)
        suggested = message[message.index("did you mean ") :]
        assert "'vit_base_patch16_224'" in suggested and "steptime models timm" in suggested

    def test_a_model_without_checkpointing_says_so(self) -> None:
        assert "inception_v4 has no gradient checkpointing" in said(
            ConfigError, "timm", name="inception_v4", checkpointing=True
        )

    def test_an_argument_that_a_model_does_not_have_is_one_line(self) -> None:
        message = said(InputError, "timm", name="resnet18", options={"depths": 3})
        assert (
            message.startswith("model.name=resnet18: refused: TypeError: ")
            and "'depths'" in message
        )

    def test_a_batch_is_cut_into_equal_parts(self) -> None:
        assert "give a multiple of model.accumulation=3" in said(
            ConfigError, "timm", 4, name="resnet18", accumulation=3
        )

    def test_names_are_listed_and_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model_names.names_in.cache_clear()
        assert "resnet50" in model_names.names_in("timm")
        model_names.names_in.cache_clear()
        monkeypatch.setattr(model_names, "imported", lambda _: pytest.fail("the names are kept"))
        assert "resnet50" in model_names.names_in("timm")
        model_names.names_in.cache_clear()


def test_a_step_of_ones_own_may_import_a_library_whose_torchvision_is_for_cuda(
    tmp_path: Path,
) -> None:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    (tmp_path / "mine.py").write_text("import timm\nraise ValueError(timm.is_model('resnet18'))")
    code = "from pipeline import predict; predict('V100', 'custom', model__target='mine:make')"
    environment = {**os.environ, "PYTHONPATH": str(project_dir())}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert "mine cannot be imported: ValueError: True in mine.py, line 2" in done.stderr


@pytest.mark.usefixtures("torchvision")
class TestTorchvision:
    @pytest.mark.parametrize(
        ("name", "shapes"),
        [
            ("inception_v3", [(2, 3, 299, 299), (2,)]),
            ("lraspp_mobilenet_v3_large", [(2, 3, 520, 520), (2, 520, 520)]),
            ("r3d_18", [(2, 3, 16, 112, 112), (2,)]),
            ("maskrcnn_resnet50_fpn", [(2, 3, 800, 800), (2, 8, 4), (2, 8), (2, 8, 800, 800)]),
        ],
    )
    def test_a_model_has_the_inputs_that_it_was_trained_with(
        self, name: str, shapes: list[tuple[int, ...]]
    ) -> None:
        assert [
            tuple(tensor.shape) for tensor in steps_of("torchvision", 2, name=name).pool[0]
        ] == shapes

    def test_a_constructor_may_read_values(self) -> None:
        step = steps_of("torchvision", 1, name="regnet_y_400mf")
        assert step.parameters_bytes == 4 * 4_344_144  # as torchvision's documentation states it
        assert all(parameter.is_meta for parameter in step.parameters())

    def test_an_auxiliary_head_adds_its_loss(self) -> None:
        main = torch.tensor([[2.0, 0.0]])
        other = torch.tensor([[0.0, 0.0]])
        loss = classification_loss((main, other), torch.empty(0), torch.tensor([0]))
        assert float(loss) == pytest.approx(math.log(1 + math.exp(-2)) + 0.4 * math.log(2))

    @pytest.mark.parametrize(
        "changes",
        [
            {"name": "squeezenet1_1", "memory_format": "channels_last", "dtype": "bf16"},
            {"name": "fcn_resnet50", "options": {"aux_loss": True}, "image_size": 64},
            {"name": "googlenet", "image_size": 64, "mode": "inference"},
            {"name": "mc3_18", "frames": 4, "image_size": 32},
        ],
        ids=lambda changes: changes["name"],
    )
    def test_a_step_is_captured_with_its_options(self, changes: dict[str, Any]) -> None:
        graph = capture(configured("torchvision", **changes), 2)
        calls = map_calls(graph)
        assert unknown_operators(graph, calls) == {}
        assert ("backward" in set(calls["phase"])) == (changes.get("mode") != "inference")

    def test_the_step_runs_on_a_cpu(self) -> None:
        config = configured(
            "torchvision",
            name="shufflenet_v2_x0_5",
            image_size=32,
            accumulation=2,
            optimizer="adamw",
        )
        step = make_step(config, 4, "cpu")
        before = [parameter.clone() for parameter in step.parameters()]
        step.run()
        assert any(
            not torch.equal(one, other)
            for one, other in zip(before, step.parameters(), strict=True)
        )

    def test_a_size_that_a_model_refuses_is_one_line(self) -> None:
        message = said(InputError, "torchvision", name="maxvit_t", image_size=256)
        assert message.startswith(
            "model.name=maxvit_t model.image_size=256: refused: ValueError: Input size (64, 64)"
        )

    def test_flow_is_refused(self) -> None:
        assert "use model=custom" in said(ConfigError, "torchvision", name="raft_small")


HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}


@pytest.mark.usefixtures("transformers")
class TestTransformers:
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
            ("SegformerConfig", {}, "semantic_segmentation", (2, 224, 224)),
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
        self, config: str, options: dict[str, Any], task: str | None, labels: tuple[int, ...]
    ) -> None:
        given = configured(
            "transformers", config=config, config_options=options, task=task, seq_len=8
        )
        assert tuple(make_step(given, 2, "meta").pool[0][-1].shape) == labels
        graph = capture(given, 2)
        assert unknown_operators(graph, map_calls(graph)) == {}
        assert {"forward", "backward", "optimizer"} <= set(map_calls(graph)["phase"])

    def test_images_have_the_size_that_is_asked_for(self) -> None:
        options = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
        step = steps_of(
            "transformers", 2, config="ViTConfig", config_options=options, image_size=64
        )
        assert step.pool[0][0].shape == (2, 3, 64, 64)
        assert step.modules[0].vit.embeddings.position_embeddings.shape == (1, 1 + 4 * 4, 24)

    def test_clip_compares_texts_with_images(self) -> None:
        step = steps_of("transformers", 3, config="CLIPConfig")
        assert {tuple(tensor.shape) for tensor in step.pool[0]} == {(3, 77), (3, 3, 224, 224)}

    @pytest.mark.parametrize("mode", ["train", "inference"])
    def test_the_step_runs_on_a_cpu(self, mode: str) -> None:
        options = {"d_model": 32, "d_ff": 64, "num_layers": 1, "vocab_size": 100}
        make_step(
            configured(
                "transformers", config="T5Config", config_options=options, seq_len=8, mode=mode
            ),
            2,
            "cpu",
        ).run()

    @pytest.mark.parametrize(
        ("attention", "fused"), [("eager", False), ("fused", True), ("flash_attention_2", True)]
    )
    def test_attention_is_one_kernel_or_several(self, attention: str, fused: bool) -> None:
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
        assert (
            "attention" in set(map_calls(capture(asked.section("model"), 2))["family"])
        ) == fused

    def test_a_file_says_the_sizes_and_the_task(self, tmp_path: Path) -> None:
        content = {
            "model_type": "bert",
            "architectures": ["BertForTokenClassification"],
            **TINY,
            "id2label": {"0": "a", "1": "b", "2": "c"},
        }
        (tmp_path / "config.json").write_text(json.dumps(content))
        step = steps_of(
            "transformers",
            2,
            config=str(tmp_path),
            seq_len=8,
            config_options={"num_hidden_layers": 2},
        )
        (model,) = step.modules
        assert type(model).__name__ == "BertForTokenClassification"
        assert model.classifier.out_features == 3 and model.config.num_hidden_layers == 2

    def test_an_edited_file_is_another_workload(self, tmp_path: Path) -> None:
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
    def test_what_cannot_be_built_is_one_line(self, changes: dict[str, Any], says: str) -> None:
        assert says in said(InputError, "transformers", **changes)

    def test_slow_code_in_place_of_a_package_is_a_warning_every_time(self) -> None:
        if find_spec("mamba_ssm"):
            pytest.skip("mamba_ssm is installed")
        given = configured(
            "transformers",
            config="MambaConfig",
            config_options={"hidden_size": 32, "num_hidden_layers": 1},
            seq_len=8,
        )
        for _ in range(2):
            assert any(
                "`mamba_ssm` is not installed" in text for text in capture(given, 1).warnings
            )

    @pytest.mark.parametrize(("precision", "warned"), [("autocast", True), ("pure", False)])
    def test_experts_that_autocast_leaves_in_fp32_are_a_warning(
        self, precision: str, warned: bool
    ) -> None:
        options = {**TINY, "num_key_value_heads": 2, "num_local_experts": 4, "hidden_size": 64}
        given = configured(
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


def test_only_a_question_about_a_library_imports_it() -> None:
    code = (
        "import sys; from pipeline import predict; predict('V100', 'dlrm_small');"
        " print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=project_dir()
    )
    assert not {"timm", "torchvision", "transformers", "peft"} & {
        name.partition(".")[0] for name in done.stdout.split()
    }


def test_a_library_that_is_not_installed_is_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert said(InputError, "timm", name="resnet18") == "timm is not installed: pip install timm"


def test_a_model_of_a_library_needs_a_name() -> None:
    with pytest.raises(
        ConfigError, match=r"give a value for model\.name, for example model\.name=resnet50"
    ):
        ask(["gpu=A100", "model=timm"])
    with pytest.raises(ConfigError, match="choose a file of config/model/"):
        ask(["gpu=A100", "model=resnet50", "model.name=resnet18"])


@pytest.mark.parametrize(
    ("value", "accepted"), [("64", True), ("[64,32]", True), ("0", False), ("wide", False)]
)
def test_sizes_of_models_are_whole_numbers(value: str, accepted: bool) -> None:
    overrides = ["gpu=A100", "model=timm", "model.name=resnet18", f"model.image_size={value}"]
    if accepted:
        assert ask(overrides).workload["image_size"] in (64, (64, 32))
    else:
        with pytest.raises(ConfigError, match="give a whole number above 0"):
            ask(overrides)


def test_adamw_is_adam_with_one_more_pass_over_the_weights() -> None:
    adam, adamw = (
        map_calls(capture(configured("resnet50", image_size=32, optimizer=name), 2))
        for name in ("adam", "adamw")
    )
    more = (adamw["phase"] == "optimizer").sum() - (adam["phase"] == "optimizer").sum()
    assert 0 < more < 20 and torch.optim.AdamW([torch.zeros(1)]).defaults["weight_decay"] == 0.01
