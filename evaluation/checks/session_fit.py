"""Error of another session, card and clock, from public kernels that were measured on two days (`packs/sessions.json`).

    python -m evaluation.checks.session_fit [DATASETS_DIR]

The packs learn from the first session. The second one (`neusight/second_session.parquet`: V100 and P4, other shapes) is
development data: it sets how far the intervals reach beyond those of the models. Each end is placed so that a tenth of the
rows lies beyond it, where both sessions have the same weight. An interval is never narrower than the model's own.

- *Other cards* take the V100's error in both directions, because the sign of their next clock is unknown. What rows wider
  than any of the first session add (softmax reads them once more) has the V100's sign.
- *Low-power cards* (at most 75 W) take the error of the T4's products in whole models, which were measured one by one in
  another run (`neusight/model_op_latency.parquet`), in both directions. The P4's own is larger: heat throttled its first session.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluation.checks.surfer_pairs import CASE_COLUMNS, MODELLED_FAMILIES, model_calls
from evaluation.training.pack_inputs import SOURCES
from evaluation.training.write_packs import record_file, write_by_gpu
from pipeline.answers.kernel_predictor import predictor_of
from pipeline.answers.step_errors import NORMAL_P90
from pipeline.datasets.neusight import read_samples, to_samples
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.estimate import FILE, LOW_POWER, LOW_POWER_CARDS, OTHER_CARDS, Session
from pipeline.kernels.family_model import find_families, read_description
from pipeline.model_files import pack_models
from pipeline.paths import datasets_dir, packs_dir
from pipeline.schemas import read_frame
from pipeline.user_cache import code_digest

SECOND_SESSION = Path("neusight") / "second_session.parquet"

TAIL = 0.1
"""Share of rows beyond each end, both sessions weighted equally."""

REFERENCE = "V100"
"""The card whose error other cards take."""

Array = npt.NDArray[np.float64]


def read_second(data: Path) -> pd.DataFrame:
    """The second session as a samples table.

    Raises:
        TableError: the table is missing, unreadable, or lacks columns.
    """
    file, columns = data / SECOND_SESSION, ("gpu", "op", "latency_us")
    table = read_frame(file, "it is part of the public data", "get it again", columns)
    return to_samples(table, default_gpu="unknown")


def residuals(samples: pd.DataFrame, gpu: str) -> pd.DataFrame:
    """log(measured / predicted) of samples by the pack of their GPU, with the ends of the model's own interval.

    Returns:
        family, width, log_error, low, high (low and high are distances from the prediction, in log time).
    """
    predicted = predictor_of(load_gpu(gpu), find_families([pack_models(gpu)])).predict_rows(samples)
    centre = predicted["predicted_us"].to_numpy(float)
    ends = {}
    for name, end, shared in (
        ("low", "latency_p10_us", "session_low"),
        ("high", "latency_p90_us", "session_high"),
    ):
        off, of_session = (
            np.log(predicted[end].to_numpy(float) / centre),
            predicted[shared].to_numpy(float),
        )
        ends[name] = np.sqrt(np.maximum(off**2 - of_session**2, 0.0))
    width = samples["H"].to_numpy(float, na_value=np.nan)
    error = np.log(samples["latency_us"].to_numpy(float) / centre)
    return pd.DataFrame(
        {"family": samples["family"].to_numpy(object), "width": width, "log_error": error, **ends}
    )


def as_cross_validated(first: pd.DataFrame, coverage: float) -> pd.DataFrame:
    """Residuals of rows that a model learned from, widened until the share inside is that of cross-validation."""
    factors = np.arange(1.0, 3.0, 0.01)
    inside = [
        share_inside(first.assign(log_error=factor * first["log_error"]), Session(0.0, 0.0))
        for factor in factors
    ]
    enough = np.flatnonzero(np.array(inside) <= coverage)
    return first.assign(
        log_error=first["log_error"] * (factors[enough[0]] if len(enough) else factors[-1])
    )


def share_inside(rows: pd.DataFrame, session: Session) -> float:
    """Share of rows inside p10 to p90."""
    error, low, high = (rows[name].to_numpy(float) for name in ("log_error", "low", "high"))
    return float(
        np.mean((-np.hypot(low, session.low) <= error) & (error <= np.hypot(high, session.high)))
    )


def fit_session(first: pd.DataFrame, second: pd.DataFrame) -> Session:
    """The error with which `TAIL` of the rows lies beyond each end, both sessions weighted equally."""
    return Session(
        *(
            _reach(
                [
                    (sign * rows["log_error"].to_numpy(float), rows[end].to_numpy(float))
                    for rows in (first, second)
                ]
            )
            for sign, end in ((-1, "low"), (1, "high"))
        )
    )


def _reach(sessions: list[tuple[Array, Array]]) -> float:
    """The least error beyond which, with the model's own (second array), `TAIL` of the errors (first array) lies."""
    least, most = 0.0, 3.0
    for _ in range(40):
        middle = (least + most) / 2
        beyond = np.mean([np.mean(error > np.hypot(own, middle)) for error, own in sessions])
        least, most = (middle, most) if beyond > TAIL else (least, middle)
    return round(most, 4)


