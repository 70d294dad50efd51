"""What would make a training step faster: options and edits of its operators, each predicted alone and on top of others.

The table `CANDIDATES` holds what can be advised. Those that apply to a point are predicted as a grid. The one with the
shortest step is taken; the rest are predicted again on top of it, until none helps any more.

Gains are shares of the step time that is saved. Their intervals come from paired draws (`pipeline.answers.drawn_step`): a
source of error has the same random numbers in both predictions. An error that both share does not widen the gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pipeline import plotter
from pipeline.answers.difference import Change
from pipeline.answers.engine import Answer, each_once, engine
from pipeline.answers.fitting_changes import SAVING, what_fits
from pipeline.answers.step_changes import (
    CANDIDATES,
    COMPILED,
    SAME,
    Candidate,
    applies,
    changed,
    command,
)
from pipeline.answers.step_errors import interval
from pipeline.errors import ConfigError
from pipeline.prediction import Prediction
from pipeline.question.question import Question, only
from pipeline.readable import gibibytes, html_rows, in_ms, milliseconds, shares
from pipeline.workloads.user_steps import USUAL_MODEL, questions_about

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Predict = Callable[[Sequence[Question]], Iterable[Answer]]

MIN_GAIN = 0.005
"""Least share of the time of the step that was asked for that a line must save; smaller gains are below what the models resolve."""

BAR = 16
"""Letters of the bar of a step, in the table."""

SAME_STEP = 0.005
"""Steps whose times differ by less than this share are equally fast: the one that comes first in the table is taken."""


@dataclass(frozen=True)
class Gain:
    """Share of a step's time that a change saves, with the p10 and p90 of paired draws; negative if it costs time."""

    share: float
    p10: float
    p90: float
    faster: float
    """Share of the draws in which the step becomes faster."""
    saved_us: float
    saved_p10_us: float
    saved_p90_us: float
    memory_bytes: int
    """Bytes by which the memory need grows; negative if it falls."""

    @classmethod
    def between(
        cls, before: Prediction, after: Prediction, whole: Prediction | None = None
    ) -> Gain:
        """From predictions with draws; the share is of the time of `whole`, by default of `before`."""
        whole = whole or before
        assert before.draws_us is not None and after.draws_us is not None
        assert whole.draws_us is not None
        drawn_us = before.draws_us - after.draws_us
        saved_us = before.predicted_us - after.predicted_us
        share = saved_us / whole.predicted_us
        low, high = interval(drawn_us / whole.draws_us, share)
        low_us, high_us = interval(drawn_us, saved_us)
        faster, more = float(np.mean(drawn_us > 0)), after.memory_bytes - before.memory_bytes
        return cls(share, low, high, faster, saved_us, low_us, high_us, more)

    def __str__(self) -> str:
        return f"{self.share:.1%} ({self.p10:.1%} to {self.p90:.1%})"

    @property
    def percent(self) -> str:
        """Share and interval in percent, for a column that names the unit."""
        return f"{100 * self.share:.1f} ({100 * self.p10:.1f} to {100 * self.p90:.1f})".replace(
            "-", "−"
        )


@dataclass(frozen=True)
class Line:
    """One advice. The lines of an advice are in the order in which they were taken."""

    change: str
    """The override."""
    how: str
    alone: Gain | None
    """Gain over the step that was asked for; None if the change needs a line above it."""
    on_top: Gain
    """What it saves of the step with the lines above it, as a share of the step that was asked for: these add up."""
    changes_results: str
    evidence: Mapping[str, float]
    """Share of device time by kind of evidence, with this change on top."""
    command: str
    """The command that compares the step of the lines above with this line's; empty for a trace."""


@dataclass(frozen=True)
class Refused:
    """A candidate that does not help, with its gain alone, or why it was not predicted."""

    change: str
    gain: Gain | None
    reason: str = ""


