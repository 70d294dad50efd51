"""What a predicted step may be wrong by: the sources of error of its times, and the interval that they give.

Kernel times are log-normal. Three errors add up in log time:

- Calls of one family share a part of their variance (`FAMILY_VARIANCE_SHARE`). The three directions of a convolution
  are one family here, because one library computes them by the same methods.
- The rest is independent for each call and has mean one, so that it averages out over a step. Calls with the same
  launch (`launch_keys`) share it, because a model has the same error for a shape in every launch.
- All kernels of a step share one error, which does not average out. It is that of another session, card and clock
  (`estimate.Session`, which may reach farther to one side). `STEP_SIGMA_RATIO` times a kernel's standard deviation is
  added.

Host times share one error, with a width by the kind of their evidence. Between two steps it does not cancel whole: operators
have errors of their own (`host_factors`). Each source draws from a generator of its own, whose key is the seed and the name of
the source. Other calls, their order and the last digits of predicted times
therefore do not change what a source draws.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.schemas import DIMS
from pipeline.simulate.critical_path import Form, step_times
from pipeline.simulate.program import Program
from pipeline.simulate.timeline import Timeline

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HOST_SIGMA = {"measured": 0.05, "shared": 0.15, "transferred": 0.30}
"""Standard deviation of log host time by evidence. Overheads shared between workloads of calibrated hosts were within
10 to 16 % of those measured, overheads of another host within 41 %."""

FAMILY_VARIANCE_SHARE = {"gemm": 0.9, "bmm": 0.9, "conv2d": 0.2}
OTHER_VARIANCE_SHARE = 0.4
"""Share of a kernel's log-variance that all calls of its family have in common, because the errors of one model have
the same sign. Set from the errors of sums over a family on held-out GPUs (docs/notes/kernels.md)."""

STEP_SIGMA_RATIO = 0.2
"""Ratio of the standard deviation that all kernels of a step share beyond the session's to that of one kernel (log time).
Set from sums over whole models that were measured in another run on the GPUs of the packs: what their errors exceed
the session's (`python -m evaluation.checks.session_fit`, docs/notes/kernels.md)."""

MAX_KERNEL_SIGMA = 1.5
"""Upper bound of the standard deviation of one kernel's log time."""

NORMAL_P90 = 1.2815515594457412
"""90th percentile of the standard normal distribution."""

MAIN_ERRORS = np.array([-1.55, -1.0, 1.0, 1.55])
"""Values of the main error (`StepErrors.direction`), in standard deviations, at which a step is simulated: on both
sides of its p10 and p90. Values farther apart (-2, -0.85, 0.85, 2) moved p10 by 0.4 % where a step is nearly host-bound."""

STEADY = 0.0008
"""Standard deviation of p10 and p90 (log time), from seed to seed, for which enough errors are drawn."""

MOST_DRAWS, MOST_VALUES = 32, 8_000_000
"""Upper bounds of the draws of a step: as a multiple of `predict.draws`, and as times that are simulated."""

QUANTILES, LEAST_QUANTILES = 16_384, 32
"""Values of the main error for which the time is interpolated in all draws of the other errors; least number per draw."""

DRAW_COUNTS = 8
"""Numbers of draws whose quantiles are kept: a grid draws 1 to `MOST_DRAWS` times as often, by powers of two."""

STEP, HOST = 0, 1
"""Places of the sources that are not families or launches."""

HOST_SOURCE = "host"
"""Name of the source at `HOST`."""


