"""A prediction in words: the rows of its table, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

from pipeline.hardware.find_gpu import LOCAL
from pipeline.paths import short_path
from pipeline.prediction_parts import UNMEASURED
from pipeline.prices import price_file
from pipeline.readable import amount, compact, milliseconds, rate, shares
from pipeline.work import OVERRIDE, work_rows

Prediction = Any
"""`pipeline.prediction.Prediction`, whose methods these functions are."""

NAMED_GPUS = 3
"""Number of GPUs that a table names as fitting."""

SURENESS = (("good", 0.10), ("fair", 0.20))
"""Words for a step, and the largest mean error up to which each is used; `measured` stands before, `guess` behind them."""

MEASURED_SHARE = 0.8
"""Share of device time that was measured, from which a step is called measured."""

MEAN_OF_P90_OVER_P10 = 0.311
"""Mean error of log-normal times over the logarithm of p90 / p10: 0.798 standard deviations, of which p90 / p10 spans 2.563.
Of published steps of GPUs that were not used for tuning, 1.37 gives 9.8 %; they were off by 7.4 (fp32) and 10.9 % (fp16)."""

LIMITS = {
    "device": "the GPU",
    "host": "the host",
    "communication": "communication between the GPUs",
    "loader": "data loading",
}
"""What limits a step, in words, by `Prediction.bound`."""


def expected_error(p: Prediction) -> float:
    """Mean error of steps with such an interval, as a share: what the evidence behind it has shown elsewhere."""
    return MEAN_OF_P90_OVER_P10 * log(p.p90_us / p.p10_us)


def sureness(p: Prediction) -> str:
    """How sure a prediction is: measured, good, fair or guess."""
    measured = sum(share for kind, share in p.evidence.items() if kind.startswith("measured"))
    if measured >= MEASURED_SHARE:
        return "measured"
    unknown = p.lower_bound or any(note.startswith(UNMEASURED) for note in p.notes)
    error = 1.0 if unknown else expected_error(p)
    return next((word for word, most in SURENESS if error <= most), "guess")


def rows(p: Prediction, why: bool) -> list[tuple[str, str]]:
    """The rows of a prediction's table: what, and the value as text.

    Args:
        p: the prediction.
        why: whether the time on GPU and host, and the shares and files behind both, have rows too.
    """
    unit = "steps/s" if p.traced and p.batch_size == 1 else "samples/s"
    asked = {key: value for key, value in p.asked.items() if key != "seq_len"}
    found = {
        "step time": step_text(p),
        f"measured, {'traced' if p.traced else 'unprofiled'}": _measured(p),
        "limited by": _limit(p),
        "throughput": f"{rate(p.samples_per_s)} {unit}{_tokens(p)}",
        "price": _price(p),
        **work_rows(p.work_facts, p.work, p.price.currency if p.price else ""),
        "arithmetic": _arithmetic(p),
        **(p.several.rows if p.several else {}),
        **(p.power.rows(*p.step_of) if p.power and (p.run_at or p.power.electricity) else {}),
        **(p.traced.rows if p.traced else {"memory": p.memory_text}),
        "what fits": "" if p.fits else _what_fits(p),
        "not modelled": _unmodelled(p),
        "how sure": _how_sure(p),
        "computed with": words({"host": p.host, **asked}),
        **(_reasons(p) if why else {}),
    }
    return [
        *((label, text) for label, text in found.items() if text),
        *(("note", text) for text in p.notes),
        *(("warning", text) for text in p.warnings),
    ]


def step_text(p: Prediction, gap: str = "   ") -> str:
    """The step time with its interval."""
    least = "at least " if p.lower_bound else ""
    low, high = milliseconds(p.p10_us), milliseconds(p.p90_us)
    return f"{least}{milliseconds(p.predicted_us)}{gap}(p10-p90: {low} to {high})"


def words(values: Mapping[str, str]) -> str:
    """Keys with their values, but for empty ones."""
    return ", ".join(f"{key} {value}" for key, value in values.items() if value)


def _reasons(p: Prediction) -> dict[str, str]:
    busy = f"{milliseconds(p.active_us)} busy, {milliseconds(p.idle_us)} idle"
    return {
        "GPU": busy,
        "host": f"done after {milliseconds(p.host_us)}",
        "device time rests on": shares(p.evidence),
        "host time rests on": shares(p.host_evidence),
        "kernel models from": ", ".join(map(short_path, p.models_from)),
    }


def _limit(p: Prediction) -> str:
    more = f"{p.active_us / p.predicted_us:.0%} busy"
    if p.bound != "device":
        more = f"GPU {more}"
    if p.bound == "host" and p.host:
        faster = p.device_bound_from
        more += (
            "; whatever the host"
            if faster is None
            else (f"; the GPU is the limit from a host {faster:.2f} times as fast")
        )
    return f"{LIMITS.get(p.bound, p.bound)}   ({more})"


def _how_sure(p: Prediction) -> str:
    word = sureness(p)
    if p.p10_us == p.p90_us or word == "measured":
        return word if word == "measured" else ""
    if p.lower_bound:
        return f"{word}: operators without a model may take much longer"
    if any(note.startswith(UNMEASURED) for note in p.notes):
        return f"{word}: no kernel of its architecture was measured"
    return f"{word}: such steps are off by {expected_error(p):.0%}"


def _measured(p: Prediction) -> str:
    off = f"   (error of the prediction: {p.error:+.1%})" if p.error is not None else ""
    return "" if p.measured_us is None else f"{milliseconds(p.measured_us)}{off}"


def _tokens(p: Prediction) -> str:
    each = f"   ({compact(p.tokens_per_s)} tokens/s" if p.tokens_per_s else ""
    return f"{each}, sequences of {p.seq_len:,})" if each else ""


def _price(p: Prediction) -> str:
    price, known = p.price, p.samples_per_price
    if p.gpu == LOCAL or p.traced:
        return ""
    if price is None or known is None:
        return f"unknown: give {OVERRIDE}{p.gpu}=USD_AN_HOUR" if price_file() else ""
    paid, money = amount(price.per_hour * p.devices), price.currency
    return f"{paid} {money} an hour{price.offer}, {compact(known)} samples per {money}"


def _arithmetic(p: Prediction) -> str:
    if p.arithmetic is None:
        return ""
    reached = f"{p.tflop_per_s:.3g} TFLOP/s{' per GPU' * (p.devices > 1)}"
    return f"{reached}, {p.mfu:.1%} of the {p.arithmetic.dtype} peak (MFU)"


def _unmodelled(p: Prediction) -> str:
    if p.unmodelled_share <= 0:
        return ""
    names = ", ".join(list(p.unmodelled_us)[:3])
    return f"{p.unmodelled_share:.1%} of device time{f' ({names})' if names else ''}"


def _what_fits(p: Prediction) -> str:
    most = p.largest_batch
    batch = "no smaller batch" if most is None else f"a batch of {most:,}"
    named, more = p.fitting_gpus[:NAMED_GPUS], len(p.fitting_gpus) - NAMED_GPUS
    others = f"{', '.join(named) or 'no other GPU'}{f' and {more} more' if more > 0 else ''}"
    change = p.fitting_change and f"; this batch on these GPUs with {p.fitting_change}"
    return f"{batch} on this GPU; this batch on {others}{change}"
