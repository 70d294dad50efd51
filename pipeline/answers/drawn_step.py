"""Draws of a predicted step: its time, and its parts (kernel families, exposed communication and idle time).

A source of error has the same values in the draws of every step with the same seed. So the draws of two steps on one GPU are
pairs: an error that both share does not widen their difference. The errors of two GPUs' kernel models are independent: each GPU
has its own order of the draws of kernel times, and each host one of host times. So two GPUs that wait for one host are pairs.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.answers.step_errors import StepErrors, host_factors
from pipeline.arrays import Array, Ints
from pipeline.simulate.critical_path import BLOCK_VALUES, simulate, step_times
from pipeline.simulate.program import Program
from pipeline.simulate.timeline import Timeline

COMMUNICATION, OVERLAP, IDLE = "exposed communication", "overlap", "idle"
"""Parts of a step beside kernel families. Overlap is what must be added to the families to give the time in which any of
them runs: it is negative where kernels run side by side, and positive where collectives slow them down."""


def parts_of_step(
    families_us: Mapping[str, Array], step_us: Array, active_us: Array, exposed_us: Array | None
) -> dict[str, Array]:
    """Parts that add up to the step: families without collectives, exposed communication, overlap, idle time.

    Args:
        families_us: kernel time by family.
        step_us: step time.
        active_us: time in which any kernel runs.
        exposed_us: time in which collectives alone run; None for one GPU.
    """
    families = {
        name: us for name, us in families_us.items() if name != "collective" or exposed_us is None
    }
    exposed = {} if exposed_us is None else {COMMUNICATION: exposed_us}
    overlap = active_us - sum([*families.values(), *exposed.values()], np.zeros(()))
    return {**families, **exposed, OVERLAP: overlap, IDLE: step_us - active_us}


def parts_of_timeline(timeline: Timeline, families_us: Mapping[str, Array]) -> dict[str, Array]:
    """`parts_of_step` of a simulated step."""
    active, communicates = timeline.active_us, timeline.program.communicates
    exposed = active - timeline.active_of(~communicates) if communicates.any() else None
    return parts_of_step(families_us, timeline.step_us, active, exposed)


def draw_order(name: str, draws: int) -> Ints:
    """The order of the draws of a GPU, or of a host."""
    return np.random.default_rng(zlib.crc32(name.encode())).permutation(draws)


def drawn_times(
    errors: StepErrors,
    launches: Array,
    program: Program,
    cards: tuple[str, str],
    draws: int,
    seed: int,
) -> tuple[Array, Array]:
    """Times of distinct calls in each draw, shape (distinct, draws), and the factor on host times, shape (draws,).

    Args:
        errors: of the times of the calls, and of the host.
        launches: how often each call runs, shape (distinct,).
        program: the step whose host times are drawn.
        cards: names of the GPU and of the host. Steps on one of them share the order of its draws.
        draws: number of draws.
        seed: of their errors.
    """
    times = errors.times(errors.normals(launches, draws, seed))
    host = host_factors(errors.host, program, draws, seed)
    of_gpu, of_host = (draw_order(name, draws) for name in cards)
    return times[:, of_gpu], host[of_host]


@dataclass(frozen=True)
class DrawnStep:
    """A predicted step with the errors of its times.

    Attributes:
        errors: of the times of distinct calls and of the host.
        program: the step.
        which: row of `errors` for each device call, shape (calls,).
        calls: device calls, `calls` schema.
        gpu: name of the GPU.
        draws: number of draws.
        seed: of the draws.
        host: name of the host.
    """

    errors: StepErrors
    program: Program
    which: Ints
    calls: pd.DataFrame
    gpu: str
    draws: int
    seed: int = 0
    host: str = "traced"

    def step_us(self) -> Array:
        """The step time of each draw, µs, shape (draws,)."""
        times, host = self._times()
        return step_times(self.program, times, self.which, host)

    def parts(self) -> dict[str, Array]:
        """The parts of the step in each draw, as of `parts_of_step`, shape (draws,)."""
        times, host = self._times()
        size = max(BLOCK_VALUES // max(len(self.program), 1), 64)
        blocks = [
            self._block(times[:, at : at + size], host[at : at + size])
            for at in range(0, self.draws, size)
        ]
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}

    def _times(self) -> tuple[Array, Array]:
        """Times of distinct calls, shape (distinct, draws), and the factor on host times, shape (draws,)."""
        launches = np.bincount(self.which, minlength=len(self.errors.centre)).astype(float)
        cards = self.gpu, self.host
        return drawn_times(self.errors, launches, self.program, cards, self.draws, self.seed)

    def _block(self, times: Array, host: Array) -> dict[str, Array]:
        timeline = simulate(self.program, times[self.which].T, host_scale=host)
        ran = ~np.isnan(timeline.device_start[:, 0])
        codes, names = pd.factorize(self.calls["family"].to_numpy(object)[ran])
        sums = np.zeros((len(names), times.shape[1]))
        np.add.at(sums, codes, times[self.which[ran]])
        families = {str(name): row for name, row in zip(names, sums, strict=True)}
        return parts_of_timeline(timeline, families)