@dataclass(frozen=True)
class ErrorSources:
    """Which calls of a step share an error.

    Attributes:
        names: the sources: the step, the host, families and launches.
        family: place in `names` of the family of each call, shape (calls,).
        launch: place in `names` of the launch of each call, shape (calls,).
        share: share of each call's variance that its family has in common, shape (calls,).
    """

    names: tuple[str, ...]
    family: Ints
    launch: Ints
    share: Floats

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
        first = HOST + 1 + len(families)
        named = (*(f"family {name}" for name in families), *(f"launch {key}" for key in keys))
        return cls(("step", HOST_SOURCE, *named), group + HOST + 1, launch + first, shares[group])


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
    centre: Floats
    common: Floats
    own: Floats
    step: Floats
    skew: Floats
    least: Floats
    host: float

    @classmethod
    def of(
        cls,
        sources: ErrorSources,
        predicted: pd.DataFrame,
        host_evidence: Mapping[str, float] | None = None,
        host_log_sd: float = 0.0,
    ) -> StepErrors:
        """From what the kernel models predict for the calls, the shares of host time by evidence, and `Host.log_sd`."""
        centre = predicted["kernel_us"].to_numpy(float)
        least = (
            predicted["least_us"].to_numpy(float)
            if "least_us" in predicted
            else np.zeros(len(centre))
        )
        session, widths = [], []
        for end, shared in (("p10_us", "session_low"), ("p90_us", "session_high")):
            off = np.log(
                np.maximum(predicted[end].to_numpy(float), 1e-9) / np.maximum(centre, 1e-9)
            )
            session.append(
                predicted[shared].to_numpy(float) if shared in predicted else np.zeros(len(centre))
            )
            widths.append(
                np.sqrt(np.maximum(off**2 - session[-1] ** 2, 0.0))
            )  # the model's own width on this side
        known = np.where(
            least > 0, widths[1], (widths[0] + widths[1]) / 2
        )  # p10 does not go below `least`
        sigma = np.where(centre > 0, np.clip(known / NORMAL_P90, 0.0, MAX_KERNEL_SIGMA), 0.0)
        faster, slower = (np.hypot(STEP_SIGMA_RATIO * sigma, part / NORMAL_P90) for part in session)
        return cls(
            sources,
            centre,
            np.sqrt(sources.share) * sigma,
            np.sqrt(1 - sources.share) * sigma,
            (faster + slower) / 2,
            (slower - faster) / 2,
            least,
            host_sigma(host_evidence or {}, host_log_sd),
        )

    def log_errors(self, normals: Floats) -> Floats:
        """Errors of log times without skew, shape (calls, draws), from normal values of the sources, shape (sources, draws)."""
        common, own = (
            self.common[:, None] * normals[self.sources.family],
            self.own[:, None] * normals[self.sources.launch],
        )
        return common + own + np.outer(self.step, normals[STEP])

    def times(self, normals: Floats) -> Floats:
        """Kernel times in µs, shape (calls, draws), from normal values of the sources, shape (sources, draws)."""
        logs = self.log_errors(normals) - (self.own**2 / 2)[:, None]  # mean one
        times = np.exp(logs + np.outer(self.skew, np.abs(normals[STEP]))) * self.centre[:, None]
        return np.maximum(times, self.least[:, None])

    def direction(self, timeline: Timeline, which: Ints) -> Floats:
        """The combination of errors that changes the step most, as a unit vector over the sources.

        It is the derivative of the step time along the critical path of the first draw. Only the kernels and the host
        time on this path count.

        Args:
            timeline: the simulated step.
            which: row of these errors for each device call of the step.
        """
        path = timeline.critical
        on_path = np.bincount(
            which, weights=path.calls * self.centre[which], minlength=len(self.centre)
        )
        found = np.zeros(len(self.sources.names))
        np.add.at(found, self.sources.family, on_path * self.common)
        np.add.at(found, self.sources.launch, on_path * self.own)
        found[STEP], found[HOST] = on_path @ self.step, path.host_us * self.host
        length = float(np.linalg.norm(found))
        return found / length if length > 0 else np.eye(1, len(found), STEP)[0]


