"""Which kernels of a trace fill the GPU, so that a kernel of another stream must wait for them to drain.

Streams share the multiprocessors. A kernel fills the GPU if it has more blocks than all multiprocessors hold at once. A
kernel that another stream launches meanwhile then begins when the last blocks of the first kernel run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.hardware.occupancy import limits_of_device, resident_blocks
from pipeline.trace.host_activity import Activity
from pipeline.trace.kineto_fields import MISSING, Category

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def uses_multiprocessors(act: Activity, calls: Ints) -> Flags:
    """Calls that need multiprocessors: kernels, but not copies or fills, which use separate engines."""
    return act.trace.is_category(Category.KERNEL)[act.call_event[calls]]


def fills_device(act: Activity, calls: Ints) -> Flags:
    """Calls with more blocks than the whole GPU holds at once; none if the trace does not describe its GPU."""
    properties = _properties(act)
    columns, events = act.trace.columns, act.call_event[calls]
    if properties is None or not len(calls):
        return np.zeros(len(calls), bool)
    blocks = _product(act.trace.vocabulary["grid"])[columns["grid"][events]]
    threads = np.maximum(_product(act.trace.vocabulary["block"])[columns["block"][events]], 1)
    registers, shared = (_known(columns[name][events]) for name in ("registers", "shared_memory"))
    resident = resident_blocks(limits_of_device(properties), threads, registers, shared)
    full: Flags = (blocks > 0) & (blocks >= resident * properties["numSms"])
    return full & uses_multiprocessors(act, calls)


def _properties(act: Activity) -> Mapping[str, int] | None:
    keys = ("maxThreadsPerMultiprocessor", "regsPerMultiprocessor", "sharedMemPerMultiprocessor", "numSms")
    listed = act.trace.metadata.get("deviceProperties")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and all(_is_count(entry.get(key)) for key in keys):
            capability = [key for key in ("computeMajor", "computeMinor") if type(entry.get(key)) is int]
            return {key: int(entry[key]) for key in (*keys, *capability)}
    return None


def _known(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Values as floats, NaN where the trace states none."""
    return np.where(values == MISSING, np.nan, values.astype(np.float64))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**40


def _product(texts: npt.NDArray[np.object_]) -> Ints:
    """Product of each text `[x,y,z]`; 0 for other text, and for absent text (the last entry)."""
    out = np.zeros(len(texts) + 1, np.int64)
    for i, text in enumerate(texts):
        try:
            sizes = json.loads(text)
            out[i] = math.prod(sizes) if len(sizes) == 3 and all(_is_count(size) for size in sizes) else 0
        except (ValueError, TypeError, OverflowError):
            continue
    return out
