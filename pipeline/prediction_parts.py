"""Parts of a prediction: what it computes, what several GPUs add, the traced step, and operators without a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp
from typing import Any

from pipeline.readable import amount, milliseconds, rate

SMALL_SHARE = 0.01
"""Share of the device time up to which operators without a model do not make a step a lower bound."""

UNMEASURED = "nothing stands behind"
"""Begin of the note on a GPU of whose architecture no kernel was measured."""

PARALLEL = ("tp", "cp", "pp", "virtual_stages", "micro_batches")
"""Settings of `parallel` that an answer repeats."""


def lacking_models(share: float, unmodelled: Iterable[str]) -> tuple[str, ...]:
    """The operators without a model whose bytes say too little: all, or those of linear algebra where they are a small share."""
    return tuple(name for name in unmodelled if share >= SMALL_SHARE or "linalg" in name)


@dataclass(frozen=True)
class TracedStep:
    """What a trace shows of the step that a prediction starts from. Times are µs."""

    gpu: str
    """The GPU that was traced."""
    span_us: float
    """From the first operator of the median iteration to the end of host and device."""
    queued_us: float
    """Part of the span in which the device finished work that was launched before the iteration."""
    step_us: float
    """The rest of the span: the step."""
    time_per_batch_us: float | None
    """Mean time from the end of an iteration to the end of the next; None for a trace of one iteration."""

    @property
    def rows(self) -> dict[str, str]:
        """Rows of a prediction's table: the span, the work queued before the step, the step, and the time per batch."""
        rows = {
            f"traced on {self.gpu}: span": milliseconds(self.span_us),
            "  work queued before the step": milliseconds(self.queued_us),
            "  step": milliseconds(self.step_us),
        }
        if self.time_per_batch_us is not None:
            rows["  time per batch (end to end)"] = milliseconds(self.time_per_batch_us)
        return rows


@dataclass(frozen=True)
class Arithmetic:
    """What a step computes on one GPU (`pipeline.answers.step_prediction.model_flops`), and the roofs of that GPU."""

    model_flops: float
    """FLOPs that the model needs for a step, without what runs again."""
    dtype: str
    """The dtype of most of them."""
    peaks_tflop_per_s: Mapping[str, float]
    """Datasheet peak of the GPU in each dtype of the step."""
    dram_gb_per_s: float | None = None
    """Datasheet bandwidth of its memory; None where it is not kept."""

    def tflop_per_s(self, step_us: float) -> float:
        """Achieved throughput of a step, TFLOP/s."""
        return self.model_flops / step_us / 1e6

    def mfu(self, step_us: float) -> float:
        """Model FLOPs utilisation: that over the peak of `dtype`."""
        return self.tflop_per_s(step_us) / self.peaks_tflop_per_s[self.dtype]


@dataclass(frozen=True)
class SeveralGpus:
    """What is particular of a step on several GPUs. Times are µs of one rank."""

    devices: int
    nodes: int
    cluster: str
    communication_us: float
    """Time in which collectives run."""
    exposed_communication_us: float
    """The part of it in which nothing else runs on the GPU."""
    efficiency: float | None = None
    """Throughput over that of as many single GPUs; None where one GPU cannot be predicted."""
    dp: int = 1
    """Replicas of the model, each with its own samples."""
    tp: int = 1
    cp: int = 1
    pp: int = 1
    """Ranks that share layers, tokens, and parts of the model."""
    virtual_stages: int = 1
    micro_batches: int = 1
    """Forward and backward passes of a rank before one update."""
    imbalance: float | None = None
    """Time of the longest lookups of a rank over the mean of all, where ranks hold different tables."""
    sharding: str = ""
    """What says which ranks hold which tables."""
    efficiency_p10: float | None = None
    efficiency_p90: float | None = None
    """Interval of the efficiency, by errors that one GPU shares and by that of the exchange, which it has not."""

    @property
    def layout(self) -> str:
        """How the work is shared, in words; empty for replicas of one pass."""
        sizes = {name: getattr(self, name) for name in PARALLEL}
        split = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        return ", ".join([f"dp {self.dp}", *split]) if split else ""

    @property
    def spread(self) -> str:
        """How tables are spread, in words; empty where each GPU holds all."""
        if self.imbalance is None:
            return ""
        return f"{self.sharding}; the longest lookups take {self.imbalance:.2f} times the mean"

    @property
    def efficiency_text(self) -> str:
        """The efficiency with its interval; empty where one GPU cannot be predicted, and why where it has no room for tables."""
        if self.efficiency is None:
            return "- (one GPU has no room for the tables)" if self.sharding else ""
        low, high = self.efficiency_p10, self.efficiency_p90
        ends = "" if low is None or high is None else f" ({low:.0%} to {high:.0%})"
        return f"{self.efficiency:.1%}{ends}"

    @property
    def rows(self) -> dict[str, str]:
        """Rows of a prediction's table: GPUs and what joins them, the time of their exchange, and what is lost to it."""
        exposed = f"{milliseconds(self.exposed_communication_us)} exposed (nothing else runs)"
        return {
            "GPUs": f"{self.devices}, {self.nodes} x {self.cluster}",
            "layout": self.layout,
            "tables": self.spread,
            "communication": f"{milliseconds(self.communication_us)}, {exposed}",
            "scaling efficiency": self.efficiency_text,
        }


