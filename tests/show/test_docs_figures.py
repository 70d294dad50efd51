"""Figures that the documents show beside a command are those that the command gives, from what ships."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline import predict
from pipeline.answers.kernel_commands import predict_command
from pipeline.cli import app
from pipeline.paths import project_dir
from pipeline.simulate.replay import replay
from pipeline.simulate.replay_result import table

DDP = {"model": "dlrm_ddp"}
WAITING = {"model__copies": "pageable", "model__read_loss": "before_backward"}
NEAR = 0.004
"""Figures are shown to three digits; the rest is left to arithmetic on other processors."""


@pytest.fixture(autouse=True)
def what_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither public data nor results of an earlier run."""
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    monkeypatch.chdir(tmp_path)


def page(name: str) -> str:
    return (project_dir() / name).read_text(encoding="utf-8")


def row(name: str, begin: str) -> list[float]:
    """The numbers behind the first cell of a table's row."""
    line = next(line for line in page(name).splitlines() if line.startswith(begin))
    return [
        float(text.replace(",", "")) for text in re.findall(r"[\d.,]*\d", line.split("|", 2)[2])
    ]


@pytest.mark.parametrize(
    ("begin", "asked"),
    [
        ("| batches from pinned memory", DDP),
        ("| `model.read_loss=before_backward` |", {**DDP, "model__read_loss": "before_backward"}),
        ("| `model.copies=pageable` |", {**DDP, "model__copies": "pageable"}),
        ("| both, as facebookresearch/dlrm does", {**DDP, **WAITING}),
        (
            "| both, with `model.foreach=false",
            {**DDP, **WAITING, "model__foreach": False, "model__set_to_none": False},
        ),
    ],
)
def test_what_waiting_costs(begin: str, asked: dict[str, Any]) -> None:
    step, idle = row("docs/workloads.md", begin)
    answer = predict("V100", **asked)
    assert answer.predicted_us / 1e3 == pytest.approx(step, rel=NEAR, abs=0.006)
    assert answer.idle_us / 1e3 == pytest.approx(idle, rel=NEAR, abs=0.006)


def test_what_cuda_graphs_save() -> None:
    shown = row("docs/workloads.md", "| `dlrm_ddp`, batch 512")
    found = [
        predict("V100", batch_size=512, predict__cuda_graph=graph, **DDP) for graph in (False, True)
    ]
    times = [time / 1e3 for each in found for time in (each.predicted_us, each.idle_us)]
    assert times == pytest.approx(shown, rel=NEAR, abs=0.006)


def test_a_what_if_of_a_gpu() -> None:
    for begin, asked in (
        ("| BERT-Large, batch 8", {"model": "bert_large"}),
        ("| DLRM, batch 2048", {}),
    ):
        shown = row("config/README.md", begin)
        real, more = (
            predict("V100", **asked, **figures) for figures in ({}, {"gpu__dram_gb_per_s": 1800})
        )
        times = [
            time / 1e3
            for each in (real, more)
            for time in (each.predicted_us, each.p10_us, each.p90_us)
        ]
        assert times == pytest.approx(shown[-6:], rel=NEAR)


def kernels(calls: dict[str, Any]) -> pd.DataFrame:
    """What `steptime kernels predict --gpu V100` writes."""
    pd.DataFrame(calls).to_parquet("calls.parquet")
    predict_command("V100", None, "calls.parquet", "predicted.parquet")
    return pd.read_parquet("predicted.parquet")


def test_kernels_of_a_linear_layer_and_of_lookups() -> None:
    found = kernels({"op": "linear", "B": 1, "M": [1024, 1280, 1296], "N": 1024, "K": 1024})
    for place, rows in enumerate(found["M"]):
        shown = row("docs/kernels.md", f"| {rows} |")
        assert found.loc[
            place, ["predicted_us", "p10_us", "p90_us", "kernel_us"]
        ].to_list() == pytest.approx(shown, rel=NEAR)
    step = found["predicted_us"].diff().to_list()
    told = re.search(
        r"costs ([\d.]+) µs more than one of 1024; sixteen rows beyond it cost another (\d+\.\d)",
        page("docs/kernels.md"),
    )
    assert told is not None
    assert [float(text) for text in told.groups()] == pytest.approx(step[1:], abs=1.0)
    sizes = {"B": 2048, "T": 8, "E": 1_000_000, "L": 100, "D": 64}
    sizes["op"] = ["embedding_forward", "embedding_backward"]
    both = re.search(r"V100: (\d+) and (\d+) µs of kernel time", page("docs/kernels.md"))
    assert both is not None
    times = kernels(sizes)["kernel_us"].to_list()
    assert times == pytest.approx([float(text) for text in both.groups()], rel=NEAR)


def test_the_break_even_of_a_host_bound_step() -> None:
    section = page("docs/workloads.md").partition("## The host")[2]
    shown = section.partition("```text\n")[2].partition("```")[0]
    says = shown.removeprefix("limited by").strip()
    now = dict(predict("V100", batch_size=512, **DDP).rows())["limited by"]
    assert numbers(says) == pytest.approx(numbers(now), rel=NEAR, abs=0.011)
    assert re.sub(NUMBER, "#", says) == re.sub(NUMBER, "#", now)


NUMBER = r"[-+]?[\d,]*\.?\d+"


def numbers(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in re.findall(NUMBER, text)]


def test_the_replay_of_a_public_trace(datasets: Path) -> None:
    shown = page("docs/replay.md").partition("```text\n")[2].partition("```")[0].splitlines()[1:-1]
    stream = io.StringIO()
    result = replay(datasets / "traces" / "a100x8_dlrm" / "kineto.json.gz").as_dict()
    Console(file=stream, width=160).print(table(result))
    cells = stream.getvalue().replace("│", " ").replace("), the predicted span", ")")
    made = [" ".join(line.split()) for line in cells.splitlines()]
    assert {" ".join(line.split()) for line in shown} <= {*made}


def test_the_first_example_of_the_readme_is_what_prints() -> None:
    shown = page("README.md").partition("```text\n")[2].partition("```")[0].splitlines()
    printed = (
        CliRunner()
        .invoke(app, ["predict", "gpu=V100", "model=dlrm_default", "batch_size=2048"])
        .output.splitlines()
    )
    assert [re.sub(r"[\d.,]+| +|█+", "#", line) for line in shown] == [
        re.sub(r"[\d.,]+| +|█+", "#", line) for line in printed
    ]
    assert numbers(" ".join(shown)) == pytest.approx(
        numbers(" ".join(printed)), rel=NEAR, abs=0.006
    )


def test_the_readme_is_short() -> None:
    assert len(page("README.md").splitlines()) <= 100
