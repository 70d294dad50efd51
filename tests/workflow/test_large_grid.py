"""A large grid from a shell: jobs that predict many points, which make only what has changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.answers.predict_point import predict_point
from pipeline.config import expand
from pipeline.flow import GROUPED_FROM, POINTS_PER_JOB, Flow
from pipeline.schemas import read_table
from pipeline.settings import packed, unpacked
from tests.workflow.test_main_job import snakemake

SIZES = tuple(range(8, 8 * GROUPED_FROM + 8, 8))


def _config(sizes: tuple[int, ...]) -> list[str]:
    return ["gpu=V100", "model=dlrm_small", f"batch_size={','.join(map(str, sizes))}"]


def _inodes(folder: Path) -> dict[str, int]:
    """Inode of each artifact of a point: a file that is written anew has another one."""
    return {
        str(path.relative_to(folder)): path.stat().st_ino for path in folder.glob("results/V100/dlrm_small/*/b*/*.*")
    }


def test_jobs_of_a_large_grid_predict_as_single_points_do_and_make_only_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = snakemake("--config", *_config(SIZES), folder=tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]
    output = run.stdout + run.stderr
    assert "predict_1" in output and "predict_2" not in output
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    for point in expand(_config(SIZES))[::5]:
        path = tmp_path / f"results/V100/dlrm_small/default/b{point.batch_size}/summary.parquet"
        row, alone = read_table(path, "summary").iloc[0], predict_point(point, None)
        for figure in ("predicted_us", "p10_us", "p90_us", "active_us", "memory_bytes"):
            assert row[figure] == pytest.approx(getattr(alone, figure), rel=1e-9), figure

    before = _inodes(tmp_path)
    run = snakemake("--config", *_config(SIZES), folder=tmp_path)
    assert "Nothing to be done" in run.stdout + run.stderr

    run = snakemake("--config", *_config((*SIZES, 1000)), folder=tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]
    after = _inodes(tmp_path)
    assert {name.split("/")[-2] for name in after.keys() - before.keys()} == {"b1000"}
    assert {name: after[name] for name in before} == before


def _large(**config: str) -> Flow:
    sizes = ",".join(map(str, range(1, POINTS_PER_JOB + 11)))
    return Flow.from_config({"gpu": "V100,T4,local", "model": "dlrm_small,dcgan", "batch_size": sizes} | config)


def test_points_of_a_large_grid_share_jobs_and_graphs_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    flow = _large()
    points = [point for job in flow.jobs for point in job]
    assert len(points) == 4 * (POINTS_PER_JOB + 10) and not any(point.local for point in points)
    assert [len(job) for job in flow.jobs] == [POINTS_PER_JOB] * 4 + [40]
    workloads = [(point.model, point.batch_size) for point in points]
    assert workloads[::2] == workloads[1::2], "the points of one workload follow each other"
    assert all(len({(point.model, point.model_variant) for point in graphs}) == 1 for graphs in flow.captures)
    captured = [(point.model, point.batch_size) for graphs in flow.captures for point in graphs]
    assert len(captured) == len(set(captured)) == 2 * (POINTS_PER_JOB + 10)


def test_gpus_whose_models_are_fitted_have_jobs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flow, "models_of_point", lambda self, at: [f"{at.gpu}/gemm"])
    assert all(len({point.gpu for point in job}) == 1 for job in _large().jobs)


def test_statistics_of_shipped_overheads_are_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    flow = _large()
    assert [each.gpu for each in flow.shipped_statistics] == ["V100", "T4"]
    alone = re.compile(flow.single_statistics + "/overheads")
    assert alone.fullmatch("local/overheads") and alone.fullmatch("T4x/overheads")
    assert not alone.fullmatch("T4/overheads") and not alone.fullmatch("V100/overheads")


def test_a_small_grid_has_a_job_for_each_point() -> None:
    flow = Flow.from_config({"gpu": "V100,T4", "model": "dlrm_small", "batch_size": "8,16"})
    assert flow.jobs == flow.captures == []


def test_what_points_share_is_stored_once() -> None:
    points = [{"gpu": {"sms": 80}, "name": "a"}, {"gpu": {"sms": 80}, "name": "b"}, {"gpu": {"sms": 40}, "name": "c"}]
    param = packed(points)
    assert unpacked(param) == points and param["shared"] == [{"sms": 80}, "a", "b", {"sms": 40}, "c"]
