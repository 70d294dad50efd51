"""The first screen of a page: six sentences with small bars that say what a comparison answers."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.answers.ties import independent_share, tied_gpus, why_tied
from pipeline.prediction import Prediction
from pipeline.readable import MOST_CARDS, distinct, gibibytes, listed, rate, span, three_digits
from pipeline.show.figures.step_times import steps
from pipeline.show.sentences import gpus_named, on_hosts, throughput_sentence, weakest

MOST_MODELS = 3
"""Number of models that have sentences of their own."""

Value = Callable[[Prediction], float]


@dataclass(frozen=True)
class Fact:
    """What is asked, the answer in a sentence, a command that shows it, and bars: name, length up to 1, and value."""

    asks: str
    says: str
    bars: Sequence[tuple[str, float, str]] = ()
    command: str = ""

    def html(self) -> str:
        """The fact as an entry of a list of definitions."""
        bars = "".join(
            f'<li><i style="width:{9 * min(share, 1.0):.2f}rem"></i>'
            f"{html.escape(f'{name}: {value}')}</li>"
            for name, share, value in self.bars
        )
        code = f"<code>{html.escape(self.command)}</code>" if self.command else ""
        says = f"<p>{html.escape(self.says)}{code}</p>" + (f"<ul>{bars}</ul>" if bars else "")
        return f"<dt>{html.escape(self.asks)}</dt><dd>{says}</dd>"


def brief(
    points: Sequence[Prediction],
    own: Sequence[Prediction],
    usable_bytes: Sequence[int],
    advised: Fact | None = None,
) -> list[Fact]:
    """What a comparison answers.

    Args:
        points: the points, on one host where GPUs are compared.
        own: the same points on their own hosts: how sure these are is what the table says.
        usable_bytes: memory of each point's GPU that PyTorch can use.
        advised: what makes the fastest point faster; without it, the command that says so.
    """
    models = distinct(p.own_name for p in points)
    facts = []
    for model in models[:MOST_MODELS]:
        of_model = [p for p in points if p.own_name == model]
        name = f"{model}: " if len(models) > 1 else ""
        facts += [_fastest(of_model, name), _cheapest(of_model, name)]
    best = _best_of_gpus(points, _us_per_sample)
    usable = {p.gpu: size for p, size in zip(points, usable_bytes, strict=True)}
    fits = _memory_sentences(points) or ["every point fits"]
    need = [(p, p.memory_bytes / usable[p.gpu]) for p in best[:MOST_CARDS]]
    rooms = [
        (_named(p), share, f"{gibibytes(p.memory_bytes)} of {gibibytes(usable[p.gpu])}")
        for p, share in need
    ]
    low = min(p.p10_us / p.predicted_us for p in own) - 1
    high = max(p.p90_us / p.predicted_us for p in own) - 1
    sure = (
        f"{weakest(own)}; p10 to p90 is at most −{-100 * low:.0f} % to +{100 * high:.0f} % of a"
        " step"
    )
    return [
        *facts,
        _limit(points, best),
        Fact("Does it fit?", _sentence("; ".join(fits)), rooms),
        advised or faster(best[0]),
        Fact("How sure?", _sentence(sure)),
    ]


def _memory_sentences(predictions: Sequence[Prediction]) -> list[str]:
    """Which batch sizes of a model do not fit which GPUs, and what does."""
    by_sizes: dict[str, list[str]] = {}
    for gpu in dict.fromkeys(p.gpu for p in predictions if not p.fits):
        lost = [p for p in predictions if p.gpu == gpu and not p.fits]
        most = lost[0].largest_batch
        sizes = listed(distinct(f"{p.batch_size:,}" for p in lost))
        by_sizes.setdefault(sizes, []).append(f"the {gpu}" + (f" ({most:,} does)" if most else ""))
    return [f"batch {sizes} does not fit {listed(gpus)}" for sizes, gpus in by_sizes.items()]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _named(p: Prediction) -> str:
    return f"{p.cards}, batch {p.batch_size:,}"


def _us_per_sample(p: Prediction) -> float:
    return p.predicted_us / p.global_batch


def _per_million(p: Prediction) -> float:
    return 1e6 / (p.samples_per_price or 1.0)


def _best_of_gpus(points: Sequence[Prediction], value: Value) -> list[Prediction]:
    """The best point of each GPU, best first; those that fit before those that do not."""
    best: dict[str, Prediction] = {}
    for p in sorted(points, key=lambda p: (not p.fits, value(p))):
        best.setdefault(p.gpu, p)
    return list(best.values())


def _ends(points: Sequence[Prediction], value: Value) -> list[tuple[float, float, float]]:
    """The value of each point, with p10 and p90: it grows with the step time."""
    return [
        (value(p), value(p) * p.p10_us / p.predicted_us, value(p) * p.p90_us / p.predicted_us)
        for p in points
    ]


def _fastest(points: Sequence[Prediction], name: str) -> Fact:
    best = _best_of_gpus(points, _us_per_sample)
    table = steps(points)
    first, *others = _ends(best, _us_per_sample)
    wins = [1 - independent_share(first, other) for other in others]
    chance = ""
    if wins and min(wins) > 0.5:
        rival = best[1 + wins.index(min(wins))]
        chance = (
            f"; it beats {rival.cards} in {min(100 * min(wins), 99):.0f} % of draws of the errors"
        )
    says = f"{name}{throughput_sentence(table)}{chance}{on_hosts(table)}."
    top = best[0].samples_per_s
    bars = [
        (_named(p), p.samples_per_s / top, f"{rate(p.samples_per_s)} samples/s")
        for p in best[:MOST_CARDS]
    ]
    return Fact("Which is fastest?", says, bars)


def _cheapest(points: Sequence[Prediction], name: str) -> Fact:
    best = _best_of_gpus([p for p in points if p.samples_per_price and p.fits], _per_million)
    lacking = distinct(p.gpu for p in points if not p.price)
    without = f"; no price of {gpus_named(lacking)}" if lacking else ""
    if not best:
        return Fact("Which is cheapest?", f"{name}No GPU has a price: give price.GPU=USD_AN_HOUR.")
    flags = tied_gpus(_ends(best, _per_million))
    tied = [p for p, ties in zip(best, flags, strict=True) if ties]
    says = f"{gpus_named([p.cards for p in tied])} "
    says += f"tie: {why_tied(tied)}" if len(tied) > 1 else f"at batch {tied[0].batch_size:,}"
    longest = max(map(_per_million, best[:MOST_CARDS]))
    currency = best[0].price.currency if best[0].price else ""
    bars = [
        (
            _named(p),
            _per_million(p) / longest,
            f"{three_digits(_per_million(p))} {currency}",
        )
        for p in best[:MOST_CARDS]
    ]
    says = f"{name}{says}{without}." + " Bars: a million samples." * (len(bars) > 1)
    return Fact("Which is cheapest?", says, bars)


def _limit(points: Sequence[Prediction], best: Sequence[Prediction]) -> Fact:
    """What most steps wait for, and how much faster the host must be where they wait for it."""
    counts = {bound: sum(p.bound == bound for p in points) for bound in (p.bound for p in points)}
    named = {"device": "the GPU", "host": "the host"}
    first, *others = sorted(counts, key=lambda bound: -counts[bound])
    many = f"{counts[first]} of {len(points)} steps" if others else "every step"
    says = f"{named.get(first, first)} limits {many}"
    says += "".join(f", {named.get(bound, bound)} {counts[bound]}" for bound in others)
    known = [p.device_bound_from for p in points if p.device_bound_from]
    if known:
        says += f"; from a host {span(min(known), max(known))} times as fast on, the GPU limits all"
    bars = [
        (
            _named(p),
            p.active_us / p.predicted_us,
            f"{100 * p.active_us / p.predicted_us:.0f} % busy",
        )
        for p in best[:MOST_CARDS]
    ]
    return Fact("What limits it?", _sentence(says), bars)


def faster(p: Prediction, says: str = "", command: str = "") -> Fact:
    """What makes a point faster, by default where to ask for it."""
    words = [f"gpu={p.gpu}", f"model={p.model}", f"batch_size={p.batch_size}", *p.overrides]
    command = command or " ".join(["steptime advise", *words])
    return Fact("What makes it faster?", f"{says or f'Ask for advice on {p.cards}'}: ", (), command)
