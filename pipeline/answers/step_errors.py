"""What a predicted step may be wrong by: the sources of error of its times, and the interval that they give.

Kernel times are log-normal. Three errors add up in log time:

- Calls of one family share a part of their variance (`FAMILY_VARIANCE_SHARE`). The three directions of a convolution
  are one family here, because one library computes them by the same methods.
- The rest is independent for each call and has mean one, so that it averages out over a step. Calls with the same
  launch (`launch_keys`) share it, because a model has the same error for a shape in every launch.
- All kernels of a step share one error, which does not average out. It is that of another session, card and clock
  (`estimate.Session`, which may reach farther to one side). `STEP_SIGMA_RATIO` times a kernel's standard deviation is
  added, and on several GPUs the code of a framework (`CODE_SD`).

Host times share one error, with a width by the kind of their evidence. Between two steps it does not cancel whole: operators
have errors of their own (`host_factors`). Each source draws from a generator of its own, whose key is the seed and the name of
the source (`keyed_normals`). A step then moves these values a little, so that their sum over the step is evenly spaced
(`stratified`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Ints
from pipeline.question.question import Question
from pipeline.schemas import DIMS
from pipeline.simulate.program import Program

HOST_SIGMA = {"measured": 0.05, "shared": 0.15, "transferred": 0.30, "assumed": 0.30}
"""Standard deviation of log host time by evidence. Overheads shared between workloads of calibrated hosts were within
10 to 16 % of those measured, overheads of another host within 41 %."""

FAMILY_VARIANCE_SHARE = {"gemm": 0.9, "bmm": 0.9, "conv2d": 0.2, "collective": 0.9}
OTHER_VARIANCE_SHARE = 0.4
"""Share of a kernel's log-variance that all calls of its family have in common, because the errors of one model have
the same sign. Set from the errors of sums over a family on held-out GPUs (docs/notes/kernels.md). Of collectives, the rate of a
machine's links is not known, which all of them share."""

STEP_SIGMA_RATIO = 0.2
"""Ratio of the standard deviation that all kernels of a step share beyond the session's to that of one kernel (log time).
Set from sums over whole models that were measured in another run on the GPUs of the packs: what their errors exceed
the session's (`python -m evaluation.checks.session_fit`, docs/notes/kernels.md)."""

CODE_SD = 0.285
"""Standard deviation of log step time where ranks share a model or its weights: by the code of a framework and the network of a
cluster, which nobody describes. It is to the slow side alone, because to the fast side the errors of kernels suffice. p90 is so the
90th percentile of published steps, each source and GPU of equal weight: every second model of it (docs/accuracy/many_gpus.md)."""

EFFICIENCY_SD = 0.045
"""Standard deviation of the log scaling efficiency of replicas beyond what exchanges are wrong by: two cards are not equally fast,
and several share a host and its memory. With it p10 to p90 hold 80 % of the published efficiencies of every second machine; the
other machines judge it (docs/accuracy/scaling.md)."""

MAX_KERNEL_SIGMA = 1.5
"""Upper bound of the standard deviation of one kernel's log time."""

NORMAL_P90 = 1.2815515594457412
"""90th percentile of the standard normal distribution."""

STEP = 0
"""Place of the error of the step among the sources."""


@dataclass(frozen=True)
class ErrorSources:
    """Which calls of a step share an error.

    Attributes:
        names: the sources: the step, families and launches.
        family: place in `names` of the family of each call, shape (calls,).
        launch: place in `names` of the launch of each call, shape (calls,).
        share: share of each call's variance that its family has in common, shape (calls,).
    """

    names: tuple[str, ...]
    family: Ints
    launch: Ints
    share: Array

    @classmethod
    def of(cls, calls: pd.DataFrame) -> ErrorSources:
        """From a `calls` table."""
        names = calls["family"].astype(str).to_numpy(object)
        group, families = pd.factorize(
            np.array(["conv2d" if name.startswith("conv2d") else name for name in names], object)
        )
        launch, keys = pd.factorize(np.array(launch_keys(calls), object))
        shares = np.array(
            [FAMILY_VARIANCE_SHARE.get(name, OTHER_VARIANCE_SHARE) for name in families], float
        )
        sources = ["step", *(f"family {name}" for name in families)]
        first_launch = len(sources)
        sources += [f"launch {key}" for key in keys]
        return cls(tuple(sources), group + STEP + 1, launch + first_launch, shares[group])


