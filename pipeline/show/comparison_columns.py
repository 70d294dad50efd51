"""Columns of a comparison that only some steps have: several GPUs, and power limits."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.prediction import Prediction
from pipeline.readable import in_ms


def exchange_cells(p: Prediction) -> dict[str, str]:
    """The columns of a step on several GPUs."""
    if p.several is None:
        return {}
    exposed = in_ms(p.several.exposed_communication_us)
    return {"exposed": exposed, "efficiency": p.several.efficiency_text.partition(" ")[0]}


def energy_cells(p: Prediction, others: Sequence[Prediction]) -> dict[str, str]:
    """Watts and joules of a step, where a power limit or a clock was asked for in one of the others."""
    if p.power is None or not any(other.run_at for other in others):
        return {}
    joules = p.devices * p.power.joules
    return {"W": f"{p.power.mean_w(p.predicted_us):.0f}", "J/step": f"{joules:.3g}"}
