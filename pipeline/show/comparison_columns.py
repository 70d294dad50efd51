"""Columns of a comparison that only some steps have: several GPUs, and power limits."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pipeline.prediction import Prediction
from pipeline.readable import amount, compact, in_ms
from pipeline.work import WORK_KEYS


class Order(StrEnum):
    """What rows are sorted by, best first."""

    step = "step"
    throughput = "throughput"
    cost = "cost"


def best_first(predictions: Sequence[Prediction], order: Order) -> list[Prediction]:
    """Predictions, best first; those on a GPU without a price come last where cost is asked for."""
    keys = {
        Order.step: lambda p: p.predicted_us,
        Order.throughput: lambda p: -p.samples_per_s,
        Order.cost: lambda p: -(p.samples_per_price or 0.0),
    }
    return sorted(predictions, key=keys[order])


def exchange_cells(p: Prediction) -> dict[str, str]:
    """The columns of a step on several GPUs."""
    if p.several is None:
        return {}
    exposed = in_ms(p.several.exposed_communication_us)
    return {"exposed": exposed, "efficiency": p.several.efficiency_text.partition(" ")[0]}


def work_cells(p: Prediction, others: Sequence[Prediction]) -> dict[str, str]:
    """Tokens per second where samples have tokens; hours and cost of the user's work, where it is given."""
    cells = {}
    if any(other.seq_len for other in others):
        cells["tokens/s"] = compact(p.tokens_per_s) if p.tokens_per_s else ""
    if p.work is None:
        return cells
    facts = p.work_facts
    for name, keys in (("hours", WORK_KEYS[1:4]), ("cost", WORK_KEYS[4:])):
        middle, low, high = (amount(facts[key]) if facts[key] else "" for key in keys)
        cells |= {name: middle, f"{name} p10-p90": f"{low}-{high}" if middle else ""}
    return cells


def energy_cells(p: Prediction, others: Sequence[Prediction]) -> dict[str, str]:
    """Watts and joules of a step, where a power limit or a clock was asked for in one of the others."""
    if p.power is None or not any(other.run_at for other in others):
        return {}
    joules = p.devices * p.power.joules
    return {"W": f"{p.power.mean_w(p.predicted_us):.0f}", "J/step": f"{joules:.3g}"}
