"""Data of the figures: small tables made from artifacts, written as CSV beside each figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from pipeline.answers.difference import difference
from pipeline.prediction import Prediction
from pipeline.prices import with_prices

DRAWN = "drawn"
"""Attribute of a table that holds what is drawn."""


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
    names = ["gpu", "model_variant", "batch_size", "bound", "host"]
    times = ["predicted_us", "p10_us", "p90_us"]
    speeds = best[[*names, *times, "samples_per_s"]].assign(
        low_samples_per_s=best["samples_per_s"] * best["predicted_us"] / best["p90_us"],
        high_samples_per_s=best["samples_per_s"] * best["predicted_us"] / best["p10_us"],
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


def layout_families(points: Sequence[Prediction]) -> pd.DataFrame:
    """`families` of steps of one model that GPUs of one kind and number share in different ways, with the layout as `gpu`.

    Empty where steps differ otherwise, or in nothing.
    """
    layouts = [p.several.layout or f"dp {p.several.dp}" for p in points if p.several]
    alike = len({(p.gpu, p.model, p.devices) for p in points}) == 1
    if not alike or len({*layouts}) < 2:
        return families([])
    tables = [
        families([p]).assign(gpu=layout, model_variant=f"{p.model} on {p.cards}", fits=p.fits)
        for p, layout in zip(points, layouts, strict=True)
    ]
    return pd.concat(tables, ignore_index=True)


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
