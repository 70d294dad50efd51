"""Names of layers that get LoRA, and of models of libraries that are given as `model=NAME`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pipeline.as_on_cuda.torchvision_operators import declare_torchvision_operators
from pipeline.errors import InputError
from pipeline.graph.capture import capture
from pipeline.question.question import ask
from pipeline.workloads import make_step
from tests.workloads.small import TINY, config_of


@pytest.fixture
def llama(own_cache: Path) -> dict[str, Any]:
    """A small Llama with LoRA of rank 4."""
    declare_torchvision_operators()
    pytest.importorskip("transformers", minversion="5")
    pytest.importorskip("peft")
    return {
        **config_of("transformers"),
        "config": "LlamaConfig",
        "config_options": TINY,
        "lora": 4,
        "seq_len": 8,
    }


def test_lora_trains_its_matrices_alone(llama: dict[str, Any]) -> None:
    given = {**llama, "lora_targets": ["q_proj"]}
    step = make_step(given, 2, "meta")
    trained = [tuple(parameter.shape) for parameter in step.parameters() if parameter.requires_grad]
    assert trained == [(4, 32), (32, 4)]
    assert capture(given, 2).memory.optimizer == 4 * 2 * (
        2 * 4 * 32
    )  # two states of fp32 for each number


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        ("q_proj", "q_proj"),
        (["q_proj", "v_proj"], "q_proj v_proj"),
        ("self_attn.o_proj", "o_proj"),
        ("all-linear", "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"),
    ],
)
def test_lora_targets_are_names_of_layers(
    llama: dict[str, Any], targets: object, layers: str
) -> None:
    (model,) = make_step({**llama, "lora_targets": targets}, 2, "meta").modules
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert {name.split(".")[-4] for name in trained} == {*layers.split()}


@pytest.mark.parametrize(
    ("lora", "targets", "says"),
    [
        (4, "q_prj", "model.lora_targets=q_prj: LlamaConfig has no layer q_prj: did you mean 'q_"),
        (
            4,
            ["q_proj", "c_attn"],
            "model.lora_targets=[q_proj,c_attn]: LlamaConfig has no layer c_attn: it has ",
        ),
        (None, ["q_proj"], "model.lora_targets=[q_proj]: give model.lora= too"),
    ],
)
def test_a_layer_that_a_model_does_not_have_gets_no_lora(
    llama: dict[str, Any], lora: int | None, targets: object, says: str
) -> None:
    with pytest.raises(InputError) as refused:
        capture({**llama, "lora": lora, "lora_targets": targets}, 2)
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "library", "option"),
    [
        ("vit_base_patch16_224", "timm", "name"),
        ("fasterrcnn_resnet50_fpn", "torchvision", "name"),
        ("LlamaConfig", "transformers", "config"),
    ],
)
def test_a_model_of_a_library_is_found_without_an_import_where_model_names_it(
    name: str, library: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not find_spec(library):
        pytest.skip(f"{library} is not installed")
    for package in {library, "torch"} & {*sys.modules}:
        monkeypatch.delitem(sys.modules, package)
    with pytest.raises(InputError, match=f"write model={library} model.{option}={name}; else "):
        ask(["gpu=A100", f"model={name}"])
    assert not {library, "torch"} & {*sys.modules}


def test_a_name_that_no_library_has_gets_the_nearest_workload() -> None:
    with pytest.raises(
        InputError, match=r"unknown model 'resnt50': did you mean 'resnet50'\? choose one of"
    ):
        ask(["gpu=A100", "model=resnt50"])
