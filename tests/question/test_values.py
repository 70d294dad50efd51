"""Values and names that make no sense are answered by one line that says where and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline import paths
from pipeline.errors import ConfigError, InputError
from pipeline.question.embedding_tables import tables
from pipeline.question.index_distributions import distributions
from pipeline.question.question import expand


@pytest.mark.parametrize(
    ("wrong", "suggested"),
    [
        ("model=dlrm_defalt", "'dlrm_default'"),
        ("overheads=share", "'shared'"),
        ("experiment=paper_dlm", "'paper_dlrm'"),
        ("model.optimizer=adan", "'adam'"),
        ("gpu.dram_gb_s=900", "'gpu.dram_gb_per_s'"),
    ],
)
def test_a_misspelt_name_is_answered_by_the_nearest_one(wrong: str, suggested: str) -> None:
    with pytest.raises(InputError, match=f"did you mean {suggested}"):
        expand([wrong])


def test_a_figure_that_the_file_leaves_out_can_be_added() -> None:
    with pytest.raises(
        ConfigError,
        match=r"gpu\.pcie_lanes: the file of gpu=V100 does not state it: add it with \+gpu",
    ):
        expand(["gpu=V100", "gpu.pcie_lanes=8"])
    assert (
        expand(["gpu=V100", "+gpu.pcie_lanes=8"])[0].gpu.pcie_gb_per_s
        == expand(["gpu=V100"])[0].gpu.pcie_gb_per_s / 2
    )


@pytest.mark.parametrize(
    "text",
    [
        "overheads.host_scale=inf",
        "overheads.host_scale=fast",
        "overheads.profiler_event_us=-5",
        "predict.seed=-1",
        "predict.draws=9",
        "gpu.memory_gib=-1",
        "gpu.dram_gb_per_s=0",
        "model.bottom_mlp=[512,abc,64]",
        "model.tables=[1,2]",
        "model.lookups=1.5",
        "model.rows=[10,-3]",
        "model.distribution=3",
        "gpu.sms={a:1}",
        "predict.draws=1000000000",
        "parallel.micro_batches=1000000000",
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(InputError, match=text.partition("=")[0].replace(".", r"\.")):
        expand(["gpu=V100", "model=dlrm_default", text])


@pytest.mark.parametrize("text", ["model.dropout=5", "model.dropout=-0.1"])
def test_a_share_lies_between_0_and_1(text: str) -> None:
    with pytest.raises(InputError, match=r"model\.dropout=.*: give a number 0 or above, at most 1"):
        expand(["gpu=V100", "model=gpt", text])


@pytest.mark.parametrize("text", ["gauss", "zipf:abc", "zipf:nan", "zipf:0", "uniform:3"])
def test_an_unknown_index_distribution_is_no_uniform_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.distribution"):
        distributions({"distribution": text}, 2)
    assert distributions({"distribution": "zipf:1.05"}, 2) == ["zipf:1.05"] * 2


def test_a_histogram_of_lookups_is_for_all_tables_or_for_each(tmp_path: Path) -> None:
    path = tmp_path / "hot.yaml"
    config = {"distribution": str(path)}
    path.write_text("[[0.99, 0.2], [0.01, 0.8]]")
    assert distributions(config, 2) == ["bins:0.01/0.8,0.99/0.2"] * 2
    path.write_text("[[[1, 1]], [[0.5, 3], [0.5, 1]]]")
    assert distributions(config, 2) == ["bins:1/1", "bins:0.5/0.75,0.5/0.25"]
    with pytest.raises(ConfigError, match="is of 2 tables; the model has 3"):
        distributions(config, 3)
    path.write_text("[[0.5, 0], [0.5, 1]]")
    with pytest.raises(ConfigError, match="a share of the rows"):
        distributions(config, 2)


def test_tables_that_a_file_lacks_are_named_with_how_many_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    path.write_text(
        json.dumps([{"num_embeddings": 10, "pooling_factor": 2}, {"num_embeddings": 20}])
    )
    assert tables({"table_configs": str(path), "tables": [1, 0]}) == ([20, 10], [1, 2])
    for wanted in ([4, 24], [-1], [], 3, ["a"]):
        with pytest.raises(ConfigError, match=r"model\.tables="):
            tables({"table_configs": str(path), "tables": wanted})


@pytest.mark.parametrize("content", ["", "[]", '[{"num_embeddings": "many"}]', '[{"rows": 3}]'])
def test_a_file_without_tables_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tables.json"
    path.write_text(content)
    for wrong in (path, tmp_path, tmp_path / "nowhere.json"):
        with pytest.raises(ConfigError, match=r"table_configs"):
            tables({"table_configs": str(wrong)})


@pytest.mark.parametrize("digits", ["1" * 5000, "[" * 3000])
def test_numbers_of_thousands_of_digits_are_refused(digits: str) -> None:
    with pytest.raises(ConfigError):
        expand([f"batch_size={digits}"])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the configuration, in the place of the one that ships."""
    shutil.copytree(paths.config_dir(), tmp_path / "config")
    (tmp_path / "packs").symlink_to(paths.packs_dir())
    monkeypatch.setattr(paths, "project_dir", lambda: tmp_path)
    monkeypatch.setenv("STEPTIME_CACHE", "none")
    return tmp_path / "config"


BOMB = b"a0: &a0 [x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 12)
)
"""A few lines of YAML that stand for billions of values. Hydra would take hours."""


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.yaml", None, "config.yaml: not readable"),
        ("config.yaml", b"{", "config.yaml: not readable as YAML"),
        ("config.yaml", b"batch_size: 1\nbatch_size: 2", "given twice"),
        ("model/dlrm_small.yaml", b"name: dlrm_small\nname: x", "dlrm_small.yaml: .* given twice"),
        ("model/dlrm_small.yaml", BOMB, "dlrm_small.yaml: .* aliases"),
        ("gpu/V100.yaml", BOMB, "V100.yaml: .* aliases"),
        ("kernels/auto.yaml", b"a: &a [*a]", "auto.yaml: .* aliases"),
        ("model/dlrm_small.yaml", b"dim: 3", "model.name is missing"),
        ("kernels/auto.yaml", b"name: auto", "kernels.variants is missing"),
        (
            "overheads/shared.yaml",
            b"name: shared\nobservations: 3\n",
            "overheads.observations=3: Expected `str`, got `int`",
        ),
    ],
)
def test_a_damaged_file_of_the_configuration_is_named(
    files: Path, name: str, content: bytes | None, told: str
) -> None:
    (files / name).unlink() if content is None else (files / name).write_bytes(content)
    with pytest.raises(ConfigError, match=told) as caught:
        expand(["model=dlrm_small"])
    assert "\n" not in str(caught.value)


def test_types_have_the_names_of_pytorch_too() -> None:
    named, usual = (
        [(point.workload, point.variant) for point in expand([f"model.dtype={dtypes}"])]
        for dtypes in ("float32,float16,bfloat16", "fp32,fp16,bf16")
    )
    assert named == usual and len(named) == 3
