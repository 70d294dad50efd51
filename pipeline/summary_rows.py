"""Predictions as rows of the `summary` table, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from pipeline.errors import TableError, first_line
from pipeline.prediction import ASKED, Prediction
from pipeline.prediction_parts import Arithmetic, Power, SeveralGpus
from pipeline.schemas import SCHEMAS, to_arrow

KEPT = (
    "gpu", "model", "variant", "batch_size", "predicted_us", "active_us", "host_us", "p10_us",
    "p90_us", "memory_bytes", "fits", "tight", "bound", "host", "measured_us", "device_bound_from",
    "largest_batch", "unmodelled_share",
)  # fmt: skip
"""Columns that hold the value of a prediction as it is."""

SHARES = {
    "evidence": "evidence", "host_evidence": "host_evidence", "families": "families_us",
    "unmodelled": "unmodelled_us",
}  # fmt: skip
"""Columns that hold numbers by name, as JSON -> the attribute of a prediction that they are."""

TEXTS = ("overrides", "fitting_gpus", "warnings", "notes")
"""Columns that hold a list of texts, as JSON."""


def summary_values(prediction: Prediction) -> dict[str, Any]:
    """The values of one row in the `summary` schema."""
    p = prediction
    return {
        **{key: value for key, value in p.as_dict().items() if key in SCHEMAS["summary"].names},
        **{name: json.dumps(getattr(p, attribute)) for name, attribute in SHARES.items()},
        **{name: json.dumps(getattr(p, name)) for name in TEXTS},
        **{"largest_batch": p.largest_batch, "measured_us": p.measured_us, "error": p.error},
    }


def summary_row(prediction: Prediction) -> pd.DataFrame:
    """One row in the `summary` schema."""
    return pd.DataFrame({key: [value] for key, value in summary_values(prediction).items()})


def predictions_of(summary: pd.DataFrame, where: str | Path = "summary table") -> list[Prediction]:
    """Every row of a `summary` table.

    Args:
        summary: the table.
        where: its file, for messages.

    Raises:
        TableError: it is no such table, or a row holds text that no prediction writes.
    """
    predictions = []
    for number, row in enumerate(to_arrow(summary, "summary", str(where)).to_pylist()):
        try:
            predictions.append(prediction_of(row))
        except (msgspec.MsgspecError, LookupError) as error:
            raise TableError(
                f"{where}: row {number} is damaged ({first_line(error)}); run the pipeline again"
            ) from None
    return predictions


def prediction_of(row: Mapping[str, Any]) -> Prediction:
    """The prediction behind a row of plain values (without its calls)."""
    known = {key: value for key, value in row.items() if value is not None}
    values: dict[str, Any] = {key: known[key] for key in KEPT if key in known}
    for name, attribute in SHARES.items():
        values[attribute] = msgspec.json.decode(known.get(name, "{}"), type=dict[str, float])
    for name in TEXTS:
        values[name] = msgspec.json.decode(known.get(name, "[]"), type=tuple[str, ...])
    return Prediction(
        **values,
        several=_several(known),
        arithmetic=_arithmetic(known),
        power=_power(known),
        asked={key: known[key] for key in ASKED if key in known},
    )


def _arithmetic(known: Mapping[str, Any]) -> Arithmetic | None:
    if "model_flops" not in known:
        return None
    dtype = known["mfu_dtype"]
    return Arithmetic(known["model_flops"], dtype, {dtype: known["peak_tflop_per_s"]})


def _power(known: Mapping[str, Any]) -> Power | None:
    if "joules_per_step" not in known:
        return None
    return Power(
        known["joules_per_step"] / known["devices"],
        known["power_limit_w"],
        known["clock_mhz"],
        known["clock_bound"],
        known["power_evidence"],
        known["rest_w"],
        known.get("electricity", 0.0),
    )


def _several(known: Mapping[str, Any]) -> SeveralGpus | None:
    alone = known.get("devices", 1) * known.get("micro_batches", 1) == 1
    return None if alone else msgspec.convert(known, SeveralGpus)