def step_interval(
    errors: StepErrors, timeline: Timeline, which: Ints, draws: int, seed: int, form: Form = "full"
) -> tuple[float, float]:
    """p10 and p90 of the step time, µs.

    Most of the variance comes from one combination of errors, `StepErrors.direction`. All other errors are drawn; the
    step is simulated for `MAIN_ERRORS` with each draw of them, and interpolated in between. So only the rest of the
    variance is random: 1,024 simulations give a steadier interval than 4,096 draws of all errors
    (docs/kernels.md#how-sure-is-a-step). Where this rest is large, more errors are drawn.

    Args:
        errors: of the times of distinct calls and of the host.
        timeline: the simulated step with its predicted times.
        which: row of `errors` for each device call.
        draws: least number of simulations.
        seed: of the draws.
        form: form of the critical path.
    """
    count = max(draws // len(MAIN_ERRORS), 1)
    log_times = _log_times(errors, timeline, which, count, seed, form)
    if (wanted := _enough_draws(log_times, max(len(timeline.program), len(errors.centre)))) > count:
        log_times = _log_times(errors, timeline, which, wanted, seed, form)
    low, high = np.percentile(_interpolated(log_times), [10, 90])
    return float(np.exp(low)), float(np.exp(high))


def _log_times(
    errors: StepErrors, timeline: Timeline, which: Ints, draws: int, seed: int, form: Form
) -> Floats:
    """Log of the step time at `MAIN_ERRORS` for draws of all other errors, shape (draws, 4)."""
    direction = errors.direction(timeline, which)
    rest = keyed_normals(errors.sources.names, draws, seed)
    off = MAIN_ERRORS - (direction @ rest)[:, None]  # from the main error that was drawn
    step, host = (rest[row][:, None] + direction[row] * off for row in (STEP, HOST))
    slope = errors.log_errors(direction[:, None])[:, 0]
    log_times = np.multiply.outer(slope, off)
    log_times += np.multiply.outer(errors.skew, np.abs(step))
    log_times += (errors.log_errors(rest) - (errors.own**2 / 2)[:, None])[:, :, None]
    times = np.exp(log_times, out=log_times).reshape(len(log_times), -1) * errors.centre[:, None]
    if errors.least.any():
        np.maximum(times, errors.least[:, None], out=times)
    steps = step_times(timeline.program, times, which, np.exp(errors.host * host).ravel(), form)
    return np.asarray(np.log(np.maximum(steps, 1e-9)).reshape(-1, len(MAIN_ERRORS)))


def _enough_draws(log_times: Floats, rows: int) -> int:
    """Draws that make p10 and p90 `STEADY`, from the scatter of some draws beside these two; doubled so often.

    Args:
        log_times: as from `_log_times`.
        rows: simulated times per draw and main error.
    """
    part = (NORMAL_P90 - MAIN_ERRORS[2]) / (MAIN_ERRORS[3] - MAIN_ERRORS[2])
    sides = log_times[:, [1, 2]] * (1 - part) + log_times[:, [0, 3]] * part
    draws = len(log_times)
    wanted = (float(sides.std(axis=0).max()) / STEADY) ** 2
    most = min(MOST_DRAWS * draws, MOST_VALUES // (max(rows, 1) * len(MAIN_ERRORS)))
    while draws < wanted and 2 * draws <= most:
        draws *= 2
    return draws


def host_sigma(evidence: Mapping[str, float], host_log_sd: float = 0.0) -> float:
    """Width of the error of host times, from the shares of host time by evidence.

    A host that is only inferred (`Host.log_sd`) adds what is not known of it to the error of shared overheads.
    """
    if host_log_sd > 0:
        return math.hypot(HOST_SIGMA["shared"], host_log_sd)
    return sum(
        share * HOST_SIGMA.get(kind, max(HOST_SIGMA.values())) for kind, share in evidence.items()
    )


def paired_draws(
    errors: StepErrors, program: Program, which: Ints, draws: int, seed: int, form: Form = "full"
) -> Floats:
    """Step times in µs of draws of all errors, shape (draws,).

    A source has the same values in the draws of every step, so that the draws of two steps are pairs. An error that both
    steps share does not widen the difference between them.

    Args:
        errors: of the times of distinct calls and of the host.
        program: the step.
        which: row of `errors` for each device call.
        draws: number of draws.
        seed: of the draws.
        form: form of the critical path.
    """
    normals = keyed_normals(errors.sources.names, draws, seed)
    return step_times(
        program, errors.times(normals), which, host_factors(errors, program, draws, seed), form
    )


def host_factors(errors: StepErrors, program: Program, draws: int, seed: int) -> Floats:
    """Draws of the factor on a step's host times, shape (draws,).

    How fast the host is, all steps share. How well overheads carry over to a step is an error of each operator:
    `HOST_SIGMA["shared"]`, the error between workloads of one host. An operator that one of two steps lacks is not known
    from the other.
    """
    items = program.items.name[program.item]
    names, item = np.unique(items.astype(str), return_inverse=True)
    rows_us = program.lead_us + program.gap_us + program.api_us + program.tail_us
    weights: Floats = np.bincount(item, rows_us, len(names)).astype(float)
    host, *operators = keyed_normals(
        [HOST_SOURCE, *(f"host {name}" for name in names)], draws, seed
    )
    weights /= max(float(np.linalg.norm(weights)), 1e-9)
    own = min(HOST_SIGMA["shared"], errors.host) if weights.any() else 0.0
    factors: Floats = np.exp(
        math.sqrt(errors.host**2 - own**2) * host + own * (weights @ np.array(operators))
    )
    return factors


def _interpolated(log_times: Floats) -> Floats:
    """Log times at quantiles of the main error, from those at `MAIN_ERRORS`, shape (draws, 4); linear beyond the ends."""
    left, part = _places(len(log_times))
    rows = np.arange(len(log_times))[:, None]
    return np.asarray(log_times[rows, left] * (1 - part) + log_times[rows, left + 1] * part)


@lru_cache(maxsize=DRAW_COUNTS)
def _places(draws: int) -> tuple[Ints, Floats]:
    """Where the quantiles of the main error lie among `MAIN_ERRORS`: the value to the left, and the way to the next.

    Each draw has other quantiles, which lie evenly between those of the other draws.
    """
    shift = (np.arange(draws) + 0.5) * ((5**0.5 - 1) / 2) % 1.0
    inverse = NormalDist().inv_cdf
    count = max(QUANTILES // draws, LEAST_QUANTILES)
    chances = (np.arange(count) + np.clip(shift, 1e-3, 1 - 1e-3)[:, None]) / count
    values = np.array([inverse(chance) for chance in chances.ravel()]).reshape(chances.shape)
    left = np.clip(np.searchsorted(MAIN_ERRORS, values) - 1, 0, len(MAIN_ERRORS) - 2)
    return left, (values - MAIN_ERRORS[left]) / np.diff(MAIN_ERRORS)[left]


def launch_keys(calls: pd.DataFrame) -> list[str]:
    """A key for each call from what a kernel model reads: family, op, phase, dtype, sizes and attributes.

    Calls without sizes (operators that the map does not know) are distinguished by their bytes.
    """
    words = [
        _stated(calls, name, "{}={}") for name in ("family", "op", "phase", "dtype", "attributes")
    ]
    sizes = [_stated(calls, name, "{}={:.0f}") for name in DIMS]
    traffic = [_stated(calls, name, "{}={:.0f}") for name in ("bytes_read", "bytes_written")]
    named, sized, moved = (
        [column for column in columns if column] for columns in (words, sizes, traffic)
    )
    keys = []
    for row in range(len(calls)):
        told = [column[row] for column in sized if column[row]] or [
            column[row] for column in moved if column[row]
        ]
        keys.append(";".join([*(column[row] for column in named if column[row]), *told]))
    return keys


def _stated(calls: pd.DataFrame, name: str, form: str) -> list[str]:
    """The values of a column with its name, "" where a value is missing; an empty list if all are, or without the column."""
    if name not in calls:
        return []
    column = calls[name]
    present = column.notna().to_numpy()
    if not present.any():
        return []
    if pd.api.types.is_numeric_dtype(column):
        values = column.to_numpy(np.float64, na_value=np.nan).tolist()
    else:
        values = column.to_numpy(object).tolist()
    return [
        form.format(name, value) if known else ""
        for value, known in zip(values, present.tolist(), strict=True)
    ]


def keyed_normals(keys: Sequence[str], draws: int, seed: int) -> Floats:
    """Standard normal draws, shape (keys, draws); a key's row depends on the seed and the key alone.

    Each row holds the same values, the middles of `draws` equally likely ranges, each in a different order (a
    Latin hypercube). Percentiles of a sum over many keys vary less from seed to seed than with independent draws.
    The array cannot be changed, because the draws of the keys that were asked for last are kept.
    """
    return _keyed_normals(tuple(keys), draws, seed)


@lru_cache(maxsize=32)
def _keyed_normals(keys: tuple[str, ...], draws: int, seed: int) -> Floats:
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


@lru_cache(maxsize=DRAW_COUNTS)
def _normal_quantiles(count: int) -> Floats:
    """Quantiles of the standard normal distribution at the middles of `count` equally likely ranges."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((place + 0.5) / count) for place in range(count)])
