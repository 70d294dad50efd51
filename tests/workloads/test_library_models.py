"""Models of other libraries by name: what is built, what is refused, and that neither weights nor a network are needed."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch

from pipeline.as_on_cuda.torchvision_operators import declare_torchvision_operators
from pipeline.errors import ConfigError, InputError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.question.question import ask
from pipeline.workloads import make_step
from pipeline.workloads.image_libraries import classification_loss
from tests.workloads.small import config_of, known_calls, refusal, step_on_meta

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def timm() -> Any:
    declare_torchvision_operators()
    return pytest.importorskip("timm")


@pytest.fixture
def torchvision() -> Any:
    declare_torchvision_operators()
    return pytest.importorskip("torchvision")


@pytest.mark.usefixtures("timm")
class TestTimm:
    def test_a_model_has_its_own_size_of_images_and_its_own_classes(self) -> None:
        step = step_on_meta("timm", 4, name="resnet18")
        assert [tuple(tensor.shape) for tensor in step.pool[0]] == [(4, 3, 224, 224), (4,)]
        assert step.parameters_bytes == 4 * 11_689_512  # as torchvision's documentation states it

    def test_images_and_classes_can_be_chosen(self) -> None:
        step = step_on_meta("timm", 2, name="vit_tiny_patch16_224", image_size=[64, 32], classes=7)
        (model,) = step.modules
        assert step.pool[0][0].shape == (2, 3, 64, 32)
        assert (model.head.out_features, model.pos_embed.shape[1]) == (7, 1 + 4 * 2)

    @pytest.mark.parametrize("attention", ["eager", "fused"])
    def test_attention_is_one_kernel_or_several(self, attention: str) -> None:
        given: Any = {"name": "vit_tiny_patch16_224", "options": {"depth": 1}}
        graph = capture(config_of("timm", attention=attention, **given), 2)
        assert ("attention" in set(map_calls(graph)["family"])) == (attention == "fused")
        assert graph.computed["attention"] == attention

    def test_checkpointing_computes_again_and_keeps_less(self) -> None:
        graphs = [
            capture(config_of("timm", name="test_vit", options={"depth": 2}, checkpointing=on), 2)
            for on in (False, True)
        ]
        counts = [(map_calls(graph)["family"] == "attention").sum() for graph in graphs]
        # forward and backward of 2 layers, and the forward pass once more
        assert counts == [2 * 2, 3 * 2]
        assert graphs[1].memory.peak < graphs[0].memory.peak

    def test_an_accumulated_batch_has_one_update(self) -> None:
        given: Any = {"name": "test_vit", "options": {"depth": 1}}
        whole, parts = (
            map_calls(capture(config_of("timm", accumulation=n, **given), 4))[
                "phase"
            ].value_counts()
            for n in (1, 2)
        )
        assert parts["forward"] == 2 * whole["forward"]
        assert parts["loss"] == 2 * (whole["loss"] + 1)  # each loss is divided by 2
        assert parts["optimizer"] == whole["optimizer"]

    @pytest.mark.parametrize("name", ["vit_bas", "vit_bse_patch16_224"])
    def test_an_unknown_name_is_one_line_with_names_that_begin_with_it_or_are_close(
        self, name: str
    ) -> None:
        suggested = refusal(InputError, "timm", name=name).partition("did you mean ")[2]
        assert "'vit_base_patch16_224'" in suggested and "steptime models timm" in suggested


@pytest.mark.usefixtures("torchvision")
class TestTorchvision:
    @pytest.mark.parametrize(
        ("name", "shapes"),
        [
            ("lraspp_mobilenet_v3_large", [(2, 3, 520, 520), (2, 520, 520)]),
            ("r3d_18", [(2, 3, 16, 112, 112), (2,)]),
            ("maskrcnn_resnet50_fpn", [(2, 3, 800, 800), (2, 8, 4), (2, 8), (2, 8, 800, 800)]),
        ],
    )
    def test_a_model_has_the_inputs_that_it_was_trained_with(
        self, name: str, shapes: list[tuple[int, ...]]
    ) -> None:
        (batch,) = step_on_meta("torchvision", 2, name=name).pool[:1]
        assert [tuple(tensor.shape) for tensor in batch] == shapes

    def test_an_auxiliary_head_adds_its_loss(self) -> None:
        outputs = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        loss = classification_loss(outputs, torch.empty(0), torch.tensor([0]))
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
        calls = known_calls(capture(config_of("torchvision", **changes), 2))
        assert ("backward" in set(calls["phase"])) == (changes.get("mode") != "inference")

    def test_the_step_runs_on_a_cpu(self) -> None:
        options = {"image_size": 32, "accumulation": 2, "optimizer": "adamw"}
        step = make_step(config_of("torchvision", name="shufflenet_v2_x0_5", **options), 4, "cpu")
        before = [parameter.clone() for parameter in step.parameters()]
        step.run()
        assert not all(map(torch.equal, before, step.parameters()))


def test_a_library_that_is_not_installed_is_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert refusal(InputError, "timm", name="resnet18") == "timm is not installed: pip install timm"


def test_a_model_of_a_library_needs_a_name() -> None:
    with pytest.raises(
        ConfigError, match=r"give a value for model\.name, for example model\.name=resnet50"
    ):
        ask(["gpu=A100", "model=timm"])
    with pytest.raises(ConfigError, match="choose a file of config/model/"):
        ask(["gpu=A100", "model=resnet50", "model.name=resnet18"])
    with pytest.raises(ConfigError, match=r"gpt2: give model\.config, for example model\.config="):
        ask(["gpu=A100", "model=transformers", "model.name=gpt2"])


def test_sizes_of_models_are_whole_numbers() -> None:
    asked = ["gpu=A100", "model=timm", "model.name=resnet18"]
    assert ask([*asked, "model.image_size=[64,32]"]).workload["image_size"] == (64, 32)
    for value in ("0", "wide"):
        with pytest.raises(ConfigError, match="give a whole number above 0"):
            ask([*asked, f"model.image_size={value}"])


@pytest.mark.parametrize(
    ("library", "changes", "says"),
    [
        (
            "timm",
            {"name": "inception_v4", "checkpointing": True},
            "inception_v4 has no gradient checkpointing",
        ),
        (
            "timm",
            {"name": "resnet18", "options": {"depths": 3}},
            "model.name=resnet18: refused: TypeError: ",
        ),
        (
            "timm",
            {"name": "resnet18", "accumulation": 3},
            "give a multiple of model.accumulation=3",
        ),
        (
            "torchvision",
            {"name": "maxvit_t", "image_size": 256},
            "model.image_size=256: refused: ValueError: Input size (64, 64)",
        ),
        ("torchvision", {"name": "raft_small"}, "use model=custom"),
    ],
)
@pytest.mark.usefixtures("timm", "torchvision")
def test_what_a_library_does_not_have_is_one_line(
    library: str, changes: dict[str, Any], says: str
) -> None:
    assert says in refusal((InputError, ConfigError), library, **changes)