@dataclass(frozen=True, repr=False)
class Advice:
    """What would make a step faster, best first, each on top of the lines above."""

    before: Prediction
    lines: tuple[Line, ...]
    after: Prediction
    """The step with all lines."""
    not_helping: tuple[Refused, ...]
    warnings: tuple[str, ...] = ()
    fitting: tuple[str, ...] = ()
    """For a step that does not fit: changes with which it does, and their cost in time."""

    @property
    def total(self) -> Gain:
        """Gain of all lines together."""
        return Gain.between(self.before, self.after)

    def table(self) -> pd.DataFrame:
        """A row per line; gains have columns such as `alone.share` and `on_top.p10`."""
        return pd.json_normalize(list(map(asdict, self.lines)), max_level=1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        steps = {"before": self.before, "after": self.after}
        return {
            **{name: {key: getattr(p, key) for key in STEP} for name, p in steps.items()},
            "total": asdict(self.total),
            "lines": list(map(asdict, self.lines)),
            "not_helping": list(map(asdict, self.not_helping)),
            "warnings": list(self.warnings),
            "fitting": list(self.fitting),
        }

    def changes(self) -> list[Change]:
        """What each line saves on top of those above it, from the first step to the last; these add up."""
        before_us, changes = self.before.predicted_us, []
        for line in self.lines:
            gain, after_us = line.on_top, before_us - line.on_top.saved_us
            changes.append(
                Change(line.change, before_us, after_us, -gain.saved_p90_us, -gain.saved_p10_us)
            )
            before_us = after_us
        return changes

    def rows(self) -> list[dict[str, str]]:
        """The lines as text, a column per key; `step` is a waterfall: where each line ends, the next begins."""
        return [
            {
                "change": line.change,
                "saves\nms": in_ms(-change.us),
                "step\nms": in_ms(change.b_us),
                "step": self._bar(change.b_us, change.a_us),
                "on top\n%": line.on_top.percent,
                "alone\n%": "" if line.alone is None else line.alone.percent,
                "memory": _signed_bytes(line.on_top.memory_bytes),
                "results change": line.changes_results,
                "evidence": shares(dict(list(line.evidence.items())[:1])),
            }
            for line, change in zip(self.lines, self.changes(), strict=True)
        ]

    def _bar(self, low_us: float, high_us: float) -> str:
        """A part of the step's bar as text."""
        low, high = (round(BAR * us / self.before.predicted_us) for us in (low_us, high_us))
        return "·" * low + "█" * max(high - low, 1)

    def plot(self) -> Figure:
        """A waterfall from the step to that with all lines."""
        figure: Figure = plotter.draw_advice(self)
        return figure

    @property
    def summary(self) -> str:
        """One sentence: the step before and after."""
        named = f"{self.before.title}: {milliseconds(self.before.predicted_us)}"
        if not self.lines:
            return f"{named}; nothing in the table makes it faster by {MIN_GAIN:.1%}"
        return f"{named}; with all lines {milliseconds(self.after.predicted_us)}, {self.total} less"

    def __repr__(self) -> str:
        return f"<Advice: {self.summary}>"

    def _repr_html_(self) -> str:
        return html_rows(self.summary, self.rows())


STEP = (
    "gpu", "model", "variant", "batch_size", "predicted_us", "p10_us", "p90_us", "bound",
    "memory_bytes", "host",
)  # fmt: skip
"""What an advice says of the steps before and after it."""


def take_best_first(
    before: Prediction,
    state: Any,
    candidates: Sequence[Any],
    predicted: Callable[[Any, Sequence[Any]], Mapping[Any, Prediction]],
    apply: Callable[[Any, Any], Any],
    command: Callable[[Any, Any], str],
    most: int | None = None,
    whole: Prediction | None = None,
) -> tuple[list[Line], Prediction, dict[Any, Gain]]:
    """Take the change that makes the step fastest, then the best on top of it, until none saves `MIN_GAIN`.

    Args:
        before: the step without changes.
        state: what `before` was predicted for.
        candidates: changes with `text`, `how` and `changes`, those that are preferred among equally fast ones first.
        predicted: predictions of a state with each change that applies to it.
        apply: the state with a change.
        command: what shows the gain of a change of a state.
        most: how many changes to take; by default all that help.
        whole: the step whose time gains are shares of; by default `before`.

    Returns:
        The changes in the order in which they were taken, the step with all of them, and the gain of each candidate alone.
    """
    step, left, whole = before, list(candidates), whole or before
    lines, alone = list[Line](), dict[Any, Gain]()
    while len(lines) != most and (steps := predicted(state, left)):
        if not lines:
            alone = {change: Gain.between(before, after) for change, after in steps.items()}
        limit = min(after.predicted_us for after in steps.values()) * (1 + SAME_STEP)
        best = next(
            change for change in left if change in steps and steps[change].predicted_us <= limit
        )
        gain = Gain.between(step, steps[best], whole)
        if gain.share < MIN_GAIN:
            break
        step = steps[best]
        lines.append(
            Line(
                best.text,
                best.how,
                alone.get(best),
                gain,
                best.changes,
                step.evidence,
                command(state, best),
            )
        )
        state = apply(state, best)
        left.remove(best)
    return lines, step, alone


def advise(
    gpu: str = "V100",
    model: Any = USUAL_MODEL,
    same_results: bool = False,
    compiled: bool = False,
    **overrides: Any,
) -> Advice:
    """What would make one training step faster.

    Args:
        gpu: name or alias of a GPU.
        model: name of a workload, `custom` too; or your own model as for `predict`.
        same_results: leave out what changes the results of the step by more than rounding.
        compiled: also try `torch.compile`, on top of all others: up to a minute of CPU time; no kernels of your own are tried.
        overrides: any other override, as for `predict`.

    Raises:
        InputError: a name or value does not exist, or the overrides describe several points.
    """
    with questions_about(gpu, model, overrides) as questions:
        return advice_for(only(questions), same_results, compiled=compiled)


def advice_for(
    asked: Question,
    same_results: bool = False,
    predicting: Predict | None = None,
    compiled: bool = False,
    most: int | None = None,
) -> Advice:
    """What would make the step of a question faster.

    Args:
        asked: the question.
        same_results: leave out what changes the results of the step by more than rounding.
        predicting: answers questions with their draws; by default an `Engine`. A command wraps it to show progress.
        compiled: as for `advise`.
        most: how many lines to find; by default all.

    Raises:
        ConfigError: the point is measured on this machine.
        SteptimeError: the step cannot be predicted.
    """
    if asked.local:
        raise ConfigError(
            "advise needs predictions of changes: name a GPU instead of gpu=local, such as gpu=V100"
        )
    answering = each_once(predicting or engine().predict)
    (first,) = answering([asked])
    before, failed = first.whole(), dict[Candidate, str]()

    def predicted(at: Question, candidates: Sequence[Candidate]) -> dict[Candidate, Prediction]:
        ready = [each for each in candidates if each not in failed and applies(each, at)]
        predictions, answers = {}, answering([changed(at, each) for each in ready])
        for each, answer in zip(ready, answers, strict=True):
            if answer.prediction is None:
                failed[each] = str(answer.reason)
            else:
                predictions[each] = answer.prediction
        return predictions

    wanted = [each for each in CANDIDATES if not same_results or each.changes == SAME]
    if compiled:  # edits name operators, which a compiled step does not have
        wanted = [each for each in wanted if not each.key.startswith("edit.")]
    lines, after, alone = take_best_first(before, asked, wanted, predicted, changed, command, most)
    if compiled:
        at = _with_lines(asked, wanted, lines)
        more, after, last = take_best_first(
            after, at, [COMPILED], predicted, changed, command, whole=before
        )
        lines, alone = lines + [replace(line, alone=None) for line in more], alone | last
    taken = dict(line.change.split("=", 1) for line in lines)
    refused = [
        Refused(each.text, gain, _why(each, gain, taken))
        for each, gain in alone.items()
        if taken.get(each.key) != each.value
    ]
    refused += [
        Refused(each.text, None, reason) for each, reason in failed.items() if each not in alone
    ]
    tried = {} if before.fits else predicted(asked, [*SAVING, *wanted])
    fits = what_fits(before, tried, asked, answering)
    return Advice(before, tuple(lines), after, tuple(refused), _notes(before, lines), fits)


def _with_lines(
    asked: Question, candidates: Sequence[Candidate], lines: Sequence[Line]
) -> Question:
    """The question with the changes of all lines."""
    by_text = {each.text: each for each in candidates}
    for line in lines:
        asked = changed(asked, by_text[line.change])
    return asked


def _why(candidate: Candidate, gain: Gain, taken: Mapping[str, str]) -> str:
    """Why a candidate is not among the lines; `taken` holds the values of options that are."""
    if gain.share < MIN_GAIN:
        return "does not help"
    if candidate.key in taken and not candidate.key.startswith("edit."):
        return f"{taken[candidate.key]} is faster"
    return "does not help on top of the lines"


def _notes(before: Prediction, lines: Sequence[Line]) -> tuple[str, ...]:
    changes = [line.change for line in lines]
    said = [text for key, text in NOTES.items() if any(each.startswith(key) for each in changes)]
    return *before.warnings, *said


NOTES = {
    "predict.cuda_graph": (
        "CUDA graphs: whether PyTorch can capture this step is not checked, and their memory is not"
        " counted"
    ),
    "edit.": (
        "edits of operators do not change the memory need; what a fused kernel must keep is not"
        " counted"
    ),
}
"""What to know about changes whose override begins so."""


def _signed_bytes(size: int) -> str:
    return "same" if size == 0 else f"{'+' if size > 0 else '-'}{gibibytes(abs(size))}"
