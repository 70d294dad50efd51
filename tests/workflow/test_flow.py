"""What a workflow run refuses before any job starts, in one line, and which points share what they rest on."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.errors import SteptimeWarning, TableError
from pipeline.flow import Flow, wildcards_of
from pipeline.scripting import job
from pipeline.show import grid_inputs
from pipeline.show.run_hooks import failures


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    monkeypatch.delenv("STEPTIME_MEASUREMENTS", raising=False)


def refused(capsys: pytest.CaptureFixture[str], **config: str) -> str:
    with pytest.raises(SystemExit) as stop:
        Flow.from_config(config)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_results_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").touch()
    for place in (tmp_path / "taken", tmp_path / "taken" / "below"):
        assert f"results={place}: {tmp_path}/taken is not a writable folder" in refused(
            capsys, results=str(place)
        )
    place = str(tmp_path / "new" / "place")
    assert Flow.from_config({"results": place}).artifacts.root == place


def test_families_to_fit_are_names_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gem" in refused(capsys, overrides="kernels.families=[gem]")
    assert "kernels.families=[gemm,bmm]" in refused(capsys, overrides="kernels.families=gemm")


@pytest.mark.parametrize("variable", ["STEPTIME_DATASETS", "STEPTIME_MEASUREMENTS"])
def test_a_misspelt_folder_of_data_is_refused_and_not_taken_for_none(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "/no/such/folder")
    assert f"${variable}=/no/such/folder: no such folder" in refused(capsys, gpu="V100")


def test_points_share_overheads_unless_a_setting_shapes_them() -> None:
    overrides = "overheads.estimator=clipped_mean,median overheads.host_scale=1,2"
    flow = Flow.from_config({"gpu": "V100", "overrides": overrides})
    rests_on = {}
    for point in flow.points:
        rests_on[point.variant] = flow.overheads_of_point(wildcards_of(point))
    assert len(flow.points) == len(rests_on) == 4
    assert len(set(rests_on.values())) == 2
    for path in set(
        rests_on.values()
    ):  # the rule that makes it finds the settings by the file's name
        settings = flow.overhead_settings(SimpleNamespace(overheads=Path(path).stem))
        assert settings["estimator"] == (
            "clipped_mean" if path == "results/V100/overheads.parquet" else "median"
        )
        assert "host_scale" not in settings, "would make the statistics anew for nothing"


def test_a_failed_run_says_why_once_and_below_all_else(tmp_path: Path) -> None:
    def failing(name: str, error: BaseException) -> None:
        with (
            pytest.raises((SystemExit, KeyError)),
            job(SimpleNamespace(log=[tmp_path / "logs" / name], threads=1)),
        ):
            raise error

    failing("a.log", TableError("graph.parquet: damaged\n(no footer)"))
    failing("b.log", TableError("graph.parquet: damaged (no footer)"))
    failing("c.log", KeyError("dims"))
    failing("d.log", KeyboardInterrupt())
    first, second = failures(tmp_path, 0.0)
    assert first == "graph.parquet: damaged (no footer)"
    assert second.startswith("KeyError: 'dims' (an error of Steptime; see ")
    assert failures(tmp_path, time.time() + 60) == []


def test_a_job_shows_our_warnings_and_none_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(), job(SimpleNamespace(log=[], threads=2)):
        warnings.warn("run: 1 of 2 samples dropped", SteptimeWarning, stacklevel=1)
        warnings.warn("internal matters", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "steptime: warning: run: 1 of 2 samples dropped\n"


def test_a_comparison_of_kernel_models_without_samples_says_so() -> None:
    flow = Flow.from_config({"gpu": "V100,L4", "kernels": "compare"})
    first, second = flow.not_fitted()
    assert "no samples of L4" in first
    assert "no samples of V100" in second
    assert Flow.from_config({"gpu": "V100"}).not_fitted() == []


def test_the_folder_of_a_grid_says_which_experiment_it_is() -> None:
    whole, part = (
        Flow.from_config({"experiment": "paper_cnn", **more}).grid for more in ({}, {"gpu": "V100"})
    )
    assert whole.startswith("paper_cnn-")
    assert part.startswith("paper_cnn-")
    assert whole != part
    assert Flow.from_config({"gpu": "V100,P100"}).grid.startswith("2-points-")


def same_files(**config: str) -> tuple[object, ...]:
    """Everything of a grid that a rule's files and params depend on."""
    flow = Flow.from_config(config)
    points = [wildcards_of(point) for point in flow.points]
    return (
        flow.grid,
        flow.of_points("summary.parquet"),
        [flow.question(at) for at in points],
    )


def test_a_grid_makes_the_same_files_in_any_order() -> None:
    one = same_files(
        gpu="V100,P100", batch_size="64,512", overrides="model.optimizer=adam,sgd model.dtype=bf16"
    )
    other = same_files(
        overrides="model.dtype=bf16 model.optimizer=sgd,adam", batch_size="512,64", gpu="P100,V100"
    )
    assert one == other
    assert same_files(gpu="V100", batch_size="64") != same_files(gpu="V100", batch_size="512")


@pytest.mark.parametrize(
    "overrides",
    [
        "model.optimizer=sgd,adam",
        "overheads.host_scale=2,1",
        "host=usual,typical-2020",
        "kernels=auto,trees",
    ],
)
def test_a_point_makes_the_same_files_alone_and_in_a_grid_that_states_its_default(
    overrides: str,
) -> None:
    (alone,) = Flow.from_config({"gpu": "V100", "model": "dlrm_small"}).points
    flow = Flow.from_config({"gpu": "V100", "model": "dlrm_small", "overrides": overrides})
    question = flow.question(wildcards_of(alone))
    assert question == Flow.from_config({"gpu": "V100", "model": "dlrm_small"}).question(
        wildcards_of(alone)
    )


def test_a_gpu_makes_the_same_files_by_its_alias() -> None:
    names = [Flow.from_config({"gpu": name}) for name in ("A100", "A100-PCIE-40GB")]
    one, other = (flow.question(wildcards_of(flow.points[0])) for flow in names)
    assert one == other and names[0].points[0].notes, (
        "the note is printed, and no file depends on it"
    )


def test_a_campaign_is_files_so_that_an_edit_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("manifest.json", "traces/a.tar", "a_table.parquet"):
        (tmp_path / "H200" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "H200" / name).write_text("content")
    monkeypatch.setenv("STEPTIME_MEASUREMENTS", str(tmp_path))
    flow = Flow.from_config({"gpu": "V100"})
    files = flow.campaign(SimpleNamespace(gpu="H200"))
    assert [Path(file).name for file in files] == ["manifest.json", "a_table.parquet", "a.tar"]


def test_files_that_ship_are_not_looked_for_in_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from snakemake.io import is_flagged

    flow = Flow.from_config({"gpu": "V100", "results": str(tmp_path)})
    gpu = SimpleNamespace(gpu="V100")
    shipped = [flow.overhead_samples(gpu), flow.public("traces"), *grid_inputs.price_table()]
    assert len(shipped) == 3 and all(is_flagged(path, "local") for path in shipped)
    assert not is_flagged(flow.overheads_of_point(wildcards_of(flow.points[0])), "local")
