"""Composition of the grid from overrides."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.paths import config_dir
from pipeline.question import compose
from pipeline.question.compose import choices, from_snakemake
from pipeline.question.options import FREE_OPTIONS
from pipeline.question.question import expand


def test_one_point_has_the_defaults_of_its_model() -> None:
    (point,) = expand(["gpu=V100", "model=dlrm_default"])
    assert (point.gpu.name, point.model, point.variant) == ("V100", "dlrm_default", "default")
    assert point.batch_size == 2048


def test_values_separated_by_commas_make_a_grid() -> None:
    points = expand(["gpu=V100,P100", "model=dlrm_default,dlrm_ddp", "batch_size=512,2048"])
    assert len({(p.gpu.name, p.model, p.batch_size) for p in points}) == len(points) == 8


def test_the_gpu_named_local_needs_no_file() -> None:
    (point,) = expand(["gpu=local", "model=dlrm_small"])
    assert point.local


def test_points_with_different_results_never_share_a_variant() -> None:
    texts = [
        "model.embedding=fused",
        "model.embedding=sparse",
        "predict.critical_path=published",
        "overheads.host_scale=2",
        "kernels=roofline",
        "predict.seed=7",
        "model.dtype=bf16",
    ]
    variants = [expand(["gpu=V100", "model=dlrm_default", text])[0].variant for text in texts]
    assert variants[0] == "default", "fused is the default: saying so changes nothing"
    assert len(set(variants)) == len(variants)


def test_methods_have_readable_names_and_leave_the_workload_its_own() -> None:
    shared, own = expand(["gpu=V100", "model=dlrm_ddp", "overheads=shared,own"])
    asked = "gpu=V100 model=dlrm_ddp model.embedding=sparse overheads=own kernels=roofline"
    (tuned,) = expand(asked.split())
    assert (shared.variant, own.variant) == ("default", "overheads-own")
    assert tuned.variant == "kernels-roofline_overheads-own_embedding-sparse"
    assert shared.step_name == own.step_name == "dlrm_ddp/default/b2048"
    assert tuned.step_name == "dlrm_ddp/embedding-sparse/b2048"


def test_campaign_steps_are_named_as_grid_points_are() -> None:
    from pipeline.collect.campaign_grid import plans

    for plan in plans()[::7]:
        overrides = [f"model.{key}={value}" for key, value in plan.overrides.items()]
        point = expand(
            ["gpu=V100", f"model={plan.model}", f"batch_size={plan.batch_size}", *overrides]
        )[0]
        assert point.step_name == plan.unit.removeprefix("steps/")


def test_of_several_models_the_one_that_lacks_an_option_is_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'model\.tables' of model=resnet50"):
        expand(["model=dlrm_default,resnet50", "model.tables=4"])


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("gpus=V100", "gpu"),
        ("overides=model.tables=4", "overrides"),
        ("dtype=fp16", "model.dtype"),
        ("host_scale=2", "overheads.host_scale"),
    ],
)
def test_a_misspelt_key_is_answered_by_the_nearest_one(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        expand([wrong])


@pytest.mark.parametrize("name", choices("model"))
def test_every_model_composes_on_every_embedding_or_none(name: str) -> None:
    if name in FREE_OPTIONS:
        pytest.skip("it needs the name of a model")
    assert expand([f"model={name}", "gpu=T4"])[0].batch_size >= 1


@pytest.mark.parametrize(
    ("override", "error", "says"),
    [
        ("batch_size=0", ConfigError, "1 or more"),
        ("batch_size=many", ConfigError, "whole number"),
        ("batch_size=99999999999", ConfigError, "10,000,000"),
        ("model.embedding=cached", UnknownNameError, "sparse"),
        ("+nonsense=1", ConfigError, "unknown option 'nonsense'"),
        (
            "+model.attention=fused",
            ConfigError,
            "unknown option 'model.attention' of model=dlrm_default",
        ),
        ("model.dtype=[", ConfigError, "cannot read"),
        ("~model.dim", ConfigError, "write model.dim=value"),
        ("model.architecture=resnet", ConfigError, "model=dlrm_default is of another"),
        ("model.name=other", ConfigError, "choose a file of config/model/ with model=NAME"),
        ("kernels.variants=[]", ConfigError, "give names in brackets"),
        ("collect.iterations=2.5", ConfigError, "give a whole number above 0"),
        ("predict=3", ConfigError, "write predict.KEY=value"),
        ("+model.tables=4", ConfigError, "write it without the plus"),
        ("gpu=V100 T4", ConfigError, "write several values with commas and no spaces: gpu=V100,T4"),
        (
            "gpu=GeForce RTX 4070 Ti",
            UnknownNameError,
            "unknown GPU 'GeForce RTX 4070 Ti': did you mean 'RTX4060Ti'",
        ),
        (
            "gpu=NVIDIA Q7",
            UnknownNameError,
            "unknown GPU 'NVIDIA Q7': choose one of .*gpu=FILE.yaml",
        ),
        (
            "gpu=glob(Z*)",
            ConfigError,
            r"gpu=glob\(Z\*\): no gpu has a name like this; choose among .*A100.*V100",
        ),
        (
            "batch_size=glob(*)",
            ConfigError,
            r"batch_size=glob\(\*\): only gpu, model, kernels, overheads, parallel, host, ",
        ),
        (
            "model=resnet50 batch_size=32",
            ConfigError,
            "cannot read the override 'model=resnet50 batch_size=32'",
        ),
    ],
)
def test_a_bad_override_gets_one_line_with_the_remedy(
    override: str, error: type[Exception], says: str
) -> None:
    whole = override.startswith(("gpu", "model="))
    with pytest.raises(error, match=says) as raised:
        expand([override] if whole else ["gpu=V100", "model=dlrm_default", override])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name, gpus",
    [
        ("NVIDIA A10G", ["A10G"]),
        ("NVIDIA H100 80GB HBM3,Tesla T4", ["H100", "T4"]),
    ],
)
def test_a_gpu_may_have_the_name_that_cuda_gives_it(name: str, gpus: list[str]) -> None:
    assert [question.gpu.name for question in expand([f"gpu={name}"])] == gpus


@pytest.mark.parametrize("text", ["gpu=V100", "model.dim=32"])
def test_an_option_that_is_given_twice_is_no_choice_of_one(text: str) -> None:
    """Regression: the last value replaced the first one without a warning."""
    key = text.partition("=")[0]
    for other in (f"{key}=3", f"+{key}=3", f"++{key}=3"):
        with pytest.raises(ConfigError, match=f"give {key} once, several values as {key}=a,b"):
            expand([text, other])


def test_values_from_snakemake_become_overrides_of_hydra() -> None:
    given = {"gpu": "V100,P100", "batch_size": 512, "overrides": "model.tables=4 model.dim=32"}
    asked = "gpu=V100,P100 batch_size=512 model.tables=4 model.dim=32"
    assert from_snakemake(given) == asked.split()


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The configuration with a GPU and a workload copied, and nothing changed in the copies yet."""
    shutil.copytree(config_dir(), tmp_path / "config")
    for folder, name, copy in (("gpu", "V100", "MY_GPU"), ("model", "dlrm_small", "my-Model")):
        shutil.copy(
            tmp_path / f"config/{folder}/{name}.yaml", tmp_path / f"config/{folder}/{copy}.yaml"
        )
    for module in ("pipeline.question.compose", "pipeline.paths"):
        monkeypatch.setattr(f"{module}.config_dir", lambda: tmp_path / "config")
    yield tmp_path / "config"
    compose.forget()


