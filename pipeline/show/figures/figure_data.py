"""Data of the figures: small tables made from artifacts, written as CSV beside each figure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.difference import difference
from pipeline.kernels.error_metrics import DECILES
from pipeline.prediction import Prediction
from pipeline.prices import with_prices

METRICS = "metrics.json"
TEST_PREDICTIONS = "test_predictions.parquet"
"""File of a model folder with its held-out rows: measured and predicted latency."""

DRAWN = "drawn"
"""Attribute of a table that holds what is drawn."""

OPERATORS_PER_STEP = 8
"""Number of operators per host and model in the figure of T2, T3 and T5."""

_RANK = r"^(?P<name>.*?)(?P<rank>_rank\d+)?$"
"""Name of a profiled workload, and the rank of the process at its end, if any."""

ERROR_QUANTILES = "error_quantiles.csv"
QUANTILES = 201
"""Number of quantiles of the held-out errors that ship with a model. A pack then has a histogram without samples."""

HISTOGRAM_BINS = 40


def value_for_money(points: pd.DataFrame) -> pd.DataFrame:
    """Throughput of every GPU at its best batch size, and what its samples cost.

    Args:
        points: `steps` table.

    Returns:
        A row per GPU and workload (`model_variant`) with a batch that fits, for the batch with the highest throughput:
        samples_per_s with p10 and p90 (`low_samples_per_s`, `high_samples_per_s`), and `pipeline.prices.COST_COLUMNS`.
        No row if no GPU has a price.
    """
    fitting = points[points["fits"].astype(bool)].sort_values(
        "samples_per_s", ascending=False, kind="stable"
    )
    best = fitting.drop_duplicates(["gpu", "model_variant"]).sort_index()
    speeds = best[
        ["gpu", "model_variant", "batch_size", "samples_per_s", "predicted_us", "bound"]
    ].assign(
        low_samples_per_s=1e6 * best["batch_size"] / best["p90_us"],
        high_samples_per_s=1e6 * best["batch_size"] / best["p10_us"],
    )
    priced = with_prices(speeds).reset_index(drop=True)
    return priced if priced["price_per_hour"].notna().any() else priced.iloc[:0]


def families(points: Iterable[Prediction]) -> pd.DataFrame:
    """Time of every predicted point by kernel family, and idle time, which add up to the step: gpu, workload, model_variant,
    batch_size, family, device_us.

    Kernels of several streams may overlap: their times are then scaled to the time in which any of them runs.
    """
    rows = [
        {**point_columns(p), "family": family, "device_us": us}
        for p in points
        for family, us in step_parts(p).items()
    ]
    return pd.DataFrame(rows, columns=[*POINT_COLUMNS, "family", "device_us"])


POINT_COLUMNS = ("gpu", "workload", "model_variant", "batch_size")
"""Columns that name a point; `workload` is its model, variant and batch size as one label."""


def point_columns(p: Prediction) -> dict[str, Any]:
    """The values of `POINT_COLUMNS`."""
    return dict(
        zip(POINT_COLUMNS, (p.gpu, p.label, p.label.rpartition(" b")[0], p.batch_size), strict=True)
    )


def step_parts(p: Prediction) -> dict[str, float]:
    """Time of a step by kernel family, largest first, the part of collectives that no kernel hides, then idle time, in µs."""
    exposed = p.several.exposed_communication_us if p.several else 0.0
    families_us = dict(sorted(p.families_us.items(), key=lambda item: -item[1]))
    if p.several:
        families_us.pop("collective", None)
    total = sum(families_us.values())
    scale = (p.active_us - exposed) / total if total else 0.0
    parts = {name: us * scale for name, us in families_us.items()}
    parts |= {"collective": exposed} if exposed > 0 else {}
    return parts | ({"idle": p.idle_us} if total else {})


def difference_table(steps: Sequence[Prediction]) -> pd.DataFrame:
    """Parts of the difference of two steps: part, a_us, b_us, change_us, p10_us, p90_us; its attribute `DRAWN` is what is drawn."""
    why = difference(*steps) if len(steps) == 2 else None
    parts = () if why is None else (*why.parts, why.step)
    rows = [(each.name, each.a_us, each.b_us, each.us, each.p10_us, each.p90_us) for each in parts]
    columns = ["part", "a_us", "b_us", "change_us", "p10_us", "p90_us"]
    table = pd.DataFrame(rows, columns=columns)
    table.attrs[DRAWN] = why
    return table


def spread(observations: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Count, mean and quantiles of `value_us` per group: p5_us, p25_us, median_us, mean_us, p75_us, p95_us, count."""
    known = observations.dropna(subset=list(by))
    names = ["p5_us", "p25_us", "median_us", "p75_us", "p95_us"]
    if known.empty:
        return pd.DataFrame(columns=[*by, *names, "mean_us", "count"])
    groups = known.groupby(list(by), sort=True, observed=True)["value_us"]
    quantiles = groups.quantile(np.array([0.05, 0.25, 0.5, 0.75, 0.95])).unstack()
    quantiles.columns = pd.Index(names)
    return quantiles.assign(mean_us=groups.mean(), count=groups.size()).reset_index()