@dataclass(frozen=True)
class StepErrors:
    """Widths of the errors of predicted times, as standard deviations of log time.

    Attributes:
        sources: which calls share an error.
        centre: predicted time of each call, µs, shape (calls,).
        common, own, step: widths of the errors of the family, the launch and the step, shape (calls,).
        skew: half of what the step's error reaches farther to slow than to fast, per standard deviation, shape (calls,).
        least: time that no error goes below, µs, shape (calls,).
        host: width of the error of host times.
    """

    sources: ErrorSources
    centre: Array
    common: Array
    own: Array
    step: Array
    skew: Array
    least: Array
    host: float

    @classmethod
    def of(
        cls,
        sources: ErrorSources,
        predicted: pd.DataFrame,
        host_evidence: Mapping[str, float] | None = None,
        question: Question | None = None,
    ) -> StepErrors:
        """From what kernel models predict for the calls, shares of host time by evidence, and what is asked."""
        ranks = question.ranks if question else None
        code_sd = CODE_SD if ranks and (ranks.layers or ranks.parallel.sharded) else 0.0
        centre, low, high = (
            predicted[name].to_numpy(float) for name in ("kernel_us", "p10_us", "p90_us")
        )
        session_low, session_high, least = (
            predicted[name].to_numpy(float) if name in predicted else np.zeros(len(centre))
            for name in ("session_low", "session_high", "least_us")
        )
        faster = _own_width(low, centre, session_low)
        slower = _own_width(high, centre, session_high)
        width = np.where(least > 0, slower, (faster + slower) / 2)  # p10 is not below `least`
        sigma = np.clip(width / NORMAL_P90, 0.0, MAX_KERNEL_SIGMA) * (centre > 0)
        step_low, step_high = (
            np.hypot(np.hypot(STEP_SIGMA_RATIO * sigma, code), session / NORMAL_P90)
            for session, code in ((session_low, 0.0), (session_high, code_sd))
        )
        return cls(
            sources,
            centre,
            np.sqrt(sources.share) * sigma,
            np.sqrt(1 - sources.share) * sigma,
            (step_low + step_high) / 2,
            (step_high - step_low) / 2,
            least,
            host_sigma(host_evidence or {}, question.host.log_sd if question else 0.0),
        )

    @classmethod
    def of_launches(
        cls, centre: Array, launches: Sequence[str], sigma: Array, share: float, host: float
    ) -> StepErrors:
        """From the width of each call's error, of which all calls have a `share` in common and equal launches the rest."""
        codes, names = pd.factorize(np.array(launches, object))
        none = np.zeros(len(centre))
        sources = ErrorSources(
            ("step", *names), np.zeros(len(codes), np.int64), codes + STEP + 1, none
        )
        own, step = np.sqrt(1 - share) * sigma, np.sqrt(share) * sigma
        return cls(sources, centre, none, own, step, none, none, host)

    def normals(self, launches: Array, draws: int, seed: int) -> Array:
        """Normal values of the sources, shape (sources, draws), `stratified` by the sum of all kernel times.

        Args:
            launches: how often the step launches each call, shape (calls,).
            draws: number of draws.
            seed: of the draws.
        """
        us, names = launches * self.centre, self.sources.names
        weights = np.bincount(self.sources.family, us * self.common, len(names)).astype(float)
        weights = weights + np.bincount(self.sources.launch, us * self.own, len(names))
        weights[STEP] += us @ self.step
        return stratified(keyed_normals(names, draws, seed), weights)

    def times(self, normals: Array) -> Array:
        """Kernel times in µs, shape (calls, draws), from normal values of the sources, shape (sources, draws)."""
        family, launch = normals[self.sources.family], normals[self.sources.launch]
        logs = self.common[:, None] * family + self.own[:, None] * launch
        logs -= (self.own**2 / 2)[:, None]  # mean one
        logs += np.outer(self.step, normals[STEP])
        if self.skew.any():
            logs += np.outer(self.skew, np.abs(normals[STEP]))
        times = np.exp(logs, out=logs) * self.centre[:, None]
        return np.maximum(times, self.least[:, None], out=times)


def _own_width(end: Array, centre: Array, session: Array) -> Array:
    """What a model's own error adds to that of another session, in log time, from one end of its interval."""
    apart = np.log(np.maximum(end, 1e-9) / np.maximum(centre, 1e-9))
    return np.sqrt(np.maximum(apart**2 - session**2, 0.0))


def host_sigma(evidence: Mapping[str, float], host_log_sd: float = 0.0) -> float:
    """Width of the error of host times, from the shares of host time by evidence.

    A host that is only inferred (`Host.log_sd`) adds what is not known of it to the error of shared overheads.
    """
    if host_log_sd > 0:
        return math.hypot(HOST_SIGMA["shared"], host_log_sd)
    return sum(
        share * HOST_SIGMA.get(kind, max(HOST_SIGMA.values())) for kind, share in evidence.items()
    )


