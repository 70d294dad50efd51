"""Which kernels of a trace fill the GPU, so that a kernel of another stream must wait for them to drain.

Streams share the multiprocessors: a kernel whose blocks exceed what all of them hold at once leaves no room, and what
another stream launches meanwhile begins when its last blocks drain. Resident blocks per multiprocessor follow from
threads, registers and shared memory (CUDA C++ Programming Guide, "Hardware Multithreading").
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.trace.activity import Activity
from pipeline.trace.columns import MISSING
from pipeline.trace.fields import Category

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_RESIDENT_BLOCKS = 32
"""Resident blocks per multiprocessor that no GPU of the last ten years exceeds."""


def uses_multiprocessors(act: Activity, calls: Ints) -> Flags:
    """Calls that need multiprocessors: kernels, not copies or fills, which have engines of their own."""
    return act.trace.is_category(Category.KERNEL)[act.call_event[calls]]


def fills_device(act: Activity, calls: Ints) -> Flags:
    """Calls whose blocks exceed what the whole GPU holds at once; none where the trace does not describe its GPU."""
    properties = _properties(act)
    columns, events = act.trace.columns, act.call_event[calls]
    if properties is None or not len(calls):
        return np.zeros(len(calls), bool)
    blocks = _product(act.trace.vocabulary["grid"])[columns["grid"][events]]
    threads = np.maximum(_product(act.trace.vocabulary["block"])[columns["block"][events]], 1)
    registers = np.where(columns["registers"][events] == MISSING, 0, columns["registers"][events])
    shared = np.where(columns["shared_memory"][events] == MISSING, 0, columns["shared_memory"][events])
    resident = np.minimum(MAX_RESIDENT_BLOCKS, properties["maxThreadsPerMultiprocessor"] // threads)
    resident = np.minimum(resident, properties["regsPerMultiprocessor"] // np.maximum(registers * threads, 1))
    resident = np.minimum(resident, properties["sharedMemPerMultiprocessor"] // np.maximum(shared, 1))
    full: Flags = (blocks > 0) & (blocks >= np.maximum(resident, 1) * properties["numSms"])
    return full & uses_multiprocessors(act, calls)


def _properties(act: Activity) -> Mapping[str, int] | None:
    keys = ("maxThreadsPerMultiprocessor", "regsPerMultiprocessor", "sharedMemPerMultiprocessor", "numSms")
    listed = act.trace.metadata.get("deviceProperties")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and all(_is_count(entry.get(key)) for key in keys):
            return {key: int(entry[key]) for key in keys}
    return None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**40


def _product(texts: npt.NDArray[np.object_]) -> Ints:
    """Product of each `[x,y,z]`; 0 for text that is none, and for absent text (the last entry)."""
    out = np.zeros(len(texts) + 1, np.int64)
    for i, text in enumerate(texts):
        try:
            sizes = json.loads(text)
            out[i] = math.prod(sizes) if len(sizes) == 3 and all(_is_count(size) for size in sizes) else 0
        except (ValueError, TypeError, OverflowError):
            continue
    return out