def entries_of(data: Path, gpu: str, second: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Error and coverage of each family that a card measured twice."""
    first, again = residuals(read_samples(data, gpu), gpu), residuals(second, gpu)
    entries = {}
    for family, rows in again.groupby("family", sort=True):
        stated = read_description(pack_models(gpu) / str(family))["metrics"]["coverage"]
        learned = as_cross_validated(first[first["family"] == family], stated)
        session = fit_session(learned, rows)
        narrow = fit_session(learned, rows[~(rows["width"] > learned["width"].max())])
        shares = [share_inside(part, session) for part in (learned, rows)]
        entries[str(family)] = {
            **vars(session),
            "rows": [len(learned), len(rows)],
            "inside": [round(share, 4) for share in shares],
            "inside_without": [
                round(share_inside(part, Session(0.0, 0.0)), 4) for part in (learned, rows)
            ],
            "level": round(float(rows["log_error"].median()), 4),
            "clock": max(narrow.low, narrow.high),
        }
    return entries


def low_power_products(data: Path) -> dict[str, float]:
    """Error of the products of `LOW_POWER` in whole models, against its pack."""
    calls = model_calls(pd.read_parquet(data / "neusight" / "model_op_latency.parquet"))
    calls = calls[(calls["gpu"].astype(str) == LOW_POWER) & (calls["family"] == "gemm")]
    first = residuals(read_samples(data, LOW_POWER).query("family == 'gemm'"), LOW_POWER)
    return vars(fit_session(first, residuals(calls, LOW_POWER)))


def whole_models(data: Path) -> pd.DataFrame:
    """By GPU, for operators of whole models that were measured in another run than the pack's samples, in log time.

    Returns:
        Medians over the passes of `error` of the operators' sum against the pack, `sigma` (mean width of a single kernel),
        and `session` (the session's error in the direction of `error`); both are standard deviations.
    """
    calls = model_calls(pd.read_parquet(data / "neusight" / "model_op_latency.parquet"))
    passes = pd.read_parquet(data / "neusight" / "model_latency.parquet").drop_duplicates(
        CASE_COLUMNS
    )
    calls = calls[calls["family"].isin(MODELLED_FAMILIES)].merge(
        passes[[*CASE_COLUMNS, "num_layer"]], on=CASE_COLUMNS
    )
    rows = []
    for (gpu, *_), part in calls.groupby(["gpu", *CASE_COLUMNS]):
        predicted = predictor_of(
            load_gpu(str(gpu)), find_families([pack_models(str(gpu))])
        ).predict_rows(part)
        count = np.where(part["in_layer"], part["num_layer"], 1.0)
        times, error = count * predicted["predicted_us"].to_numpy(float), residuals(part, str(gpu))
        total = np.log(count @ part["latency_us"].to_numpy(float) / times.sum())
        session = predicted["session_low" if total < 0 else "session_high"].to_numpy(float)
        sigma = (error["low"] + error["high"]).to_numpy(float) / 2
        widths = [float(np.average(one, weights=times)) / NORMAL_P90 for one in (sigma, session)]
        rows.append((gpu, total, *widths))
    return pd.DataFrame(rows, columns=["gpu", "error", "sigma", "session"]).groupby("gpu").median()


def step_ratio(sums: pd.DataFrame) -> float:
    """`STEP_SIGMA_RATIO`: root mean square over the GPUs of what errors exceed the session's, over `sigma`."""
    beyond = np.maximum(sums["error"] ** 2 - sums["session"] ** 2, 0.0) / sums["sigma"] ** 2
    return float(np.sqrt(beyond.mean()))


def main() -> int:
    """Command line: fit, write the file, and print it; then the table of whole models, and the ratio that it gives."""
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else datasets_dir()
    if data is None or not (data / SECOND_SESSION).is_file():
        print(f"{SECOND_SESSION} is not at hand; packs/{FILE} stays as it is", file=sys.stderr)
        return 0
    second = read_second(data)
    cards = {
        str(gpu): entries_of(data, str(gpu), rows)
        for gpu, rows in second.groupby("gpu", observed=True)
    }
    cards[OTHER_CARDS] = {
        name: {end: max(entry[end], entry["clock"]) for end in ("low", "high")}
        for name, entry in cards[REFERENCE].items()
    }
    of_others = cards[OTHER_CARDS]["gemm"]
    products = {k: max(v, of_others[k]) for k, v in low_power_products(data).items()}
    cards[LOW_POWER] = {"gemm": products}
    cards[LOW_POWER_CARDS] = {"gemm": dict.fromkeys(products, max(products.values()))}
    provenance = {
        "data": [SOURCES["neusight"]],
        "files": [SECOND_SESSION.name],
        "code": code_digest("fit_kernels"),
    }
    write_by_gpu(path := packs_dir() / FILE, cards, provenance)
    record_file(path)
    print(path.read_text(encoding="utf-8"))
    sums = whole_models(data)
    print(f"{sums.round(3).to_string()}\nSTEP_SIGMA_RATIO: {step_ratio(sums):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
