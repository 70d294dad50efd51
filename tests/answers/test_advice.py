"""Advice: what is listed applies and helps, its gains are those of the commands, and it works on every kind of step."""

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from pipeline import predict
from pipeline.answers import advice as advising
from pipeline.answers.advice import MIN_GAIN, Advice, Gain, Line, advice_for, advise
from pipeline.answers.engine import engine
from pipeline.answers.step_changes import CANDIDATES, applies, changed
from pipeline.answers.trace_advice import ChangeableStep, advise_trace, changes_of
from pipeline.cli import app
from pipeline.errors import ConfigError
from pipeline.question.question import ask, expand
from pipeline.show.html_report import advised
from tests.predictions import predicted
from tests.simulate.programs import LAUNCH, SYNC, program, row

SLOW = [
    "gpu=V100", "model=dlrm_small", "batch_size=256", "predict.draws=128",
    "model.read_loss=before_backward", "model.foreach=false",
]  # fmt: skip
TRIED = (
    "model.read_loss=never", "model.foreach=true", "predict.cuda_graph=true", "model.dtype=fp16",
    "edit.remove=aten::dropout",
)  # fmt: skip
FEW = [each for each in CANDIDATES if each.text in TRIED]


@pytest.fixture(scope="module", autouse=True)
def few_candidates():
    """One of each kind; each is a capture on top of each set of lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advising, "CANDIDATES", FEW)
        yield


@pytest.fixture(scope="module")
def advice():
    return advice_for(ask(SLOW))


def test_each_line_helps_on_top_of_the_lines_above(advice):
    assert len(advice.lines) >= 2
    left = 1 - sum(line.on_top.share for line in advice.lines)
    assert left * advice.before.predicted_us == pytest.approx(advice.after.predicted_us)
    for line in advice.lines:
        gain = line.on_top
        assert (
            gain.share >= MIN_GAIN
            and gain.p10 <= gain.share <= gain.p90
            and sum(line.evidence.values()) > 0.99
        )


def test_a_report_has_the_first_line(advice):
    said = advised([ask(SLOW)], [advice.before], engine().predict)
    line = advice.lines[0]
    assert said.command == line.command and f"{line.change} saves " in said.says


def test_the_command_of_a_line_shows_its_gain(advice):
    """Running the commands in turn: each begins with the step that the one before ends with, and saves what its line states."""
    step_us = advice.before.predicted_us
    for line in advice.lines:
        words = shlex.split(line.command)
        assert words[:2] == ["steptime", "compare"]
        before, after = engine().predict(expand(words[2:]))
        gain = Gain.between(before.prediction, after.prediction, advice.before)
        assert gain == line.on_top
        assert before.prediction.predicted_us == pytest.approx(step_us)
        step_us = after.prediction.predicted_us
    assert step_us == pytest.approx(advice.after.predicted_us)


def test_advice_and_difference_state_one_gain_with_one_interval():
    """A host-bound step in fp16: its casts are operators that the other step lacks; not all of the host's error cancels."""
    before, after = (
        predict("V100", model="dlrm_ddp", predict__draws=256, model__dtype=dtype)
        for dtype in ("default", "fp16")
    )
    gain, difference = Gain.between(before, after), before.diff(after)
    assert (difference.step.p10_us, difference.step.p90_us) == pytest.approx(
        (-gain.saved_p90_us, -gain.saved_p10_us)
    )
    assert gain.p10 < gain.share - 0.03 and gain.p90 > gain.share + 0.03


def test_what_cannot_apply_is_not_tried():
    texts, on_ampere = (
        {each.text for each in CANDIDATES if applies(each, ask([f"gpu={gpu}", "model=dlrm_small"]))}
        for gpu in ("V100", "A100")
    )
    assert not {"model.attention=fused", "model.foreach=true"} & texts
    assert not {"model.dtype=tf32", "model.dtype=bf16"} & texts  # a V100 computes neither
    assert {"model.dtype=tf32", "model.dtype=bf16"} <= on_ampere
    ranks, alone = (
        {each.key.partition(".")[0] for each in CANDIDATES if applies(each, ask(asked.split()))}
        for asked in ("model=dcgan devices=4", "model=dcgan")
    )
    assert "parallel" in ranks - alone
    sparse = ask(["model=dlrm_small", "model.embedding=sparse", "model.optimizer=adam"])
    assert not any(each.key == "predict.cuda_graph" for each in CANDIDATES if applies(each, sparse))


@pytest.mark.parametrize(
    "options, fits",
    [
        (["model=resnet50", "model.optimizer=adam"], True),
        (["model=resnet50", "model.optimizer=adagrad"], False),
        (["model=dlrm_small", "model.embedding=sparse"], False),
    ],
)
def test_a_fused_optimizer_is_tried_where_pytorch_has_one(options, fits):
    (fused,) = (each for each in CANDIDATES if each.text == "model.foreach=fused")
    assert applies(fused, ask(options)) == fits


