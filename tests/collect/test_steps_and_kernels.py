"""What `gpu=local` measures: a step with its traces, and the kernels that it makes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from pipeline.collect import measured_steps
from pipeline.collect.campaign_grid import load_model, parse
from pipeline.collect.device import select_device, undisturbed
from pipeline.collect.measured_steps import collect_step
from pipeline.collect.microbenchmarks import measure_calls
from pipeline.errors import ConfigError, InputError, UnknownNameError
from pipeline.graph.device_calls import map_calls
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.measured.campaign_reader import read_samples, read_step_time
from pipeline.paths import measurements_dir
from pipeline.schemas import read_provenance, read_table, write_table
from pipeline.trace.load import load_trace

TINY = {"bottom_mlp": [16, 16], "top_mlp": [32, 1], "dim": 16, "rows": 500, "tables": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("step")
    with pytest.MonkeyPatch.context() as patch:  # a busy machine never repeats a time
        patch.setattr(measured_steps, "MAX_WARM_UP", 3)
        patch.setattr(measured_steps, "MAX_ROUNDS", 1)
        given = {"iterations": 3, "seconds": 0.2, "provenance": {"commit": "abc"}}
        collect_step({**load_model("dlrm_small"), **TINY}, 16, "cpu", out, **given)
    return out


def test_a_step_leaves_its_times_and_both_traces(folder: Path) -> None:
    row = read_table(folder / "step_times.parquet", "step_times").iloc[0]
    assert row["model"] == "dlrm_small"
    assert 0 < row["p10_us"] <= row["step_us"] <= row["p90_us"]
    assert read_step_time(folder / "step_times.parquet") == row["step_us"]
    made = read_provenance(folder / "step_times.parquet")
    assert made["commit"] == "abc" and made["device"]
    trace = load_trace(folder / "kineto.json.gz")
    assert (trace.device, len(trace.iterations)) == ("cpu", 3)


def test_every_call_of_the_step_is_measured(folder: Path, tmp_path: Path) -> None:
    graph = import_execution_trace(folder / "execution_trace.json.gz")
    calls = map_calls(graph, None, device="cpu")
    for seconds in (3.0, 30.0):  # a busy machine takes longer to come to the sizes around the calls
        samples = measure_calls(calls, "cpu", seconds, graph=graph.table)
        if len(samples) > len(calls):
            break
    assert samples.attrs["unmeasured"] == {}
    assert set(calls["family"]) == set(samples["family"])
    assert len(samples) > len(calls)  # also sizes around them
    assert {"backward", "optimizer", "forward"} <= set(samples["phase"])
    write_table(samples, tmp_path / "samples.parquet", "samples")
    assert len(read_table(tmp_path / "samples.parquet", "samples")) == len(samples)


def test_calls_are_measured_without_their_graph_and_others_are_counted() -> None:
    rows = {"node_id": [0, 1], "family": ["gemm", "collective"], "op": ["linear", "all_reduce"]}
    rows |= {"phase": "forward", "dtype": "fp32", "B": 1, "M": 8, "N": 8, "K": 8, "bytes": 64}
    samples = measure_calls(pd.DataFrame(rows), "cpu", 0.2, sampled=False)
    assert list(samples["family"]) == ["gemm"]
    assert list(samples.attrs["unmeasured"].values()) == [1]


def test_repetitions_in_which_the_core_was_taken_away_do_not_count() -> None:
    assert undisturbed([10.0, 10.1, 25.0, 10.2], [10.0, 10.1, 10.0, 10.1]) == [10.0, 10.1, 10.2]
    busy = undisturbed([30.0, 20.0, 25.0, 40.0], [10.0, 11.0, 10.0, 10.0])
    assert busy == [10.0, 11.0, 10.0, 10.0], (
        "a machine that is never free is timed by the CPU's clock"
    )


def test_unknown_devices_and_models_list_the_choices() -> None:
    with pytest.raises(InputError, match="auto, cpu, cuda"):
        select_device("tpu")
    with pytest.raises(UnknownNameError, match="dlrm_default"):
        load_model("dlrm_huge")


def test_model_files_read_the_same_without_pyyaml() -> None:
    yaml = pytest.importorskip("yaml")
    for path in sorted((Path(__file__).parents[2] / "config" / "model").glob("*.yaml")):
        assert parse(path.read_text(), path) == yaml.safe_load(path.read_text()), path.name
    with pytest.raises(ConfigError, match="without PyYAML"):
        parse("a:\n  - 1\n")


def test_operators_that_were_timed_for_fused_lookups_are_no_samples_of_them(tmp_path: Path) -> None:
    folder = measurements_dir() / "H100"
    fused = read_table(folder / "samples.parquet", "samples")["op"].isin(["fused", "fused_sgd"])
    samples = read_samples(folder)
    assert fused.sum() == 35 and len(samples) == len(fused) - 35
    assert {"bag", "gather", "sparse", "dense"} <= set(samples["op"])
    assert "fused" not in set(samples["op"])
    sizes = {"dtype": "fp32", "B": 4, "T": 2, "L": 2, "E": 16, "D": 4}
    calls = pd.DataFrame({"op": ["fused", "bag", "fused_sgd"], **sizes})
    calls["phase"] = ["forward", "forward", "backward"]
    calls["family"] = "embedding_" + calls["phase"]
    now = measure_calls(calls, "cpu", 0.2, sampled=False)
    write_table(now, tmp_path / "samples.parquet", "samples")
    shutil.copy(folder / "manifest.json", tmp_path)
    assert len(now) == 3 and list(read_samples(tmp_path)["op"]) == ["bag"]
