"""Predictions of the steps that Lin et al. (HiPC 2022) measured, in their training loop, from the shipped packs only.

The measured rows are for reports and figures only: no constant was chosen and no model was fitted with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from evaluation.checks.step_accuracy import with_errors
from evaluation.published.published_lin2022 import KEYS, read_cnn, read_dlrm
from pipeline.answers.engine import engine
from pipeline.flow import key_of
from pipeline.prediction import Prediction
from pipeline.question.question import Question, expand

CNN_LOOP = "model.copies=pageable model.foreach=false model.set_to_none=false"
"""Training loop of PyTorch 1.8: the host waits for copies, the optimizer updates one parameter at a time, and
gradients are zeroed. `config/experiment/paper_cnn.yaml` has the same."""

Key = tuple[str, str, str, int]
"""GPU, model, variant and batch size of a point, as `pipeline.flow.key_of` gives them."""

DLRM_LOOP = f"{CNN_LOOP} model.read_loss=before_backward"
"""Training loop of facebookresearch/dlrm of 2021: as `CNN_LOOP`, and it reads the loss before the backward pass.
`config/experiment/paper_dlrm.yaml` has the same."""

OTHER_LOOPS = {
    "their loop's waits alone": "model.copies=pageable model.read_loss=before_backward",
    "the default loop": "",
}
"""Loops in which DLRM steps are predicted for comparison, by their name in the table of busy shares."""


def command(gpu: str, model: str, batch_size: int, loop: str) -> str:
    """The command that predicts a step."""
    return f"steptime predict gpu={gpu} model={model} batch_size={batch_size} {loop}".rstrip()


def question_of(command: str) -> Question:
    """What a command asks."""
    return expand(command.split()[2:])[0]


def predicted_dlrm(
    rows: pd.DataFrame | None = None,
    made: Sequence[Prediction] | None = None,
    loop: str = DLRM_LOOP,
) -> pd.DataFrame:
    """The DLRM steps (some rows of `read_dlrm`, or all) with predictions (see `_predicted`)."""
    return _predicted(read_dlrm() if rows is None else rows, loop, made)


def predicted_cnn(
    rows: pd.DataFrame | None = None, made: Sequence[Prediction] | None = None
) -> pd.DataFrame:
    """The steps of convolutional networks (some rows of `read_cnn`, or all) with predictions (see `_predicted`)."""
    return _predicted(read_cnn() if rows is None else rows, CNN_LOOP, made)


def published_points(points: Iterable[Key]) -> set[Key]:
    """Those points of a grid that are published steps, in the loop of their authors."""
    keys = set(points)
    steps = {(key[0], key[1], key[3]) for key in keys}
    questions = (
        question_of(command(gpu, model, batch_size, loop))
        for rows, loop in ((read_dlrm(), DLRM_LOOP), (read_cnn(), CNN_LOOP))
        for gpu, model, batch_size in rows[list(KEYS)].itertuples(index=False)
        if (gpu, model, batch_size) in steps
    )
    return keys & {key_of(question) for question in questions}


def _predicted(
    rows: pd.DataFrame, loop: str, made: Sequence[Prediction] | None = None
) -> pd.DataFrame:
    """The rows with predictions.

    Args:
        rows: published steps.
        loop: overrides of the training loop.
        made: predictions of a grid; steps that it lacks are left out. Without it, each step is asked.

    Returns:
        The columns of `rows`, `command`, those of `with_errors`, `active_us`, and `families_us` (device time by family).
    """
    commands = [
        command(gpu, model, batch_size, loop)
        for gpu, model, batch_size in rows[list(KEYS)].itertuples(index=False)
    ]
    rows = rows.assign(command=commands)
    asked = [question_of(each) for each in commands]
    if made is None:
        made = [one.whole() for one in engine(None).predict(asked)]
    of_key = {(p.gpu, p.model, p.variant, p.batch_size): p for p in made}
    keys = [key_of(question) for question in asked]
    found = [of_key[key] for key in keys if key in of_key]
    rows = with_errors(rows[[key in of_key for key in keys]].reset_index(drop=True), found)
    families = pd.Series([one.families_us for one in found], rows.index, dtype=object)
    return rows.assign(active_us=[one.active_us for one in found], families_us=families)