def test_edits_are_added_to_those_of_the_step():
    at = ask(["model=transformer", "edit.remove=aten::relu"])
    (dropout,) = (each for each in CANDIDATES if each.key == "edit.remove")
    assert changed(at, dropout).edit.remove == ("aten::relu", "aten::dropout")
    assert not applies(dropout, changed(at, dropout))


def test_what_does_not_help_is_told_with_the_reason(advice):
    assert any(
        "the step has no operator aten::dropout" in each.reason for each in advice.not_helping
    )
    assert not {line.change for line in advice.lines} & {each.change for each in advice.not_helping}


def test_advice_for_a_step_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_step.py").write_text(
        "import torch\nfrom torch import nn\nfrom pipeline.workloads.training_step import"
        " Step\n\ndef make(config, batch_size, device):\n    with torch.device(device):\n       "
        " model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))\n"
        "    batch = torch.rand(batch_size, 64), torch.randint(10, (batch_size,))\n    loss ="
        " lambda output, x, y: nn.functional.cross_entropy(output, y)\n    return Step([model],"
        " [batch], lambda x, y: model(x), loss, device, config)\n"
    )
    monkeypatch.chdir(tmp_path)
    found = advise("V100", "custom", model__target="own_step:make", predict__draws=64)
    assert "predict.cuda_graph=true" in {line.change for line in found.lines}


def test_the_command_prints_lines_or_json_also_of_what_keeps_the_results(advice):
    runner = CliRunner()
    shown = runner.invoke(app, ["advise", *SLOW, "--same-results", "--all"])
    assert shown.exit_code == 0 and "steptime compare gpu=V100" in shown.output
    printed = json.loads(runner.invoke(app, ["advise", *SLOW, "--same-results", "--json"]).output)
    assert printed["lines"][0]["on_top"]["share"] == pytest.approx(
        printed["lines"][0]["alone"]["share"]
    )
    assert printed["after"]["predicted_us"] < printed["before"]["predicted_us"]
    assert printed["before"]["host"] == "typical-2017"
    kept, every = (
        {line["change"] for line in (*each["lines"], *each["not_helping"])}
        for each in (printed, advice.as_dict())
    )
    assert every - kept == {"model.dtype=fp16", "edit.remove=aten::dropout"}


def test_the_lines_are_a_waterfall_that_adds_up_to_the_last_step():
    """100 → 60 → 45 µs: the first line saves 40 of 100, the second 15 of 60."""
    steps = [
        predicted(us, batch_size=1, draws_us=us * np.ones(9))
        for us in (100_000.0, 60_000.0, 45_000.0)
    ]
    gains = [Gain.between(*steps[:2]), Gain.between(*steps[1:])]
    lines = tuple(
        Line(f"change={n}", "", gain, gain, "no", {"pack": 1.0}, "") for n, gain in enumerate(gains)
    )
    found = Advice(steps[0], lines, steps[2], ())
    assert [row["step\nms"] for row in found.rows()] == ["60.0", "45.0"]
    axes = found.plot().axes[0]
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars == [(0, 100), (0, 45), (100, -40), (60, -15)]


def test_a_step_measured_here_gets_no_advice():
    with pytest.raises(ConfigError, match="name a GPU instead of gpu=local"):
        advise("local", "dlrm_small")


def test_a_trace_gets_advice_on_its_launches_and_waits():
    """A relu, a dropout, a read of the loss that waits, a relu; each kernel 10 µs, each host time 20 µs.

    host    [relu  ][dropout][item   ]         [relu  ]
    device         [10]     [10]                       [10]
    """
    times = {"gap": 15.0, "api": 5.0, "latency": 0.0, "kernel_gap": 0.0}
    names = ["aten::relu", "aten::dropout", "aten::item", "aten::relu"]
    whole = program(*(row(kind, **times) for kind in (LAUNCH, LAUNCH, SYNC, LAUNCH)))
    whole = replace(whole, items=replace(whole.items, name=np.array(names, object)))
    step = ChangeableStep(whole, np.array([10.0, 10.0, 10.0]))
    assert [each.text for each in changes_of(step)] == [
        "no wait in aten::item",
        "CUDA graphs",
        "no dropout",
    ]
    traced = predicted(85.0, active_us=30.0, host_us=80.0, evidence={"measured": 1.0})
    found = advise_trace(step, traced)
    assert (
        found.before.predicted_us == pytest.approx(85.0) and found.lines[0].change == "CUDA graphs"
    )
    kept = advise_trace(step, traced, same_results=True)
    assert "no dropout" not in {line.change for line in kept.lines}


def test_advice_on_a_step_that_does_not_fit_says_what_does_and_its_cost(monkeypatch):
    monkeypatch.setattr(advising, "CANDIDATES", ())  # beside those that save memory
    asked = "gpu=V100 gpu.memory_gib=2 model=dlrm_small batch_size=300000 predict.draws=64"
    advice = advice_for(ask(asked.split()))
    assert not advice.before.fits
    (text,) = (text for text in advice.fitting if text.startswith("batch_size="))
    assert f"batch_size={advice.before.largest_batch}: " in text and "times the time" in text
