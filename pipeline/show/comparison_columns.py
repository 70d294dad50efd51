"""Columns of a comparison that only some steps have: several GPUs, and power limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain

from pipeline.answers.engine import Answer
from pipeline.answers.ties import PER_PRICE
from pipeline.prediction import Prediction
from pipeline.readable import amount, distinct, in_ms, listed
from pipeline.work import WORK_KEYS

DEFAULT = "default"
"""Options of a row without any."""

LEFT_OUT_FIRST = (
    "TFLOP/s", "MFU", "tokens/s", "host", "how sure", "busy", "max batch", "measured", "exposed",
)  # fmt: skip
"""Columns that a table leaves out, in this order, where the terminal is too narrow."""


def left_out_first(several: bool) -> tuple[str, ...]:
    """Those, and the last ones: of several GPUs memory and cost stay, of one what limits it and its interval."""
    room, sure = ("memory", PER_PRICE), ("bound", "p10-p90 ms")
    return (*LEFT_OUT_FIRST, *sure, *room) if several else (*LEFT_OUT_FIRST, *room, *sure)


Rows = Sequence[Prediction | Answer]


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


def work_cells(p: Prediction) -> dict[str, str]:
    """Hours and cost of the user's work; empty where none was given."""
    facts, cells = p.work_facts, dict[str, str]()
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


def options_of(row: Prediction | Answer) -> list[str]:
    """The options of a row as a user types them, without the section of the model."""
    stated = row.stated if isinstance(row, Prediction) else row.question.stated
    if given := sorted([*row.overrides, *stated]) if stated else row.overrides:
        return [text.removeprefix("+").removeprefix("model.") for text in given]
    return [row.named] if isinstance(row, Prediction) and row.named else []


def shared_options(rows: Rows) -> list[str]:
    """The options that all rows have."""
    options = [options_of(row) for row in rows]
    return [text for text in chain(*options[:1]) if all(text in given for given in options)]


def own_options(row: Prediction | Answer, shared: Sequence[str]) -> str:
    """The options of a row that are not shared, as one text."""
    return " ".join(text for text in options_of(row) if text not in shared) or DEFAULT


def heading_of(cells: Mapping[str, str], same: Sequence[str], shared: Sequence[str]) -> str:
    """What all rows of a table share, such as `dlrm_default on V100, batch 2048 (embedding=sparse)`."""
    model = [cells["model"]] if "model" in same else []
    gpu = [f"on {cells['GPU']}"] if "GPU" in same else []
    gpu += [f"with host {cells['host']}"] if "host" in same and cells["host"] else []
    named = [" ".join([*model, *gpu])] if model or gpu else []
    named += [f"batch {cells['batch']}"] if "batch" in same else []
    options = [f"({' '.join(shared)})"] if shared else []
    return " ".join([*([", ".join(named)] if named else []), *options])


def notes_of(predictions: Sequence[Prediction]) -> Iterator[str]:
    """The notes of all predictions; one that several GPUs have once, with the names of all."""
    gpus_of: dict[str, list[str]] = {}
    for p in predictions:
        for text in p.notes:
            gpus_of.setdefault(text.replace(p.gpu, "\0"), []).append(p.gpu)
    for text, gpus in gpus_of.items():
        yield text.replace("\0", listed(distinct(gpus)))


def settings_of(predictions: Sequence[Prediction], keys: Sequence[str]) -> Iterator[str]:
    """A line for each model on what its rows are computed with: the host, or keys of `Prediction.asked`."""
    for model in distinct(p.model for p in predictions):
        used = [{"host": p.host, **p.asked} for p in predictions if p.model == model]
        values = {key: distinct(filter(None, (each.get(key) for each in used))) for key in keys}
        if settings := [f"{key} {' or '.join(of)}" for key, of in values.items() if of]:
            yield f"{model}: {', '.join(settings)}"
