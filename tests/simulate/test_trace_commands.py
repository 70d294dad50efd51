"""`steptime replay` and `steptime trace` as a user calls them: output, exit codes, files."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from pipeline.schemas import read_provenance, read_table
from pipeline.trace.load import load_trace
from tests.commands import Steptime, python
from tests.trace.trace_drawing import equal_steps, write


def steps(folder: Path, count: int = 4) -> Path:
    folder.mkdir(exist_ok=True)
    return write(folder, equal_steps(count))


def test_replay_prints_one_json_object_with_the_contract_and_nothing_else(
    tmp_path: Path, steptime: Steptime
) -> None:
    code, out, err = steptime("replay", steps(tmp_path), "--json")
    figures = json.loads(out)
    assert code == 0 and err == "" and out.count("\n") == 1
    contract = "iterations measured_us error active_measured_us active_predicted_us overheads"
    assert set(contract.split()) <= figures.keys()
    baselines = figures["baselines"]
    assert baselines["queued_and_kernels_us"] == pytest.approx(10.0)
    assert baselines["train_mean_us"] == pytest.approx(figures["measured_us"])
    assert figures["idle_predicted_us"] == pytest.approx(
        figures["predicted_us"] - figures["active_predicted_us"]
    )
    path = figures["critical_path"]  # the host is done at 33, the kernel long before
    assert path["bound"] == "host" and path["host_us"] == pytest.approx(33.0)
    assert path["host_share"] == pytest.approx(1)
    code, out, _ = steptime("replay", steps(tmp_path))
    shown = "queued work and kernels", "mean of training iterations", "T4"
    assert code == 0 and all(text in out for text in shown)


def test_replay_takes_overheads_from_several_traces_packed_or_not(
    tmp_path: Path, steptime: Steptime
) -> None:
    plain, packed = steps(tmp_path / "a"), tmp_path / "b.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    target = tmp_path / "c.json.gz"
    target.write_bytes(packed.read_bytes())
    code, out, _ = steptime("replay", target, "--overheads", plain, "--overheads", packed, "--json")
    figures = json.loads(out)
    assert code == 0 and figures["iterations"] == 4 and figures["split"] == "other traces"
    assert figures["error"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("iterations", "said"),
    [
        (2, "give traces of other hosts too, with --overheads TRACE"),
        (-1, "give a number of iterations, 1 or more"),
    ],
)
def test_a_calibration_that_cannot_be_made_says_what_to_give(
    iterations: int, said: str, tmp_path: Path, steptime: Steptime
) -> None:
    code, _, err = steptime("replay", steps(tmp_path), "--calibrate", iterations)
    assert code == 2 and f"--calibrate {iterations}: {said}" in err


def test_a_timeline_is_packed_as_its_name_says(tmp_path: Path, steptime: Steptime) -> None:
    plain, packed = tmp_path / "timeline.json", tmp_path / "timeline.json.gz"
    for out in (plain, packed):
        assert steptime("replay", steps(tmp_path), "--timeline", out)[0] == 0
    assert plain.read_bytes() == gzip.decompress(packed.read_bytes())


def test_a_timeline_named_html_is_a_page_that_begins_at_zero(
    tmp_path: Path, steptime: Steptime
) -> None:
    out = tmp_path / "timeline.html"
    assert steptime("replay", steps(tmp_path), "--timeline", out)[0] == 0
    (text,) = re.findall(
        r'<script id="data" type="application/json">(.*)</script>', out.read_text()
    )
    data = json.loads(text)
    assert [step["name"] for step in data["steps"]] == ["step 1", "step 2", "step 3"]
    measured = next(row for row in data["rows"] if row["group"] == "measured GPU (profiled)")
    assert measured["begin"] == [8000, 200_000, 200_000], "ns from the first operator"
    assert measured["length"] == [10_000] * 3


def test_overheads_of_the_trace_itself_are_no_held_out_figure(
    tmp_path: Path, steptime: Steptime
) -> None:
    trace, copy = steps(tmp_path), tmp_path / "packed_copy.json.gz"
    copy.write_bytes(gzip.compress(trace.read_bytes()))
    alone, other = steps(tmp_path / "alone", 1), steps(tmp_path / "other", 5)
    for words, itself in (
        ((trace, "--overheads", copy), True),
        ((alone,), True),
        ((trace, "--overheads", other), False),
        ((other,), False),
    ):
        facts = json.loads(steptime("replay", *words, "--json")[1])
        noted = any("not a held-out error" in note for note in facts["notes"])
        assert (noted, facts["held_out"]) == (itself, not itself)
        shown = steptime("replay", *words)[1]
        assert ("predicted from itself, which is no evidence\n" in shown) is itself
        assert ("less than 0.01% off" in shown) is not itself


def test_ranks_are_replayed_together(datasets: Path, steptime: Steptime) -> None:
    folder = datasets / "traces" / "v100x8_dlrm"
    first, *others = [folder / f"rank{rank}_kineto.json.gz" for rank in range(5)]
    options = [part for other in others for part in ("--rank", other)]
    code, out, _ = steptime("replay", first, *options, "--json")
    figures = json.loads(out)
    assert code == 0 and len(figures["ranks"]) == 5 and figures["mean_absolute_error"] < 0.025
    assert figures["mean_absolute_error"] < min(figures["baselines"].values())
    for rank in figures["ranks"]:
        parts, active = (rank["compute_us"], rank["communication_us"]), rank["active_predicted_us"]
        assert max(parts) <= active <= sum(parts)
    assert steptime("replay", first, "--rank", others[0], "--calibrate", 1)[0] == 2


def test_trace_writes_a_table_that_holds_what_was_read(tmp_path: Path, steptime: Steptime) -> None:
    path, out = steps(tmp_path), tmp_path / "events.parquet"
    code, text, _ = steptime("trace", path, "--out", out, "--json")
    frame, trace = read_table(out, "events"), load_trace(path)
    assert code == 0 and json.loads(text)["events"] == len(frame) == len(trace)
    read, expected = frame.astype(object), trace.events.astype(object)[list(frame)]
    assert read.where(read.notna(), None).equals(expected.where(expected.notna(), None))
    assert read_provenance(out)["source"] == path.name


def test_reading_a_trace_imports_neither_pandas_nor_arrow() -> None:
    code = "import sys, pipeline.trace.load; print({'pandas', 'pyarrow', 'torch'} & {*sys.modules})"
    assert python(code, check=True).stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzip.compress(b"{}", mtime=0)[:-6], "gzip"),
        (b'{"traceEvents": []}', "no operators"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_code_2(
    tmp_path: Path, content: bytes, says: str, steptime: Steptime
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    code, out, err = steptime("replay", path, "--json")
    assert code == 2 and err.count("\n") == 1 and says in err and str(path) in err
    assert json.loads(out) == {"error": err.removeprefix("steptime: ").rstrip(), "exit_code": 2}
