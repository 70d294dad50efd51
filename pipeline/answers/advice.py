"""What would make a training step faster: options and edits of its operators, each predicted alone and on top of others.

The table `CANDIDATES` holds what can be advised. Those that apply to a point are predicted as a grid. The one with the
shortest step is taken; the rest are predicted again on top of it, until none helps any more.

Gains are shares of the step time that is saved. Their intervals come from paired draws (`step_errors.paired_draws`): a
source of error has the same random numbers in both predictions. An error that both share does not widen the gain.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.engine import Answer, engine, in_order
from pipeline.errors import ConfigError
from pipeline.hardware.spec import has_bf16, has_tf32
from pipeline.prediction import Prediction
from pipeline.question.checks import written
from pipeline.question.question import Question, ask, questions_of
from pipeline.question.settings import NO_EDIT
from pipeline.readable import gibibytes, html_table, milliseconds, shares

Floats = npt.NDArray[np.float64]
Predict = Callable[[Sequence[Question]], Iterable[Answer]]

MIN_GAIN = 0.005
"""Least share of the step time that a line must save; smaller gains are below what the models resolve."""

SAME_STEP = 0.005
"""Steps whose times differ by less than this share are equally fast: the one that comes first in the table is taken."""

SAME = "no"
"""What a candidate changes of a step's results if they stay the same up to rounding."""


@dataclass(frozen=True)
class Candidate:
    """A change of one option that may make a step faster."""

    key: str
    value: str
    instead_of: tuple[str, ...]
    """Values of the option that it improves; a step with another value does not get this advice. Empty for edits, which
    are added to those that a point has."""
    how: str
    """What to write in PyTorch."""
    changes: str = SAME
    """What it changes of the step's results."""
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Values that other options must have."""
    unless: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Values of other options that together make the change impossible."""

    @property
    def text(self) -> str:
        """The change as an override."""
        return f"{self.key}={self.value}"


SIZES_FROM_DATA = {
    "model.embedding": ("joint_sparse", "joint_rows", "sparse"), "model.optimizer": ("adagrad", "adam"),
}  # fmt: skip
"""Options with which the number of updated rows depends on the batch: CUDA graphs cannot capture such a step."""

CANDIDATES = (
    Candidate("model.read_loss", "never", ("before_backward", "at_end"), "do not call loss.item() in each step"),
    Candidate("model.copies", "pinned", ("pageable",), "DataLoader(pin_memory=True), .to(device, non_blocking=True)"),
    Candidate("model.set_to_none", "true", ("false",), "optimizer.zero_grad(set_to_none=True)"),
    Candidate("model.foreach", "true", ("false",), "torch.optim's foreach=True"),
    Candidate("model.attention", "fused", ("eager",), "F.scaled_dot_product_attention"),
    Candidate("model.memory_format", "channels_last", ("contiguous",), "model.to(memory_format=torch.channels_last)"),
    Candidate(
        "model.embedding", "fused", ("joint_sparse", "joint_rows", "sparse", "dense"),
        "FBGEMM's SplitTableBatchedEmbeddingBagsCodegen", given={"model.optimizer": ("sgd",)},
    ),
    Candidate(
        "model.embedding", "fused", ("joint_sparse", "joint_rows", "sparse", "dense"),
        "FBGEMM's SplitTableBatchedEmbeddingBagsCodegen", "the optimizer updates the rows in use only",
        given={"model.optimizer": ("adagrad", "adam")},
    ),
    Candidate("model.interaction", "fused", ("by_parts",), "one kernel for all dot products, as in NVIDIA's example"),
    Candidate(
        "predict.cuda_graph", "true", ("false",), "torch.cuda.make_graphed_callables", unless=SIZES_FROM_DATA,
    ),
    Candidate("edit.fuse", "elementwise", (), "torch.compile of the layers between the matrix products"),
    Candidate(
        "model.dtype", "tf32", ("fp32",), "torch.set_float32_matmul_precision('high')", "products have 10 bits of mantissa"
    ),
    Candidate(
        "model.dtype", "bf16", ("fp32", "tf32"), "torch.autocast('cuda', torch.bfloat16)", "products have 7 bits of mantissa"
    ),
    Candidate(
        "model.dtype", "fp16", ("fp32", "tf32"), "torch.autocast('cuda', torch.float16) with a gradient scaler",
        "products are in fp16, with its small range",
    ),
    Candidate(
        "model.precision", "pure", ("autocast",), "model.to(dtype)", "weights and optimizer state are in half precision",
        given={"model.dtype": ("bf16", "fp16")},
    ),
    Candidate("edit.remove", "aten::dropout", (), "dropout=0", "training has no dropout", given={"model.mode": ("train",)}),
)  # fmt: skip
"""All that can be advised; what keeps the results comes first."""


