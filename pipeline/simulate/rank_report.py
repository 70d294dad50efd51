"""Reports of several ranks that were replayed together: as JSON, and as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pipeline.simulate.ranks import RankResult
from pipeline.simulate.replay_result import overhead_summary

if TYPE_CHECKING:
    from rich.table import Table


def facts(paths: Sequence[str | Path], results: Sequence[RankResult]) -> dict[str, Any]:
    """Output of `steptime replay TRACE --rank TRACE... --json`: means over the ranks, then each rank."""
    rows: list[dict[str, Any]] = [
        {
            "trace": str(path), "measured_us": r.iteration.span_us, "predicted_us": float(r.timeline.step_us[0]),
            "error": r.error, "active_measured_us": r.iteration.active_us,
            "active_predicted_us": float(r.timeline.active_us[0]), "compute_us": r.compute_us,
            "communication_us": r.communication_us, "kernel_sum_us": float(r.iteration.kernel_us.sum()),
            "train_mean_us": r.train_mean_us,
        }
        for path, r in zip(paths, results, strict=True)
    ]  # fmt: skip

    def mean(key: str) -> float:
        return float(np.mean([row[key] for row in rows]))

    measured = mean("measured_us")
    return {
        "iterations": len(rows),
        "split": "each rank from the others, simulated together",
        "measured_us": measured,
        "predicted_us": mean("predicted_us"),
        "error": mean("predicted_us") / measured - 1.0,
        "mean_absolute_error": float(np.mean([abs(row["error"]) for row in rows])),
        "active_measured_us": mean("active_measured_us"),
        "active_predicted_us": mean("active_predicted_us"),
        "baselines": {
            f"{name}_mean_absolute_error": float(
                np.mean([abs(row[f"{name}_us"] / row["measured_us"] - 1.0) for row in rows])
            )
            for name in ("kernel_sum", "train_mean")
        },
        "overheads": overhead_summary(pd.concat([r.overheads for r in results], ignore_index=True)),
        "ranks": rows,
        "notes": [f"rank {number}: {note}" for number, r in enumerate(results) for note in r.notes],
    }


def table(values: dict[str, Any]) -> Table:
    """Rich table of `facts`: one line per rank."""
    from rich.table import Table

    out = Table(title=f"{values['iterations']} ranks, {values['split']}")
    out.add_column("rank")
    for name in ("measured µs", "predicted µs", "error", "computing µs", "communicating µs"):
        out.add_column(name, justify="right", overflow="fold")
    for number, row in enumerate(values["ranks"]):
        out.add_row(
            str(number), f"{row['measured_us']:,.1f}", f"{row['predicted_us']:,.1f}", f"{row['error']:+.2%}",
            f"{row['compute_us']:,.1f}", f"{row['communication_us']:,.1f}",
        )  # fmt: skip
    if values["notes"]:
        out.caption = "\n".join(f"note: {note}" for note in values["notes"])
        out.caption_justify = "left"
    out.add_section()
    out.add_row("mean absolute error", "", "", f"{values['mean_absolute_error']:.2%}", "", "")
    for name, label in (("kernel_sum", "baseline: kernel sum"), ("train_mean", "baseline: mean of the other ranks")):
        out.add_row(label, "", "", f"{values['baselines'][f'{name}_mean_absolute_error']:.2%}", "", "")
    return out
