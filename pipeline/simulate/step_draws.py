"""Step times of many draws of kernel and host times.

`simulate` returns the whole timeline. An interval needs only the end of each draw, so this module runs the same recurrence
in compiled code that keeps one block of draws at a time. The results are equal to the last bit
(`tests/predict/test_step_draws.py`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.simulate.compiled_walk import load_if_it_pays, walk
from pipeline.simulate.critical_path import Form, simulate
from pipeline.simulate.step_program import Program

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BLOCK_VALUES = 4_000_000
"""Rows times draws that one plain simulation holds per array: 32 MB in each of about ten arrays. With smaller blocks a
language model takes longer: the plain walk takes 5 µs per row, whatever the number of draws."""


def step_times(program: Program, times: Floats, which: Ints, host_scale: Floats, form: Form = "full") -> Floats:
    """Step time of each draw in µs, shape (draws,).

    Args:
        program: the step.
        times: drawn times of distinct calls, µs, shape (distinct, draws).
        which: row of `times` for each device call, shape (calls,).
        host_scale: factor on host times, shape (draws,).
        form: form of the critical path, as in `simulate`.
    """
    draws = times.shape[1]
    if form == "full" and program.fills is None and load_if_it_pays(len(program) * draws):
        return walk(program, times, which, host_scale)[0]
    size = max(BLOCK_VALUES // max(len(program), 1), 64)
    blocks = [slice(begin, begin + size) for begin in range(0, draws, size)]
    return np.concatenate(
        [
            simulate(program, times[:, block][which].T, form=form, host_scale=host_scale[block]).step_us
            for block in blocks
        ]
    )
