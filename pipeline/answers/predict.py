"""Predict from Python: `predict(gpu="V100", model="dlrm_default", batch_size=2048)`, `predict_grid(gpu="V100,A100")`.

No pipeline run is needed first. Kernel models and overheads are those that a pipeline run would use, else the shipped
ones, else they come from other GPUs and the GPU's file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from pipeline.answers.engine import engine, in_order
from pipeline.errors import SteptimeWarning, in_python
from pipeline.prediction import Prediction
from pipeline.prices import COST_COLUMNS, one_currency
from pipeline.question.question import Names, only
from pipeline.work import WORK_KEYS
from pipeline.workloads.user_steps import USUAL_MODEL, questions_about


def predict(gpu: str = "V100", model: Any = USUAL_MODEL, **overrides: Any) -> Prediction:
    """Predict one training step.

    A step of your own, in place of a workload (docs/workloads.md):

        predict("A100", step=my_function)  # my_function(config, batch_size, device) returns a Step
        predict("A100", model=my_module, batch=(x, y), loss=my_loss, optimizer=torch.optim.AdamW, batch_size=64)

    Args:
        gpu: name or alias of a GPU.
        model: name of a workload; or a module, or a function or class that makes one, with `batch` (tensors, or a function
            `batch_size -> tensors`), `loss` (of the output and the batch's last part), `optimizer` (an optimizer, its class, or
            a name) and `procedure` (`procedure(batch, optimizers)`, your own training loop).
        overrides: any other override, such as `batch_size=512`. `.` is written `__`, as in `model__embedding="sparse"`.
            Lists and dicts are values too, as in `model__rows=[1000, 2000]`.

    Raises:
        InputError: a name or value does not exist, or the overrides describe several points.
    """
    with questions_about(gpu, model, overrides) as questions:
        prediction = engine().predict_one(only(questions)).whole()
    warn_of([prediction])
    return prediction


def predict_grid(gpu: Names = "V100", model: Any = USUAL_MODEL, **overrides: Any) -> pd.DataFrame:
    """Predict every point of a grid. The numbers are those of `predict`.

    Args:
        gpu: names or aliases of GPUs, separated by commas, or a list of them.
        model: names of workloads, in the same way, or your own model as for `predict`.
        overrides: any other override, as for `predict`. Values separated by commas are a sweep, as in
            `batch_size="32,64"`; of `batch_size`, `devices`, `nodes`, `host` and `cluster` so is a list.

    Returns:
        A row per point, in the order of the sweep: the keys of `Prediction.as_dict`, then `overrides` and `unpredicted`.
        Shares and times by kind have a column for each kind, such as `evidence.pack` and `families_us.gemm`. A point that
        cannot be predicted has its reason in `unpredicted` and no numbers. If any of the GPUs has a price, the columns of
        `pipeline.prices.COST_COLUMNS` are there too, such as `samples_per_dollar`.

    Raises:
        InputError: a name or value does not exist, or prices are in different currencies.
        ConfigError: the price list is damaged.
    """
    with questions_about(gpu, model, overrides) as questions:
        answers = in_order(questions, engine().predict(questions))
    predictions = [answer.prediction for answer in answers if answer.prediction is not None]
    one_currency(p.price for p in predictions)
    warn_of(predictions)
    return grid_table([answer.as_row() for answer in answers])


def warn_of(predictions: Iterable[Prediction]) -> None:
    """Warn of what the predictions warn of, each text once."""
    for text in dict.fromkeys(text for prediction in predictions for text in prediction.warnings):
        warnings.warn(in_python(text), SteptimeWarning, stacklevel=3)


def grid_table(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The table of `predict_grid` from rows of `Answer.as_row`."""
    table = pd.json_normalize(rows, max_level=1)
    kinds = [name for name in table if "." in str(name)]
    predicted = table["unpredicted"].isna()
    table.loc[predicted, kinds] = table.loc[predicted, kinds].fillna(
        0.0
    )  # kinds that only other points have
    for names in (COST_COLUMNS, WORK_KEYS, ("tokens_per_s",)):
        if known := [name for name in names if name in table]:
            table = table.drop(columns=known) if table[known].isna().all(axis=None) else table
    return table[[name for name in table if name not in _LAST] + _LAST]


_LAST = ["overrides", "unpredicted"]
"""The last columns of `predict_grid`."""
