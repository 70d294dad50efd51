"""The program of a step, which the critical path runs: flat arrays, one row per action of the host, in host order.

A row is an interval of host time. It ends in a launch or in a wait; for an op without device calls it ends in neither.
Rows of one *item* (top-level op) follow each other. The parts of a row are:

- `lead_us`: the gap before the item (T1).
- `gap_us`: the time in the item before the action (T2, T5, or all of an item without actions).
- `api_us`: the call itself (T4).
- `tail_us`: the time in the item after its last action (T3).

Programs are assembled from captured graphs (`step_sequence`) or from given items and actions, with host times that are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from pipeline.arrays import Array, Flags, Ints, Texts
from pipeline.overheads.overhead_model import (
    DEVICE_CONSTANTS_US,
)

QUEUE_DEPTH = 1024
"""Calls that the launch queue of a GPU holds. The next launch waits until the device begins an older call."""

NO_CALL, BACKLOG = -1, -2
"""Values used instead of the index of an awaited call: -1 for no wait, -2 for work queued before the step."""


class Kind(IntEnum):
    """What ends a row."""

    HOST = 0
    LAUNCH = 1
    SYNC = 2


@dataclass(frozen=True)
class Items:
    """The top-level ops of a step, in host order. Rows belong to them, and a timeline shows their names.

    Attributes:
        node: id of each item in its graph, or event id in its trace.
        name: op name.
        thread: host thread (0 main, 1 autograd).
        phase: forward, loss, backward, optimizer, data, communication.
        evidence: evidence of the host time of each item, one of `HOST_EVIDENCE`.
    """

    node: Ints
    name: Texts
    thread: Ints
    phase: Texts
    evidence: Texts


@dataclass(frozen=True)
class Program:
    """A step, ready to be simulated with any kernel times.

    Attributes:
        items: the top-level ops.
        item: item of each row.
        kind: what ends each row (`Kind`).
        thread: host thread of each row.
        previous: row whose host end each row follows; -1 for the begin of the step.
        lead_us: host gap before the item; 0 except for an item's first row.
        gap_us: host time in the item before the action.
        api_us: host time of the action itself.
        tail_us: host time of the item after its last action; 0 except for an item's last row.
        call: index of the device call that the row launches, -1 for none.
        stream: index into `streams` of the call, or of the awaited stream; -1 awaits all.
        blocking: whether the host waits for the call's end.
        latency_us: from the start of the launch to the earliest start of its call.
        kernel_gap_us: shortest time between the end of the previous call on the stream and the start of this one.
        wait_offsets: row i awaits the calls `wait_calls[wait_offsets[i]:wait_offsets[i + 1]]` (stream events). A wait
            of the host that names calls awaits only these.
        wait_calls: calls awaited.
        streams: stream ids.
        backlog_us: per stream, the time until which it is busy with earlier work.
        loop: whether equal steps follow each other, between which the host does not wait. Otherwise the step is alone.
        call_count: number of device calls, the width of the kernel times.
        sync_return_us: from the end of awaited work to the return of the host's wait.
        queue_depth: launches that may be outstanding; 0 for no limit.
        fills: per call, whether it leaves no room on the device for kernels of other streams; None for none.
        collectives: index into `streams` of the first stream of collectives; those after it have collectives of other axes.
            -1 for none. Kernels of other streams take `BESIDE_COLLECTIVES` times as long while one of them is busy.
        further: per row, whether it starts one more call of the previous launch (CUDA graphs). Such a row takes no
            place in the launch queue. None for none.
        competes: per call, whether it needs room on the device (copies do not).
        host_evidence: share of host time per kind of evidence, summing to 1.
        unmatched_host_share: share of host time that rests on statistics over all ops.
    """

    items: Items
    item: Ints
    kind: Ints
    thread: Ints
    previous: Ints
    lead_us: Array
    gap_us: Array
    api_us: Array
    tail_us: Array
    call: Ints
    stream: Ints
    blocking: Flags
    latency_us: Array
    kernel_gap_us: Array
    wait_offsets: Ints
    wait_calls: Ints
    streams: Ints
    backlog_us: Array
    call_count: int
    sync_return_us: float = DEVICE_CONSTANTS_US["sync_return"]
    queue_depth: int = QUEUE_DEPTH
    fills: Flags | None = None
    competes: Flags | None = None
    collectives: int = -1
    loop: bool = False
    further: Flags | None = None
    host_evidence: Mapping[str, float] = field(default_factory=dict)
    unmatched_host_share: float = 0.0

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def host_shares(self) -> dict[str, float]:
        """Share of host time per kind of evidence that has any."""
        return {kind: float(share) for kind, share in self.host_evidence.items() if share > 0}

    @property
    def communicates(self) -> Flags:
        """Whether each device call is a collective, shape (calls,)."""
        out = np.zeros(self.call_count, bool)
        if self.collectives >= 0:
            out[self.call[(self.call >= 0) & (self.stream >= self.collectives)]] = True
        return out