def host_factors(sigma: float, program: Program, draws: int, seed: int) -> Array:
    """Draws of the factor on a step's host times, whose error has the width `sigma`; shape (draws,).

    How fast the host is, all steps share. How well overheads carry over to a step is an error of each operator:
    `HOST_SIGMA["shared"]`, the error between workloads of one host. An operator that one of two steps lacks is not known
    from the other.
    """
    items = program.items.name[program.item]
    names, item = np.unique(items.astype(str), return_inverse=True)
    rows_us = program.lead_us + program.gap_us + program.api_us + program.tail_us
    weights: Array = np.bincount(item, rows_us, len(names)).astype(float)
    normals = keyed_normals(["host", *(f"host {name}" for name in names)], draws, seed)
    weights /= max(float(np.linalg.norm(weights)), 1e-9)
    own = min(HOST_SIGMA["shared"], sigma) if weights.any() else 0.0
    widths = np.array([math.sqrt(sigma**2 - own**2), *own * weights])
    return np.asarray(np.exp(widths @ stratified(normals, widths)))


def stratified(normals: Array, weights: Array) -> Array:
    """Normal values (sources, draws), changed as little as makes their weighted sums equally likely: quantiles of a normal.

    So p10 and p90 of what nearly follows this sum hardly depend on the seed: they vary by 0.25 % of a step on average, half as much
    as without it. Differences of two steps stay as wide (docs/kernels.md, "How many draws").
    """
    weights = weights / max(float(np.linalg.norm(weights)), 1e-9)
    sums = weights @ normals
    apart = _normal_quantiles(len(sums))[np.argsort(np.argsort(sums))] - sums
    return np.asarray(normals + np.outer(weights, apart))


def interval(draws: Array, middle: float) -> tuple[float, float]:
    """p10 and p90 of draws, the middle within."""
    low, high = np.percentile(draws, [10, 90])
    return float(min(low, middle)), float(max(high, middle))


def launch_keys(calls: pd.DataFrame) -> list[str]:
    """A key for each call from what a kernel model reads: family, op, phase, dtype, sizes and attributes.

    Calls without sizes (operators that the map does not know) are distinguished by their bytes.
    """
    texts = _stated(calls, ("family", "op", "phase", "dtype", "attributes"), "{}={}")
    sizes, traffic = (
        _stated(calls, names, "{}={:.0f}") for names in (DIMS, ("bytes_read", "bytes_written"))
    )
    return [
        ";".join([*text, *(size or moved)])
        for text, size, moved in zip(texts, sizes, traffic, strict=True)
    ]


def _stated(calls: pd.DataFrame, names: Sequence[str], form: str) -> list[list[str]]:
    """The values of some columns with their names, for each call; missing values are left out."""
    words: list[list[str]] = [[] for _ in range(len(calls))]
    for name in (name for name in names if name in calls):
        rows = np.flatnonzero(calls[name].notna())
        for row, value in zip(rows, calls[name].to_numpy(object)[rows], strict=True):
            words[row].append(form.format(name, value))
    return words


def keyed_normals(keys: Sequence[str], draws: int, seed: int) -> Array:
    """Standard normal draws, shape (keys, draws); a key's row depends on the seed and the key alone.

    Each row holds the same values, the middles of `draws` equally likely ranges, each in a different order (a
    Latin hypercube). Percentiles of a sum over many keys vary less from seed to seed than with independent draws.
    Draws of two steps with the same seed are pairs: an error that both share does not widen their difference.
    The array cannot be changed, because the draws of the keys that were asked for last are kept.
    """
    return _keyed_normals(tuple(keys), draws, seed)


@lru_cache(maxsize=32)
def _keyed_normals(keys: tuple[str, ...], draws: int, seed: int) -> Array:
    values = _normal_quantiles(draws)
    found = np.empty((len(keys), draws))
    bits = np.random.Philox(0)  # a new one for each key would ask the system for entropy each time
    generator, state = np.random.Generator(bits), bits.state
    for row, key in zip(found, keys, strict=True):
        digest = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=16).digest()
        state["state"]["key"] = np.frombuffer(digest, "<u8")
        bits.state = state
        row[:] = generator.permutation(values)
    found.setflags(write=False)
    return found


@lru_cache(maxsize=8)
def _normal_quantiles(count: int) -> Array:
    """Quantiles of the standard normal distribution at the middles of `count` equally likely ranges."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((place + 0.5) / count) for place in range(count)])
