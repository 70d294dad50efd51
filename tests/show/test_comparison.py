"""A comparison on terminals of every width: what rows share, what is left out, and points without a prediction."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pipeline.answers import answer_files
from pipeline.answers.engine import Answer
from pipeline.answers.memory_fit import first_digits
from pipeline.commands import comparing_commands
from pipeline.errors import ConfigError, InputError
from pipeline.prediction import Prediction
from pipeline.prediction_parts import Arithmetic, SeveralGpus
from pipeline.question.question import Question, expand
from pipeline.schemas import read_table
from pipeline.show.comparison import Comparison
from tests.commands import Steptime
from tests.predictions import predicted

STEP = predicted(
    8000.0,
    model="custom",
    variant="v0123456789",
    batch_size=2048,
    active_us=6000.0,
    host_us=3000.0,
    p10_us=7500.0,
    p90_us=9000.0,
    memory_bytes=2 << 30,
    evidence={"pack": 0.9, "roofline": 0.1},
    host_evidence={"shared": 1.0},
    overrides=("model.target=my_module:make_step", "model.options.width=512"),
)


def answering(answer: Callable[[Question], Answer]) -> Callable[..., SimpleNamespace]:
    """In place of `engine`: gives these answers."""
    return lambda **results: SimpleNamespace(predict=lambda questions: map(answer, questions))


def shown(comparison: Comparison, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(comparison)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def rows(*changes: dict[str, object], **common: object) -> list[Prediction]:
    return [dataclasses.replace(STEP, **common, **change) for change in changes]  # type: ignore[arg-type]


def test_no_star_compares_gpus_whose_hosts_differ() -> None:
    points = rows({"gpu": "V100", "host": "a"}, {"gpu": "T4", "host": "a", "predicted_us": 9e3})
    elsewhere = [points[0], dataclasses.replace(points[1], host="b")]
    assert "★" in str(Comparison(points)) and "★" not in str(Comparison(elsewhere))


@pytest.fixture(autouse=True)
def without_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts are those of a table without prices, unless a test gives some."""
    monkeypatch.setenv("STEPTIME_PRICES", "none")


def test_an_option_of_all_rows_is_in_the_heading_alone_and_one_that_differs_in_its_row() -> None:
    other = (STEP.overrides[0], "model.options.width=1024")
    lines = shown(Comparison(rows({}, {"overrides": other})), 100)
    assert lines[0] == "custom on V100, batch 2048 (target=my_module:make_step)"
    assert sum("make_step" in line for line in lines) == 1
    assert "options.width=512" in lines[2] and "options.width=1024" in lines[3]


@pytest.mark.parametrize("width", [60, 80, 90])
def test_bound_and_interval_stay_and_what_goes_is_named(width: int) -> None:
    times = {"predicted_us": 2.1e7, "p10_us": 1.9e7, "p90_us": 2.3e7}
    found = rows({}, {"gpu": "A100-PCIE-40GB", "fits": False, **times})
    lines = shown(
        Comparison(found, {f"{p.gpu}/{p.model}/{p.variant}": 1_200_000 for p in found}), width
    )
    text = "\n".join(lines)
    assert "bound" in text and "7.50-9.00" in text and "19,000-23,000" in text
    assert max(map(len, lines)) <= width
    header = next(line for line in lines if "p10-p90" in line)
    hidden = [head for head in ("busy", "mem GiB", "how sure", "max batch") if head not in header]
    told = f"Not shown: {', '.join(hidden)} (a wider terminal, or --json)."
    assert (told in " ".join(text.split())) == bool(hidden)
    assert bool(hidden) == (width < 90)


ARITHMETIC = Arithmetic(4e10, "fp32", {"fp32": 20.0})
"""5 TFLOP/s in a step of 8 ms: a quarter of the peak."""


def test_achieved_arithmetic_is_shown_where_there_is_room() -> None:
    found = rows({"arithmetic": ARITHMETIC}, {"gpu": "T4"})
    header, row = (line.split() for line in shown(Comparison(found), 160)[1:3])
    assert header[-2:] == ["TFLOP/s", "MFU"] and row[-2:] == ["5.00", "25.0%"]


def test_steps_on_several_gpus_keep_what_the_exchange_costs() -> None:
    two = {"several": SeveralGpus(2, 1, "pcie4", 900.0, 300.0, 0.95), "overrides": ("devices=2",)}
    lines = shown(
        Comparison(rows({"overrides": (), "variant": "default", "arithmetic": ARITHMETIC}, two)), 80
    )
    assert lines[0] == "custom on V100, batch 2048 each"
    text = "\n".join(lines)
    assert lines[1].startswith("GPUs")
    assert [line.split()[0] for line in lines[2:4]] == ["1", "2"] and "mem GiB" in text
    assert "exposed ms" in text and "0.300" in text and "95.0%" in text


