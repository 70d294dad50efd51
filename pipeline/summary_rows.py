"""Predictions as rows of the `summary` table, and back; a file of an earlier version may lack columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from pipeline.errors import TableError, first_line
from pipeline.prediction import ASKED, Prediction
from pipeline.prediction_parts import PARALLEL, Arithmetic, Power, SeveralGpus
from pipeline.prices import COST_COLUMNS
from pipeline.work import WORK_KEYS

KEPT = (
    "gpu",
    "model",
    "variant",
    "predicted_us",
    "active_us",
    "host_us",
    "p10_us",
    "p90_us",
    "unmodelled_share",
)
"""Columns that hold the value of a prediction as it is, in files of all versions."""

LEFT_OUT = (
    "samples_per_s",
    "global_batch",
    "families_us",
    "unmodelled_us",
    "lower_bound",
    "models_from",
    "traced",
    "tokens_per_s",
    "sureness",
    "compiled",
    *COST_COLUMNS,
    *WORK_KEYS,
    "node_w",
    "electricity_per_million",
    "mean_w_p10",
    "mean_w_p90",
)
"""Keys of an answer that are no columns."""


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
        **{key: value for key, value in p.as_dict().items() if key not in LEFT_OUT},
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
        TableError: a row holds text that no prediction writes.
    """
    predictions = []
    for number, row in enumerate(summary.to_dict("records")):
        try:
            predictions.append(prediction_of({str(key): value for key, value in row.items()}))
        except (msgspec.MsgspecError, ValueError, TypeError, LookupError) as error:
            raise TableError(
                f"{where}: row {number} is damaged ({first_line(error)}); run the pipeline again"
            ) from None
    return predictions


def prediction_of(row: Mapping[str, Any]) -> Prediction:
    """The prediction behind a row (without its calls)."""
    largest = _number(row.get("largest_batch"))
    return Prediction(
        **{key: row[key] for key in KEPT},
        **{to: _read_json(row.get(name), dict[str, float]) for name, to in SHARES.items()},
        **{name: _read_json(row.get(name), tuple[str, ...]) for name in TEXTS},
        batch_size=int(row["batch_size"]),
        memory_bytes=int(row["memory_bytes"]),
        fits=bool(row["fits"]),
        tight=bool(row.get("tight") or False),
        bound=_text(row.get("bound"), "device"),
        measured_us=_number(row.get("measured_us")),
        host=_text(row.get("host")),
        device_bound_from=_number(row.get("device_bound_from")),
        largest_batch=None if largest is None else int(largest),
        several=_several(row),
        arithmetic=_arithmetic(row),
        power=_power(row),
        asked={key: str(row[key]) for key in ASKED if _text(row.get(key))},
    )


def _arithmetic(row: Mapping[str, Any]) -> Arithmetic | None:
    flops, peak = _number(row.get("model_flops")), _number(row.get("peak_tflop_per_s"))
    if flops is None or peak is None:
        return None
    return Arithmetic(flops, _text(row["mfu_dtype"]), {_text(row["mfu_dtype"]): peak})


def _power(row: Mapping[str, Any]) -> Power | None:
    joules, devices = _number(row.get("joules_per_step")), int(_number(row.get("devices")) or 1)
    if joules is None:
        return None
    state = row["power_limit_w"], row["clock_mhz"], row["clock_bound"], row["power_evidence"]
    more = (_number(row.get(name)) or 0.0 for name in ("rest_w", "electricity"))
    return Power(joules / devices, *state, *more)


def _several(row: Mapping[str, Any]) -> SeveralGpus | None:
    split = {name: int(_number(row.get(name)) or 1) for name in PARALLEL}
    devices = int(_number(row.get("devices")) or 1)
    if devices * split["micro_batches"] == 1:
        return None
    return SeveralGpus(
        devices,
        int(row["nodes"]),
        _text(row["cluster"]),
        row["communication_us"],
        row["exposed_communication_us"],
        _number(row["efficiency"]),
        int(_number(row.get("dp")) or devices),
        split["tp"],
        split["cp"],
        split["pp"],
        split["virtual_stages"],
        split["micro_batches"],
        imbalance=_number(row.get("imbalance")),
        sharding=_text(row.get("sharding")),
        efficiency_p10=_number(row.get("efficiency_p10")),
        efficiency_p90=_number(row.get("efficiency_p90")),
    )


def _text(value: Any, default: str = "") -> str:
    return value if isinstance(value, str) and value else default


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def _read_json(text: object, kind: Any) -> Any:
    """A column that holds JSON; empty where a file has no such column."""
    return msgspec.json.decode(text, type=kind) if isinstance(text, str) and text else kind()
