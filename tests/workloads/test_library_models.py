"""Models of other libraries by name: what is built, what is refused, and that neither weights nor a network are needed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from pipeline.as_on_cuda.torchvision_operators import declare_torchvision_operators
from pipeline.errors import ConfigError, InputError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.question.question import ask
from pipeline.workloads import make_step, model_names
from tests.workloads.small import config_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def timm() -> Any:
    declare_torchvision_operators()
    return pytest.importorskip("timm")


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

    @pytest.mark.parametrize(("attention", "fused"), [("eager", False), ("fused", True)])
    def test_attention_is_one_kernel_or_several(self, timm: Any, attention: str, fused: bool) -> None:
        before = timm.layers.use_fused_attn()
        config = configured("timm", name="vit_tiny_patch16_224", attention=attention, options={"depth": 1})
        assert ("attention" in set(map_calls(capture(config, 2))["family"])) == fused
        assert timm.layers.use_fused_attn() == before

    def test_checkpointing_computes_again_and_keeps_less(self) -> None:
        plain, checkpointed = (
            capture(configured("timm", name="vit_tiny_patch16_224", checkpointing=on), 2) for on in (False, True)
        )
        counts = [map_calls(graph)["family"].value_counts()["attention"] for graph in (plain, checkpointed)]
        assert counts == [2 * 12, 3 * 12]  # forward and backward of 12 layers, and the forward pass once more
        assert checkpointed.memory.peak < plain.memory.peak

    def test_an_accumulated_batch_has_one_update(self) -> None:
        whole, parts = (map_calls(capture(configured("timm", name="resnet18", image_size=32, accumulation=n), 4))
                        for n in (1, 2))  # fmt: skip
        of_whole, of_parts = (calls["phase"].value_counts() for calls in (whole, parts))
        assert of_parts["forward"] == 2 * of_whole["forward"]
        assert of_parts["loss"] == 2 * (of_whole["loss"] + 1)  # each loss is divided by 2
        assert of_parts["optimizer"] == of_whole["optimizer"]

    def test_the_whole_answer_comes_from_one_line(self) -> None:
        question = ask(["gpu=A100", "model=timm", "model.name=resnet18", "batch_size=8"])
        assert question.model == "timm" and question.workload["name"] == "resnet18"
        graph = capture(question.section("model"), 8)
        assert unknown_operators(graph, map_calls(graph)) == {}

    def test_an_unknown_name_is_one_line_with_suggestions(self) -> None:
        message = said(InputError, "timm", name="vit_base_patch16_22")
        assert "did you mean 'vit_base_patch16_224'" in message and "steptime models timm" in message

    def test_a_model_without_checkpointing_says_so(self) -> None:
        assert "inception_v4 has no gradient checkpointing" in said(
            ConfigError, "timm", name="inception_v4", checkpointing=True
        )

    def test_an_argument_that_a_model_does_not_have_is_one_line(self) -> None:
        message = said(InputError, "timm", name="resnet18", options={"depths": 3})
        assert message.startswith("model.name=resnet18: refused: TypeError: ") and "'depths'" in message

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


def test_a_library_that_is_not_installed_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert said(InputError, "timm", name="resnet18") == "timm is not installed: pip install timm"


def test_a_model_of_a_library_needs_a_name() -> None:
    with pytest.raises(ConfigError, match=r"give a value for model\.name, for example model\.name=resnet50"):
        ask(["gpu=A100", "model=timm"])
    with pytest.raises(ConfigError, match="choose a file of config/model/"):
        ask(["gpu=A100", "model=resnet50", "model.name=resnet18"])


@pytest.mark.parametrize(("value", "accepted"), [("64", True), ("[64,32]", True), ("0", False), ("wide", False)])
def test_sizes_of_models_are_whole_numbers(value: str, accepted: bool) -> None:
    overrides = ["gpu=A100", "model=timm", "model.name=resnet18", f"model.image_size={value}"]
    if accepted:
        assert ask(overrides).workload["image_size"] in (64, (64, 32))
    else:
        with pytest.raises(ConfigError, match="give a whole number above 0"):
            ask(overrides)


def test_adamw_is_adam_with_one_more_pass_over_the_weights() -> None:
    adam, adamw = (
        map_calls(capture(configured("resnet50", image_size=32, optimizer=name), 2)) for name in ("adam", "adamw")
    )
    more = (adamw["phase"] == "optimizer").sum() - (adam["phase"] == "optimizer").sum()
    assert 0 < more < 20 and torch.optim.AdamW([torch.zeros(1)]).defaults["weight_decay"] == 0.01