def t1_by_workload(observations: pd.DataFrame, workloads: Iterable[str] = ()) -> pd.DataFrame:
    """Spread of T1 per host and profiled workload, over all ranks of a workload together.

    Args:
        observations: `overhead_samples` with a gpu column.
        workloads: the grid's own workloads. A host that has observations of any of them shows these alone.
    """
    t1 = observations[observations["type"] == "T1"]
    asked = t1["workload"].isin(set(workloads))
    t1 = t1[asked | ~t1["gpu"].isin(set(t1.loc[asked, "gpu"]))]
    name_parts = t1["workload"].str.extract(_RANK)
    ranks = t1.assign(name=name_parts["name"]).groupby(["gpu", "name"])["workload"].nunique()
    pooled = spread(t1.assign(workload=name_parts["name"]), ["gpu", "workload"])
    count = ranks.reindex(pd.MultiIndex.from_frame(pooled[["gpu", "workload"]])).to_numpy()
    return pooled.assign(
        workload=[
            f"{name} ({n} ranks)" if n > 1 else name
            for name, n in zip(pooled["workload"], count, strict=True)
        ]
    )


def t4_by_api(observations: pd.DataFrame) -> pd.DataFrame:
    """Spread of T4 per host and runtime call."""
    return spread(observations[observations["type"] == "T4"], ["gpu", "api"])


