"""The `steptime` command as a user meets it: exit codes, one line per error, nothing but JSON where it is asked for."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from pipeline.paths import project_dir
from pipeline.schemas import write_table
from pipeline.summary_rows import summary_row
from tests.commands import Steptime
from tests.predictions import predicted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predict", "gpu=V10"), "did you mean 'V100'"),
        (("predict", "gpu"), "write key=value"),
        (("predict", "batch_size=1.5"), "batch_size=1.5"),
        (("predict", "resluts=x"), "did you mean 'results'"),
        (
            ("predict", "--gpu", "V100"),
            "No such option: --gpu (overrides have no dashes: write gpu=V100)",
        ),
        (
            ("compare", "-m", "gpu=V100,T4"),
            "several values need no -m: write for example gpu=V100,T4",
        ),
        (
            ("predict", "--timeline", "step.gif"),
            "--timeline step.gif: give a name that ends in .html or .json.gz or .json",
        ),
        (
            ("predict", "--roofline", "nowhere/r.svg"),
            "--roofline nowhere/r.svg: there is no folder nowhere",
        ),
        (("predict", "--depth", "3"), "--depth 3: modules are shown with --by module"),
        (("predict", "--batch-size=64"), "write batch_size=64"),
        (("predict", "--nothing", "V100"), "No such option: --nothing (steptime predict --help)"),
        (("summary", "results=nowhere"), "nowhere: no such file"),
        (
            ("run", "--dry-run", "gpu=V100"),
            "overrides come before options of Snakemake: steptime run gpu=V100 --dry-run",
        ),
        (("predit",), "Did you mean 'predict'"),
        (("predict", "price.V100=-2"), "price.V100: '-2' is no number above 0"),
        (("predict", "electricity=abc"), "electricity: 'abc' is no number above 0"),
        (("predict", "--samples", "3Q"), "samples: '3Q' is no number above 0"),
        (("compare", "--out", "t.csv"), "--out t.csv: give a name that ends in .parquet"),
        (("compare", "--out", "no/t.parquet"), "there is no folder no"),
        (("compare", "--sort", "price"), "Invalid value for '--sort': 'price' is not one of"),
        (("plan", "gpu=V100"), "'gpu=V100' is not one of 'step'"),
        (("replay", "nowhere.json"), "nowhere.json: no such file"),
        (("replay", "a.json", "--rank", "./a.json"), "given twice"),
        (
            ("transfer", "--from", "V100", "--to", "T4", "--in", "\udcff", "--out", "x.parquet"),
            "a name is not utf-8 text",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: tuple[str, ...], said: str, steptime: Steptime
) -> None:
    code, out, err = steptime(*words)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1 and err.startswith("steptime: ")


def test_predict_writes_the_timeline_that_its_numbers_come_from(
    tmp_path: Path, steptime: Steptime
) -> None:
    words = ("predict", "gpu=H100", "model=dlrm_small", "batch_size=64", "predict.draws=10")
    page = tmp_path / "step.html"
    code, out, err = steptime(*words, "--timeline", str(page), "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    _, _, rest = page.read_text().partition('<script id="data" type="application/json">')
    (step,) = json.loads(rest.partition("</script>")[0])["steps"]
    assert step["step_us"] == pytest.approx(told["predicted_us"], abs=1e-3)
    assert step["active_us"] == pytest.approx(told["active_us"], abs=1e-3)
    assert steptime(*words, "--timeline", str(page))[1].endswith(f"timeline: {page}\n")
    code, out, err = steptime(*words, "--timeline", str(page / "step.html"))
    assert code != 0 and out == "" and err.startswith("steptime: ") and err.count("\n") == 1


def test_help_and_version_name_the_command(steptime: Steptime) -> None:
    code, out, _ = steptime("--help")
    assert code == 0 and "Usage: steptime " in out and "__main__" not in out
    code, out, _ = steptime("--version")
    assert code == 0 and out.startswith("steptime ")


def test_a_comparison_has_its_costs_in_the_users_currency_in_json_and_csv(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steptime: Steptime
) -> None:
    words = ("compare", "gpu=V100,T4", "model=dlrm_small", "batch_size=64", "predict.draws=10")
    entry = "  - {gpu: V100, per_hour: 3.6, date: 2026-01-15, source: my provider}\n"
    (tmp_path / "prices.yaml").write_text(f"currency: EUR\nprices:\n{entry}")
    monkeypatch.setenv("STEPTIME_PRICES", str(tmp_path / "prices.yaml"))
    answer = json.loads(steptime(*words, "--json")[1])
    (price,), rows = answer["prices"], answer["predictions"]
    assert (price["currency"], price["date"]) == ("EUR", "2026-01-15")
    assert [row["currency"] for row in rows] == ["EUR", None]
    assert rows[0]["samples_per_dollar"] == pytest.approx(1e3 * rows[0]["samples_per_s"])
    assert rows[0]["cost_per_million"] == pytest.approx(1e6 / rows[0]["samples_per_dollar"])
    table = pd.read_csv(io.StringIO(steptime(*words, "--csv")[1]))
    assert table["gpu"].tolist() == ["V100", "T4"]
    assert table["predicted_us"].tolist() == pytest.approx([row["predicted_us"] for row in rows])
    assert json.loads(table["evidence"][0]) == rows[0]["evidence"]
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    assert "prices" not in json.loads(steptime(*words, "--json")[1])
    code, _, err = steptime(*words, "--sort", "cost")
    assert code == 2 and "no price of V100, T4; give price.V100=" in err


def test_a_summary_is_found_by_its_results_folder_or_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steptime: Steptime
) -> None:
    write_table(summary_row(predicted(100.0)), tmp_path / "summary.parquet", "summary", {})
    places = f"results={tmp_path}", tmp_path / "summary.parquet", tmp_path
    told = [steptime("summary", where, "--json") for where in places]
    assert told[0] == told[1] == told[2] and told[0][0] == 0
    assert json.loads(told[0][1])["predictions"][0]["predicted_us"] == 100.0
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    (tmp_path / "summary.parquet").rename("results/summary.parquet")
    assert steptime("summary", "--json")[1] == told[0][1]


@pytest.mark.parametrize("text", ["{", "[1]", '{"pack": [1]}'])
def test_a_damaged_row_of_a_summary_is_one_line(
    tmp_path: Path, text: str, steptime: Steptime
) -> None:
    row = summary_row(predicted(100.0)).assign(evidence=text, warnings="[3]")
    write_table(row, tmp_path / "summary.parquet", "summary", {})
    code, _, err = steptime("summary", str(tmp_path))
    assert code == 2 and "summary.parquet: row 0 is damaged" in err and err.count("\n") == 1


def test_an_interrupt_ends_in_one_line_and_130() -> None:
    code = (
        "import signal, sys, time, pipeline.cli as cli\n"
        # a shell's background jobs, and what they start, ignore interrupts
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def wait(question):\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "cli.known_prediction = wait\nsys.argv = ['steptime', 'predict']\ncli.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "steptime: interrupted\n")


def test_a_replay_says_where_it_wrote_the_timeline(tmp_path: Path, steptime: Steptime) -> None:
    trace = project_dir() / "tests/trace/golden/drawn_gpu/input/kineto.json.gz"
    out = tmp_path / "timeline.json.gz"
    code, shown, _ = steptime("replay", str(trace), "--timeline", str(out))
    assert code == 0 and out.is_file() and f"predicted timeline -> {out}" in shown and "µs" in shown
    said = r"step \S+ ms predicted, \S+ ms measured: ([\d.]+% (short|long)|less than 0.01% off)"
    assert re.match(said, shown), "the verdict comes first"
    told = json.loads(steptime("replay", str(trace), "--timeline", str(out), "--json")[1])
    assert told["timeline"] == str(out)


def test_each_row_of_a_comparison_in_json_says_which_options_it_has(steptime: Steptime) -> None:
    given = ("gpu=V100,P100", "model=dlrm_small", "batch_size=8", "model.dtype=fp32,bf16")
    code, out, _ = steptime("compare", *given, "--json")
    answer = json.loads(out)
    options = [(row["gpu"], row["overrides"][0][-4:]) for row in answer["predictions"]]
    assert code == 0 and options == [("V100", "fp32"), ("V100", "bf16"), ("P100", "fp32")]
    (lost,) = answer["unpredicted"]
    assert lost["overrides"] == ["model.dtype=bf16"] and lost["reason"].startswith("bf16 on P100")
    code, _, err = steptime("compare", "gpu=P100", *given[1:3], "model.dtype=bf16")
    assert code == 2 and err.startswith("steptime: bf16 on P100") and err.count("\n") == 1


@pytest.mark.parametrize("command", ["predict", "compare"])
def test_a_results_folder_that_does_not_exist_is_refused(
    command: str, tmp_path: Path, steptime: Steptime
) -> None:
    given = ("gpu=V100", "model=dlrm_small", "batch_size=8")
    code, _, err = steptime(command, *given, f"results={tmp_path / 'none'}")
    assert code == 2 and "no such folder" in err and err.count("\n") == 1
    assert steptime(command, *given, f"results={tmp_path}")[0] == 0


@pytest.mark.parametrize(
    "words", [("predict", "gpu=V10"), ("compare", "--gpus", "V100"), ("compare", "--csv")]
)
def test_errors_are_json_where_answers_would_be(words: tuple[str, ...], steptime: Steptime) -> None:
    code, out, err = steptime(*words, "--json")
    assert (code, err) == (2, f"steptime: {json.loads(out)['error']}\n")
    assert json.loads(out)["exit_code"] == code