def test_a_copied_file_is_refused_until_it_has_a_name_of_its_own(copied: Path) -> None:
    with pytest.raises(ConfigError, match="name is 'V100', expected 'MY_GPU'"):
        expand(["gpu=MY_GPU"])
    gpu = copied / "gpu" / "MY_GPU.yaml"
    gpu.write_text(gpu.read_text().replace("name: V100\n", "name: MY_GPU\n"))
    with pytest.raises(ConfigError, match=r"V100.yaml: .V100-PCIE-32GB. is also a name of MY_GPU"):
        expand(["gpu=MY_GPU"])
    gpu.write_text(re.sub(r"aliases:\n(  - .*\n)+", "", gpu.read_text()))
    with pytest.raises(
        ConfigError, match=r"model/my-Model.yaml: name is 'dlrm_small', expected 'my-Model'"
    ):
        expand(["gpu=MY_GPU", "model=my-Model"])
    model = copied / "model" / "my-Model.yaml"
    model.write_text(model.read_text().replace("name: dlrm_small\n", "name: my-Model\n"))
    compose.forget()
    (point,) = expand(["gpu=MY_GPU", "model=my-Model"])
    assert (point.gpu.name, point.model, point.variant) == ("MY_GPU", "my-Model", "default")


def test_values_of_python_are_written_as_overrides():
    from pipeline.question.settings import written

    (found,) = expand([f"model.bottom_mlp={written((512, 128, 64))}"])
    assert found.workload.plain()["bottom_mlp"] == [512, 128, 64]
    (custom,) = expand(
        ["model=custom", "model.target=m:f", f"+model.options={written({'width': 3, 'of': None})}"]
    )
    assert custom.workload.plain()["options"] == {"width": 3, "of": None}


def test_a_pattern_stands_for_all_names_that_fit_it():
    names = [point.gpu.name for point in expand(["gpu=glob(*100,exclude=B*)"])]
    assert names == ["GV100", "H100", "P100", "V100"]


CUSTOM = ["model=custom", "model.target=m:f"]


@pytest.mark.parametrize("text", ["+model.option.layers=3", "+model.layers=3"])
def test_a_key_of_a_custom_model_that_nothing_reads_is_refused(text: str) -> None:
    """Regression: `option` for `options` changed nothing and nobody was told."""
    with pytest.raises(
        ConfigError, match=r"unknown option .* of model=custom: .*model\.options\."
    ) as raised:
        expand([*CUSTOM, text])
    assert "seq_len" in str(raised.value)


def test_options_of_the_users_own_step_need_no_plus() -> None:
    variants = {
        expand([*CUSTOM, text])[0].variant
        for text in ("model.options.width=3", "+model.options.width=3")
    }
    assert len(variants) == 1 and variants != {expand(CUSTOM)[0].variant}


def test_a_missing_value_comes_with_an_example() -> None:
    with pytest.raises(
        ConfigError,
        match=r"a value for model\.target, for example model\.target=my_module:make_step",
    ):
        expand(["model=custom"])


def test_an_unknown_option_lists_those_that_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"'model\.embedding' of model=resnet50: its options are .*memory_format"
    ):
        expand(["model=resnet50", "model.embedding=sparse"])
