"""The difference of two answers: its parts add up, and it says what changed."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import BarContainer
from typer.testing import CliRunner

from pipeline import load_trace, predict
from pipeline.answers.difference import Difference
from pipeline.answers.engine import engine
from pipeline.cli import app
from pipeline.commands.comparing_commands import two_points
from pipeline.errors import InputError
from pipeline.prediction import Prediction
from pipeline.prediction_parts import SeveralGpus
from pipeline.question.question import expand
from pipeline.readable import milliseconds
from tests.predictions import predicted
from tests.show.figure_texts import problems
from tests.trace.trace_drawing import PROPERTIES, annotation, kernel, launch, op, write

STEP = predicted(
    10_000.0,
    active_us=6_000.0,
    host_us=9_000.0,
    p90_us=12_000.0,
    families_us={"gemm": 4_000.0, "concat": 2_000.0},
)

SMALL = {"model": "dlrm_small", "predict__draws": 128}


@pytest.fixture(scope="module")
def v100() -> Prediction:
    return predict("V100", batch_size=2048, **SMALL)


@pytest.fixture(scope="module")
def pair(v100: Prediction) -> tuple[Prediction, Prediction]:
    return v100, predict("T4", batch_size=2048, **SMALL)


def changes(difference: Difference) -> dict[str, float]:
    return {part.name: part.us for part in difference.parts if abs(part.us) > 1e-6}


def test_parts_worked_out_by_hand() -> None:
    families = {"gemm": 3_000.0, "concat": 1_000.0}
    other = replace(STEP, gpu="H100", predicted_us=5_000.0, active_us=3_500.0, families_us=families)
    diff = STEP.diff(other)
    assert changes(diff) == pytest.approx(
        {"idle": -2_500.0, "gemm": -1_000.0, "concat": -1_000.0, "overlap": -500.0}
    )
    assert diff.sentence == "H100 saves 50 % of the step: idle 25 %, gemm 10 %"
    assert diff.step.p10_us is None and diff.notes == (
        "no intervals: one of the steps cannot be drawn again",
    )
    assert other.diff(STEP).sentence == "V100 adds 100 % to the step: idle 50 %, gemm 20 %"


def test_of_collectives_the_exposed_part_counts() -> None:
    several = replace(
        STEP,
        predicted_us=12_000.0,
        active_us=8_000.0,
        families_us={"collective": 5_000.0, "gemm": 4_000.0, "concat": 2_000.0},
        several=SeveralGpus(2, 1, "c", 5_000.0, 2_000.0),
        overrides=("devices=2",),
    )
    diff = STEP.diff(several)
    assert changes(diff) == pytest.approx({"exposed communication": 2_000.0})
    assert diff.names == ("without devices=2", "devices=2")


@pytest.mark.parametrize("options", [{"gpu": "T4"}, {"model__dtype": "fp16"}, {"devices": 2}])
def test_changes_of_parts_add_up_to_that_of_the_step(
    v100: Prediction, options: dict[str, object]
) -> None:
    asked = {"gpu": "V100", "batch_size": 2048, **SMALL, **options}
    diff = v100.diff(predict(**asked))
    assert sum(part.us for part in diff.parts) == pytest.approx(diff.step.us, abs=1e-6)
    assert diff.step.us == diff.b.predicted_us - diff.a.predicted_us != 0
    for change in (*diff.parts, diff.step):
        assert change.p10_us is not None and change.p90_us is not None
        assert change.p10_us <= change.us <= change.p90_us
    assert 0 < len(diff.calls) <= 10
    sizes = [abs(call.us) for call in diff.calls]
    assert sizes == sorted(sizes, reverse=True)


def test_drawn_parts_add_up_to_the_paired_draws_of_the_step(v100: Prediction) -> None:
    words = ["gpu=V100", "model=dlrm_small", "batch_size=2048", "predict.draws=128"]
    (answer,) = engine().predict(expand(words))
    assert v100.drawn is not None and answer.whole().draws_us is not None
    drawn = np.sum(list(v100.drawn.parts().values()), axis=0)
    np.testing.assert_allclose(drawn, answer.whole().draws_us)


def test_a_step_differs_from_itself_in_nothing(v100: Prediction) -> None:
    diff = v100.diff(v100)
    assert not changes(diff) and not diff.calls and diff.sentence.startswith("B takes as long as A")
    assert diff.sentence.endswith(
        f": both wait for the host until {milliseconds(v100.predicted_us)}"
    )
    assert all(change.p10_us == change.p90_us == 0 for change in (*diff.parts, diff.step))


def test_what_another_host_changes_is_a_part_of_its_own(v100: Prediction) -> None:
    """Both wait for the host: on one host they take the same time, and the draws of the host are pairs."""
    diff = v100.diff(predict("A100", batch_size=2048, **SMALL))
    assert diff.host in diff.parts and diff.host is not None and diff.on_one_host is not None
    assert diff.host.name == f"host {diff.b.host}" and diff.a.host != diff.b.host
    assert diff.on_one_host.us + diff.host.us == pytest.approx(diff.step.us)
    assert sum(part.us for part in diff.parts) == pytest.approx(diff.step.us, abs=1e-6)
    assert diff.sentence.startswith(f"On host {diff.a.host}, ") and diff.host.name in diff.sentence
    assert diff.on_one_host.p90_us == pytest.approx(0.0, abs=1e-6)
    assert ": both wait for the host until " in diff.sentence and "of two hosts" in diff.notes[-1]
    assert problems(diff.plot()) == []


def test_swapped_steps_negate_changes_and_intervals(pair: tuple[Prediction, Prediction]) -> None:
    there, back = pair[0].diff(pair[1]), pair[1].diff(pair[0])
    assert "intervals: errors of two GPUs' kernel models are independent" in there.notes
    ways = {part.name: part for part in back.parts} | {"step": back.step}
    for part in (*there.parts, there.step):
        other = ways[part.name]
        assert part.p10_us is not None and part.p90_us is not None
        assert (other.us, other.p10_us, other.p90_us) == pytest.approx(
            (-part.us, -part.p90_us, -part.p10_us)
        )


def test_errors_that_both_steps_share_cancel() -> None:
    """Half the batch on the same GPU is surely faster, although the intervals of both steps are wide."""
    large, half = (predict("V100", "dlrm_small", batch_size=size) for size in (8192, 4096))
    diff = large.diff(half)
    assert diff.step.p10_us is not None and diff.step.p90_us is not None and diff.step.p90_us < 0
    width = diff.step.p90_us - diff.step.p10_us
    assert width < 0.7 * np.hypot(diff.a.p90_us - diff.a.p10_us, diff.b.p90_us - diff.b.p10_us)


def test_a_figure_has_a_bar_per_part_between_both_steps(
    pair: tuple[Prediction, Prediction],
) -> None:
    diff = pair[0].diff(pair[1])
    figure = diff.plot()
    assert problems(figure) == []
    bars = [box.patches[0] for box in figure.axes[0].containers if isinstance(box, BarContainer)]
    first, last, *parts = bars  # the steps are drawn before the parts
    assert (first.get_width(), last.get_width()) == pytest.approx(
        [p.predicted_us / 1000 for p in pair]
    )
    assert parts[0].get_x() == pytest.approx(first.get_width())
    assert parts[1].get_x() == pytest.approx(parts[0].get_x() + parts[0].get_width())
    assert parts[-1].get_x() + parts[-1].get_width() == pytest.approx(last.get_width(), abs=5e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpu=V100"], "diff takes two points, but this is one point"),
        (["gpu=V100", "gpu=T4", "gpu=A100"], "gpu has 3 values"),
        (["gpu=V100", "gpu=T4", "batch_size=1,2"], "4 points"),
    ],
)
def test_what_is_not_two_points_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        two_points(words)


def traced(folder: Path) -> Path:
    """A step of 200 us on a V100: two products with backward passes, of 20 and 30 us each, and a copy.

    main  [to ][linear ][linear ]      [Addmm ][Addmm ]
    s7         c         g20  g30             g20     g30
    """
    events, at = [annotation("ProfilerStep#0", 0, 200)], 1.0
    backward = "autograd::engine::evaluate_function: AddmmBackward0"
    names = ["aten::to", "aten::linear", "aten::linear", backward, backward]
    for number, (name, took) in enumerate(zip(names, (10, 20, 30, 20, 30), strict=True), 1):
        events += [
            op(name, at, at + 12),
            op("aten::addmm" if "to" not in name[-2:] else "aten::copy_", at + 1, at + 11),
            launch(at + 2, at + 4, number),
            kernel("sgemm", at + 6, at + 6 + took, number),
        ]
        at += took + 8
    return write(
        folder, events, deviceProperties=[{**PROPERTIES[0], "name": "Tesla V100-SXM2-16GB"}]
    )


def test_a_trace_differs_from_a_prediction_by_the_prediction_alone(
    v100: Prediction, tmp_path: Path
) -> None:
    trace = load_trace(traced(tmp_path))
    diff = trace.diff(v100)
    assert diff.names[1].endswith("prediction") and diff.names[0].endswith("trace")
    assert diff.sentence.startswith("The ") and "than" not in diff.names
    assert sum(part.us for part in diff.parts) == pytest.approx(
        v100.predicted_us - trace.measured.predicted_us
    )
    assert v100.drawn is not None
    gemm = next(part for part in diff.parts if part.name == "gemm")
    assert gemm.a_us == pytest.approx(100.0)
    assert (gemm.p10_us, gemm.p90_us) == pytest.approx(
        tuple(np.percentile(v100.drawn.parts()["gemm"], [10, 90]) - 100.0)
    )


def test_operators_of_a_trace_are_paired_in_their_order(v100: Prediction, tmp_path: Path) -> None:
    measured = load_trace(traced(tmp_path)).measured
    own = v100.calls
    assert own is not None
    linear = own[(own["name"] == "aten::linear") & (own["family"] == "gemm")]
    two = linear[linear["node_id"].isin(linear["node_id"].unique()[:2])]
    diff = measured.diff(replace(v100, calls=two))
    pairs = [call for call in diff.calls if call.operator == "aten::linear"]
    assert sorted(call.a_us for call in pairs) == pytest.approx([20.0, 30.0])
    assert all("M=" in call.sizes for call in pairs)
    every = measured.diff(v100)
    linears = [call.a_us for call in every.calls if call.operator == "aten::linear"]
    assert linears == pytest.approx([50.0]), "three layers against two: only sums can be compared"


def test_the_command_compares_a_trace_with_a_prediction(tmp_path: Path) -> None:
    words = ["diff", "--trace", str(traced(tmp_path)), "gpu=V100", "model=dlrm_small"]
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert answer["a"]["traced"]["gpu"] == "V100-SXM2-16GB" and answer["b"]["model"] == "dlrm_small"
    assert any("measured" in note for note in answer["notes"])


def test_the_command_prints_the_table_json_and_a_picture(tmp_path: Path) -> None:
    words = ["diff", "gpu=V100", "gpu=T4", "model=dlrm_small", "predict.draws=64"]
    shown = CliRunner().invoke(app, [*words, "--plot", str(tmp_path / "d.png")])
    assert shown.exit_code == 0 and (tmp_path / "d.png").stat().st_size
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert answer["sentence"] == shown.stdout.splitlines()[0]
    table = pd.read_csv(io.StringIO(CliRunner().invoke(app, [*words, "--csv"]).stdout))
    change = table.set_index("name")["change_us"]
    assert change.drop("step").sum() == pytest.approx(change["step"])
    assert isinstance(CliRunner().invoke(app, [*words, "--plot", "d.txt"]).exception, InputError)