@dataclass(frozen=True)
class Gain:
    """Share of the step time that a change saves, with the p10 and p90 of paired draws; negative if it costs time."""

    share: float
    p10: float
    p90: float
    faster: float
    """Share of the draws in which the step becomes faster."""
    saved_us: float
    memory_bytes: int
    """Bytes by which the memory need grows; negative if it falls."""

    @classmethod
    def between(cls, before: Prediction, after: Prediction) -> Gain:
        """From two predictions with draws."""
        assert before.draws_us is not None and after.draws_us is not None
        drawn = 1 - after.draws_us / before.draws_us
        share = 1 - after.predicted_us / before.predicted_us
        low, high = np.percentile(drawn, [10, 90])
        return cls(
            share, float(min(low, share)), float(max(high, share)), float(np.mean(drawn > 0)),
            before.predicted_us - after.predicted_us, after.memory_bytes - before.memory_bytes,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.share:.1%} ({self.p10:.1%} to {self.p90:.1%})"


@dataclass(frozen=True)
class Line:
    """One advice. The lines of an advice are in the order in which they were taken."""

    change: str
    """The override."""
    how: str
    alone: Gain | None
    """Gain over the step that was asked for; None if the change needs a line above it."""
    on_top: Gain
    """Gain over the step with the lines above it."""
    changes_results: str
    evidence: Mapping[str, float]
    """Share of device time by kind of evidence, with this change on top."""
    command: str
    """The command that shows the gain of the change alone, or on top where it needs a line above it."""
    command_on_top: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


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

    @property
    def total(self) -> Gain:
        """Gain of all lines together."""
        return Gain.between(self.before, self.after)

    def table(self) -> pd.DataFrame:
        """A row per line; gains have columns such as `alone.share` and `on_top.p10`."""
        return pd.json_normalize([line.as_dict() for line in self.lines], max_level=1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        kept = {"gpu", "model", "variant", "batch_size", "predicted_us", "p10_us", "p90_us", "memory_bytes", "bound"}
        steps = {
            name: {key: value for key, value in step.as_dict().items() if key in kept}
            for name, step in (("before", self.before), ("after", self.after))
        }
        return steps | {
            "total": asdict(self.total),
            "lines": [line.as_dict() for line in self.lines],
            "not_helping": [asdict(each) for each in self.not_helping],
            "warnings": list(self.warnings),
        }

    def rows(self) -> list[dict[str, str]]:
        """The lines as text, a column per key."""
        return [
            {
                "change": line.change,
                "alone": "" if line.alone is None else str(line.alone),
                "on top": str(line.on_top),
                "memory": _signed_bytes(line.on_top.memory_bytes),
                "results change": line.changes_results,
                "evidence": shares(line.evidence),
            }
            for line in self.lines
        ]

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
        rows = self.rows()
        return html_table(self.summary, [list(row.values()) for row in rows], list(rows[0]) if rows else [])


def advise(gpu: str = "V100", model: str = "dlrm_default", same_results: bool = False, **overrides: Any) -> Advice:
    """What would make one training step faster.

    Args:
        gpu: name or alias of a GPU.
        model: name of a workload; `custom` too.
        same_results: leave out what changes the results of the step by more than rounding.
        overrides: any other override, as for `predict`.

    Raises:
        InputError: a name or value does not exist, or the overrides describe several points.
    """
    questions = questions_of(gpu, model, overrides)
    if len(questions) != 1:
        raise ConfigError(f"advise takes one point, but these overrides give {len(questions)}")
    return advice_for(questions[0], same_results)


def advice_for(
    asked: Question,
    same_results: bool = False,
    results: str | Path | None = "results",
    predicting: Predict | None = None,
) -> Advice:
    """What would make the step of a question faster.

    Args:
        asked: the question.
        same_results: leave out what changes the results of the step by more than rounding.
        results: as for `AvailableModels`.
        predicting: answers questions with their draws; by default an `Engine`. A command wraps it to show progress.

    Raises:
        ConfigError: the point is measured on this machine.
        SteptimeError: the step cannot be predicted.
    """
    if asked.local:
        raise ConfigError("advise needs predictions of changes: name a GPU instead of gpu=local, such as gpu=V100")

    predicting = predicting or partial(engine(results).predict, keep_draws=True)

    def predicted(questions: Sequence[Question]) -> list[Answer]:
        return in_order(questions, predicting(questions))

    left = [each for each in CANDIDATES if not same_results or each.changes == SAME]
    now = asked
    (first,) = predicted([asked])
    before = first.whole()
    step, lines = before, list[Line]()
    alone: dict[Candidate, Gain] = {}
    failed: dict[Candidate, str] = {}
    while left:
        ready = [each for each in left if applies(each, now)]
        answers = predicted([changed(now, each) for each in ready])
        found: dict[Candidate, Prediction] = {}
        for each, answer in zip(ready, answers, strict=True):
            if answer.prediction is None:
                failed[each] = answer.reason or ""
                left.remove(each)
                continue
            found[each] = answer.prediction
            if now is asked:
                alone[each] = Gain.between(before, answer.prediction)
        best = _fastest(found)
        if best is None or Gain.between(step, found[best]).share < MIN_GAIN:
            break
        lines.append(
            Line(
                best.text, best.how, alone.get(best), Gain.between(step, found[best]), best.changes, found[best].evidence,
                command(asked if best in alone else now, best), command(now, best),
            )
        )  # fmt: skip
        now, step = changed(now, best), found[best]
        left.remove(best)
    taken = dict(line.change.split("=", 1) for line in lines)
    refused = [
        Refused(each.text, gain, _why(each, gain, taken))
        for each, gain in alone.items()
        if taken.get(each.key) != each.value
    ]
    refused += [Refused(each.text, None, reason) for each, reason in failed.items() if each not in alone]
    return Advice(before, tuple(lines), step, tuple(refused), _notes(before, lines))


def _why(candidate: Candidate, gain: Gain, taken: Mapping[str, str]) -> str:
    """Why a candidate is not among the lines; `taken` holds the values of options that are."""
    if gain.share < MIN_GAIN:
        return "does not help"
    if candidate.key in taken and not candidate.key.startswith("edit."):
        return f"{taken[candidate.key]} is faster"
    return "does not help on top of the lines"


def _notes(before: Prediction, lines: Sequence[Line]) -> tuple[str, ...]:
    notes = list(before.warnings)
    keys = {line.change.partition("=")[0] for line in lines}
    if "predict.cuda_graph" in keys:
        notes.append(
            "CUDA graphs: whether PyTorch can capture this step is not checked, and their memory is not counted"
        )
    if any(key.startswith("edit.") for key in keys):
        notes.append("edits of operators do not change the memory need; what a fused kernel must keep is not counted")
    return tuple(notes)


def _fastest(found: Mapping[Candidate, Prediction]) -> Candidate | None:
    """The candidate with the shortest step; among equally fast ones the first in the table."""
    if not found:
        return None
    limit = min(each.predicted_us for each in found.values()) * (1 + SAME_STEP)
    return next(each for each in found if found[each].predicted_us <= limit)


def applies(candidate: Candidate, at: Question) -> bool:
    """Whether a point has the option, with a value that the candidate improves on a GPU that supports it."""
    if candidate.key.startswith("edit."):
        if candidate.value in _values(at, candidate.key):
            return False
    elif not set(_values(at, candidate.key)) & set(candidate.instead_of):
        return False
    if not _has(at, candidate.given) or (candidate.unless and _has(at, candidate.unless)):
        return False
    needs = {"model.dtype=tf32": has_tf32, "model.dtype=bf16": has_bf16}.get(candidate.text)
    return needs is None or needs(at.gpu)


def _has(at: Question, wanted: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether each of these options has one of its values."""
    return all(set(_values(at, key)) & set(values) for key, values in wanted.items())


def _values(at: Question, key: str) -> tuple[str, ...]:
    """Values of an option as a user types them; none if the point has no such option."""
    section, _, name = key.partition(".")
    value = at.section(section).get(name)
    several = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    return tuple(written(each).lower() if isinstance(each, bool) else written(each) for each in several)


def changed(at: Question, candidate: Candidate) -> Question:
    """The point with a candidate's change."""
    return ask(_texts(at, candidate.key, _after(at, candidate)))


def command(at: Question, candidate: Candidate) -> str:
    """The command that compares a point with and without a candidate's change."""
    before = _values(at, candidate.key)
    old = written(list(before)) if len(before) > 1 else before[0] if before else NO_EDIT
    return shlex.join(["steptime", "compare", *_texts(at, candidate.key, f"{old},{_after(at, candidate)}")])


def _after(at: Question, candidate: Candidate) -> str:
    """Value of the option with the change: edits are added to those of the point."""
    if candidate.key.startswith("edit.") and (present := _values(at, candidate.key)):
        return written([*present, candidate.value])
    return candidate.value


def _texts(at: Question, key: str, value: str) -> list[str]:
    """The overrides of a point with another value of one option."""
    kept = [text for text in at.overrides if text.partition("=")[0].lstrip("+") != key]
    return [f"gpu={at.gpu.name}", f"model={at.model}", f"batch_size={at.batch_size}", *kept, f"{key}={value}"]


def _signed_bytes(size: int) -> str:
    return "same" if size == 0 else f"{'+' if size > 0 else '-'}{gibibytes(abs(size))}"
