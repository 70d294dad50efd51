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
        ("q_proj", {"q_proj"}),
        (["q_proj", "v_proj"], {"q_proj", "v_proj"}),
        ("self_attn.o_proj", {"o_proj"}),
        (
            "all-linear",
            {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
        ),
    ],
)
def test_lora_targets_are_names_of_layers(
    llama: dict[str, Any], targets: object, layers: set[str]
) -> None:
    (model,) = make_step({**llama, "lora_targets": targets}, 2, "meta").modules
    assert {
        name.split(".")[-4] for name, weight in model.named_parameters() if weight.requires_grad
    } == layers


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"lora_targets": "q_prj"},
            (
                "model.lora_targets=q_prj: LlamaConfig has no layer q_prj: did you mean 'q_proj'?"
                " it has "
            ),
        ),
        (
            {"lora_targets": ["q_proj", "c_attn"]},
            "model.lora_targets=[q_proj,c_attn]: LlamaConfig has no layer c_attn: it has ",
        ),
        ({"lora_targets": "proj"}, "has no layer proj: "),
        (
            {"lora": None, "lora_targets": ["q_proj"]},
            "model.lora_targets=[q_proj]: give model.lora= too",
        ),
    ],
)
def test_a_layer_that_a_model_does_not_have_gets_no_lora(
    llama: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError) as refused:
        capture({**llama, **changes}, 2)
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "library", "says"),
    [
        (
            "vit_base_patch16_224",
            "timm",
            "write model=timm model.name=vit_base_patch16_224; else choose one of ",
        ),
        ("convnext_tiny.fb_in22k", "timm", "write model=timm model.name=convnext_tiny.fb_in22k"),
        (
            "fasterrcnn_resnet50_fpn",
            "torchvision",
            "write model=torchvision model.name=fasterrcnn_resnet50_fpn; else ",
        ),
        ("LlamaConfig", "transformers", "write model=transformers model.config=LlamaConfig; else "),
    ],
)
def test_a_model_of_a_library_is_found_without_an_import_where_model_names_it(
    name: str, library: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not find_spec(library):
        pytest.skip(f"{library} is not installed")
    for package in {library, "torch"} & {*sys.modules}:
        monkeypatch.delitem(sys.modules, package)
    with pytest.raises(InputError) as refused:
        ask(["gpu=A100", f"model={name}"])
    assert says in str(refused.value) and not {library, "torch"} & {*sys.modules}


def test_a_name_that_no_library_has_gets_the_nearest_workload() -> None:
    with pytest.raises(
        InputError, match=r"unknown model 'resnt50': did you mean 'resnet50'\? choose one of"
    ):
        ask(["gpu=A100", "model=resnt50"])