def dominant_operators(
    observations: pd.DataFrame, operators: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Spread of T2, T3 and T5, per host and model, of the operators with the most such time in a step, largest first.

    Args:
        observations: `overhead_samples` with a gpu column.
        operators: number of calls in a step, with the columns model, op, calls. Without it, the operators with the most time
            in the observations, and no model.

    Returns:
        The columns of `spread` by gpu, model, op and type.
    """
    inside = observations[observations["type"].isin(["T2", "T3", "T5"])]
    total = (
        inside.groupby(["gpu", "op"], sort=True)["value_us"].sum().rename("total_us").reset_index()
    )
    if operators is None or operators.empty:
        total = total.assign(model="")
    else:
        first = inside[inside["type"] == "T2"]
        seen = first.groupby(["gpu", "op"]).size().rename("seen").reset_index()
        total = total.merge(seen).merge(operators, on="op")
        total["total_us"] *= total["calls"] / total["seen"]
    total = total.sort_values(
        ["gpu", "model", "total_us"], ascending=[True, True, False], kind="stable"
    )
    largest = total.groupby(["gpu", "model"], sort=False).head(OPERATORS_PER_STEP)
    spreads = spread(inside.merge(largest[["gpu", "op"]].drop_duplicates()), ["gpu", "op", "type"])
    # a merge keeps the order of its left side, and `spread` sorts by type
    return largest[["gpu", "model", "op"]].merge(spreads)


def kernel_errors(folders: Iterable[tuple[str, Path]]) -> pd.DataFrame:
    """Held-out errors of fitted kernel models.

    Args:
        folders: (GPU, model folder) pairs; folders without a fitted model are skipped.

    Returns:
        A table of these columns.
        Model: gpu, family, variant, evidence, split, measured_on, samples, held_out.
        Errors, as fractions: gmae, mape, bias, coverage, above_floor_gmae.
        The GMAE of each tenth of the calls by size (`DECILES`), missing if a model does not store it.
    """
    rows = []
    for gpu, folder in folders:
        file = folder / "family.json"
        if not file.is_file():
            continue
        facts = json.loads(file.read_text(encoding="utf-8"))
        metrics = dict(facts.get("metrics") or {})
        if (folder / METRICS).is_file():
            metrics = json.loads((folder / METRICS).read_text(encoding="utf-8")) | metrics
        if "gmae" in metrics:
            rows.append(_errors_row(gpu, facts, metrics))
    columns = [*_MODEL_COLUMNS, *_ERROR_COLUMNS]
    return pd.DataFrame(rows, columns=columns).sort_values(
        ["family", "gpu"], kind="stable", ignore_index=True
    )


def error_quantiles(test: pd.DataFrame) -> pd.DataFrame:
    """Quantiles of predicted / measured - 1 in percent, in a number that is small enough to ship with a model.

    Args:
        test: held-out calls with `latency_us` and `predicted_us`.

    Returns:
        One column `percent`, ascending, at equal steps of probability from 0 to 1.
    """
    error = 100 * (test["predicted_us"] / test["latency_us"] - 1).to_numpy(float)
    return pd.DataFrame({"percent": np.round(np.quantile(error, np.linspace(0, 1, QUANTILES)), 4)})


def error_histograms(folders: Iterable[tuple[str, Path]]) -> pd.DataFrame:
    """Distribution of predicted / measured - 1 over the held-out calls of each model folder that stores them.

    A shipped model stores quantiles instead of the calls; the distribution is then counted over the quantiles.

    Returns:
        gpu, family, from_percent, to_percent, share; bins are common to all GPUs of a family.
    """
    errors: dict[str, dict[str, Any]] = {}
    for gpu, folder in folders:
        family = folder.name if (folder.parent.name == "kernels") else folder.parent.name
        values = np.empty(0)
        if (folder / TEST_PREDICTIONS).is_file():
            test = pd.read_parquet(
                folder / TEST_PREDICTIONS, columns=["latency_us", "predicted_us"]
            )
            values = 100 * (test["predicted_us"] / test["latency_us"] - 1).to_numpy(float)
        elif (folder / ERROR_QUANTILES).is_file():
            values = pd.read_csv(folder / ERROR_QUANTILES)["percent"].to_numpy(float)
        if len(values):
            errors.setdefault(family, {})[gpu] = values
    bins = []
    for family, by_gpu in sorted(errors.items()):
        everything = np.concatenate(list(by_gpu.values()))
        width = max(float(np.percentile(np.abs(everything), 98)), 1.0)
        edges = np.linspace(-width, width, HISTOGRAM_BINS + 1)
        for gpu, values in sorted(by_gpu.items()):
            counts, _ = np.histogram(np.clip(values, -width, width), edges)
            bins.append(
                pd.DataFrame(
                    {
                        "gpu": gpu,
                        "family": family,
                        "from_percent": edges[:-1],
                        "to_percent": edges[1:],
                        "share": counts / len(values),
                    }
                )
            )
    return (
        pd.concat(bins, ignore_index=True)
        if bins
        else pd.DataFrame(columns=["gpu", "family", "share"])
    )


_MODEL_COLUMNS = (
    "gpu", "family", "variant", "evidence", "split", "measured_on", "samples", "held_out",
)  # fmt: skip
_ERROR_COLUMNS = ("gmae", "mape", "bias", "coverage", "above_floor_gmae", *DECILES)


def _errors_row(gpu: str, facts: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    measured_on = facts.get("measured_on") or []
    return {
        **{name: facts.get(name) for name in _MODEL_COLUMNS},
        **{name: metrics.get(name) for name in _ERROR_COLUMNS},
        "gpu": gpu,
        "measured_on": ", ".join(measured_on) if isinstance(measured_on, list) else measured_on,
    }