def test_a_point_without_a_prediction_is_a_row_with_its_reason() -> None:
    points = expand(["gpu=P100", "model=dlrm_small", "batch_size=512,2048"])
    reason = InputError("bf16 on P100: refused")
    failed = [
        Answer(dataclasses.replace(point, model="custom", overrides=STEP.overrides), error=reason)
        for point in points
    ]
    lines = shown(Comparison(rows({}), unpredicted=failed), 120)
    found = [line.split() for line in lines if line.startswith("P100")]
    assert found == [["P100", "512", "none"], ["P100", "2048", "none"]]
    assert lines[-1] == "no prediction for P100 batch 512, P100 batch 2048: bf16 on P100: refused"


def test_the_cheapest_has_a_star_of_its_own() -> None:
    found = rows({"own_price": 2.0}, {"gpu": "T4", "predicted_us": 16000.0, "own_price": 0.5})
    lines = shown(Comparison(found), 160)
    starred = {line.split()[0]: line.count("★") for line in lines[2:4]}
    assert starred == {"V100": 1, "T4": 1}
    assert "★ most samples per second or per USD of the model" in lines[-2]
    assert lines[-1] == "USD per hour: V100 2, T4 0.5"


def test_a_grid_is_written_in_groups_of_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steptime: Steptime
) -> None:
    """Points without a prediction have a row with the reason; the file exists only when all is written."""
    out = tmp_path / "grid.parquet"

    def answer(question: Question) -> Answer:
        assert not out.exists()
        if question.batch_size == 4:
            return Answer(question, error=ConfigError("no bf16\nthere"))
        return Answer(question, dataclasses.replace(STEP, batch_size=question.batch_size))

    monkeypatch.setattr(comparing_commands, "engine", answering(answer))
    monkeypatch.setattr(answer_files, "ROWS_IN_GROUP", 2)
    grid = ("compare", "gpu=V100", "model=dlrm_small", "batch_size=1,2,3,4,5", "--out", str(out))
    code, text, err = steptime(*grid, "--json")
    assert (code, err) == (0, "")
    assert json.loads(text) == {"points": 5, "unpredicted": 1, "out": str(out)}
    assert pq.ParquetFile(out).metadata.num_row_groups == 3
    table = read_table(out, "grid")
    assert list(table["batch_size"]) == [1, 2, 3, 4, 5]
    assert list(table["unpredicted"].fillna("")) == ["", "", "", "no bf16 there", ""]
    assert json.loads(table["evidence"].iloc[0]) == STEP.evidence


def test_a_grid_that_is_broken_off_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "grid.parquet"
    out.write_text("before")

    def broken() -> Iterator[Answer]:
        yield Answer(expand(["gpu=V100", "model=dlrm_small"])[0], STEP)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer_files.write_answers(broken(), out)
    assert out.read_text() == "before" and [path.name for path in tmp_path.iterdir()] == [
        "grid.parquet"
    ]


def test_a_workload_lists_its_options_with_values(steptime: Steptime) -> None:
    code, out, _ = steptime("models", "dlrm_default", "--json")
    found = {row["option"]: row for row in json.loads(out)["rows"]}
    assert code == 0 and "fused | joint_sparse" in found["model.embedding"]["values"]
    assert found["model.foreach"]["default"] == "true" and found["batch_size"]["default"] == "2048"
    assert found["model.copies"]["what"].startswith("how a batch reaches the GPU")
    assert "did you mean 'gnmt'" in steptime("models", "gnmtt")[2]


def test_a_comparison_prints_as_the_command_does() -> None:
    comparison = Comparison(rows({"gpu": "V100"}, {"gpu": "T4"}))
    assert str(comparison).splitlines() == shown(comparison, 140)
    assert "\x1b" not in str(comparison)


def test_a_warning_of_some_rows_names_them() -> None:
    warned = rows({"batch_size": 512, "warnings": ("slow",)}, {"batch_size": 1024})
    assert "warning for V100 batch 512: slow" in shown(Comparison(warned), 140)
    both = [dataclasses.replace(p, warnings=("slow",)) for p in warned]
    assert "warning: slow" in shown(Comparison(both), 140)


def test_the_largest_batch_is_that_of_a_prediction(steptime: Steptime) -> None:
    """A GPU with 1 GiB."""
    words = ("compare", "gpu=V100", "model=dlrm_small", "gpu.memory_gib=1", "--json")
    both = json.loads(steptime(*words, "batch_size=64,100000")[1])
    (most,) = (p["largest_batch"] for p in both["predictions"] if not p["fits"])
    assert most == first_digits(most) and list(both["largest_batch"].values()) == [most]