POWER_SD = {"fitted": 0.08, "checked": 0.13, "assumed": 0.13}

JOULES_PER_KWH = 3.6e6

Z90 = 1.2816
"""The 90th percentile of the standard normal distribution."""


@dataclass(frozen=True)
class Power:
    """Energy of a step on one GPU, and the clock that its power limit leaves."""

    joules: float
    """Of one GPU in one step."""
    limit_w: float
    clock_mhz: float
    """Of the SMs while kernels run."""
    binds: str
    """What keeps the clock there: `power`, `boost clock`, `locked clock` or `host`, for which the GPU waits."""
    evidence: str
    """`fitted` for fp32 on cards to which constants of the power model were fitted; `checked` for cards whose tensor cores have
    measured watts. All others are `assumed`, and their limit of least energy is not named."""

    rest_w: float = 0.0
    """Of the rest of the machine (CPUs, NICs, fans) for each GPU: a stated share (`pipeline.hardware.power.NODE_SHARE`)."""
    electricity: float = 0.0
    """Price of a kWh; 0 where none was given."""

    @property
    def log_sd(self) -> float:
        """Relative error of the joules: that of the cards of the fit, or of one that was left out (docs/energy.md)."""
        return POWER_SD[self.evidence]

    def mean_w(self, step_us: float) -> float:
        """Mean power of one GPU over a step, W."""
        return self.joules / step_us * 1e6

    def interval_w(self, step_us: float) -> tuple[float, float]:
        """Mean power of one GPU over a step, p10 and p90, W."""
        low, high = (exp(sign * Z90 * self.log_sd) for sign in (-1, 1))
        return low * self.mean_w(step_us), high * self.mean_w(step_us)

    def electricity_per_hour(self, step_us: float) -> float:
        """Price of the electricity of one GPU and of its share of the machine for an hour of steps."""
        return self.electricity * (self.mean_w(step_us) + self.rest_w) / 1e3

    def rows(self, step_us: float, samples: float, devices: int, nodes: int) -> dict[str, str]:
        """Rows of a prediction's table: watts and clock, and the energy of a step of `samples` on all GPUs."""
        low, high = self.interval_w(step_us)
        each = " per GPU" * (devices > 1)
        of = f"{self.clock_mhz:,.0f} MHz, limit {self.limit_w:g} W; {self.binds} binds"
        facts = power_facts(self, step_us, samples, devices, nodes)
        energy = f"{facts['joules_per_step']:.3g} J a step"
        rest = f"{devices / nodes * self.rest_w:,.0f} W beside its GPUs (assumed)"
        price = facts["electricity_per_million"]
        return {
            "power": f"{facts['mean_w']:.0f} W{each}   ({low:.0f} to {high:.0f}); {of}",
            "energy": f"{energy}, {rate(facts['samples_per_kwh'])} samples/kWh",
            "node": f"{facts['node_w']:,.0f} W, with {rest}" if devices > 1 else "",
            "electricity": f"{amount(price)} for a million samples" if price else "",
        }


POWER_KEYS = (
    "mean_w", "joules_per_step", "samples_per_kwh", "clock_mhz", "power_limit_w", "clock_bound",
    "power_evidence", "rest_w", "electricity", "node_w", "electricity_per_million", "mean_w_p10",
    "mean_w_p90",
)  # fmt: skip


def power_facts(
    power: Power | None, step_us: float, samples: float, devices: int, nodes: int
) -> dict[str, Any]:
    """Keys of an answer about the energy of a step of `samples` on all GPUs; null where it has none."""
    if power is None:
        return dict.fromkeys(POWER_KEYS)
    joules = devices * power.joules
    values = power.mean_w(step_us), joules, samples / joules * JOULES_PER_KWH
    state = power.clock_mhz, power.limit_w, power.binds, power.evidence
    node_w = devices / nodes * (values[0] + power.rest_w)
    paid = devices * power.electricity_per_hour(step_us) * step_us / 3600 / samples
    price = (power.electricity, node_w, paid) if power.electricity else (None, node_w, None)
    low_high = power.interval_w(step_us)
    return dict(zip(POWER_KEYS, (*values, *state, power.rest_w, *price, *low_high), strict=True))


def facts_of(arithmetic: Arithmetic | None, step_us: float) -> dict[str, Any]:
    """Keys of an answer about its arithmetic; null where it has none."""
    a = arithmetic
    return {
        "model_flops": a and a.model_flops,
        "tflop_per_s": a and a.tflop_per_s(step_us),
        "mfu": a and a.mfu(step_us),
        "mfu_dtype": a and a.dtype,
        "peak_tflop_per_s": a and a.peaks_tflop_per_s[a.dtype],
    }
