"""Draws the GPU trace that the golden test reads: six steps on two streams, made up and not measured.

    python -m tests.trace.draw_gpu_steps         # from the repository's root; then refresh the goldens

One step, in the rows of `trace_drawing` (H, K, D: a copy to the device, a kernel, a copy from the device):

    main      [to][linear: K][_embedding_bag: record, wait, K][add_ K][mse_loss: K]            [item: D, wait][step: K K]
    autograd                                                           [AddmmBackward0: K K]
    s7        [H]   [gemm   ]                                 [add][mse]  [gemm  ][gemm   ]      [D]           [sgd][sgd]
    s20                             [lookup        ]

The lookup's stream waits for the event that stream 7 recorded behind the product, and stream 7 waits for the lookup.
Host times vary from step to step by a seeded factor, so that a replay has something to predict.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.collect.profiling import write_gzip
from tests.trace.trace_drawing import (
    AUTOGRAD,
    MAIN,
    annotation,
    api,
    kernel,
    memcpy,
    op,
    trace,
    wait,
)

PATH = Path(__file__).parent / "golden" / "drawn_gpu" / "input" / "kineto.json.gz"

STEPS = 6
MAIN_STREAM, SIDE_STREAM = 7, 20
LATENCY_US = 4.0
"""Time from the end of a launch to the start of its kernel on an idle stream."""

KERNEL_GAP_US = 1.2
"""Time between two kernels that follow each other on a stream."""


@dataclass
class Pen:
    """Draws one call after the other; keeps the host's time and the time at which each stream becomes free, µs."""

    chance: random.Random
    now: float = 0.0
    busy: dict[int, float] = field(default_factory=lambda: {MAIN_STREAM: 0.0, SIDE_STREAM: 0.0})
    correlation: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def host(self, us: float) -> None:
        """Let the host work for about `us`."""
        self.now = round(self.now + us * self.chance.uniform(0.8, 1.25), 3)

    def launch(
        self,
        name: str,
        us: float,
        thread: int = MAIN,
        stream: int = MAIN_STREAM,
        size: int | None = None,
    ) -> None:
        """A call of 6 µs that starts a kernel, or a copy of `size` bytes, of about `us`."""
        self.correlation += 1
        begin = self.now
        self.host(6.0)
        call = "cudaLaunchKernel" if size is None else "cudaMemcpyAsync"
        self.events.append(api(call, begin, self.now, self.correlation, thread))
        start = round(max(self.now + LATENCY_US, self.busy[stream] + KERNEL_GAP_US), 3)
        end = round(start + us * self.chance.uniform(0.98, 1.02), 3)
        self.busy[stream] = end
        if size is None:
            self.events.append(
                kernel(
                    name, start, end, self.correlation, stream, grid=[80, 1, 1], block=[256, 1, 1]
                )
            )
        else:
            self.events.append(memcpy(name, start, end, self.correlation, size, stream))

    def stream_waits(self, waiter: int, awaited: int) -> None:
        """An event on one stream that the other waits for, with CUPTI's note on the wait."""
        self.correlation += 2
        for name, number in (
            ("cudaEventRecord", self.correlation - 1),
            ("cudaStreamWaitEvent", self.correlation),
        ):
            begin = self.now
            self.host(2.0)
            self.events.append(api(name, begin, self.now, number))
        self.events.append(wait(self.correlation, begin, self.correlation - 1, awaited, waiter))
        self.busy[waiter] = max(self.busy[waiter], self.busy[awaited])

    def synchronise(self) -> None:
        """The host waits for stream 7."""
        self.correlation += 1
        begin = self.now
        self.now = round(max(self.now, self.busy[MAIN_STREAM]) + 3.0, 3)
        self.events.append(api("cudaStreamSynchronize", begin, self.now, self.correlation))

    def operator(self, name: str, *parts: Any, thread: int = MAIN, rest: float = 5.0) -> None:
        """An operator around its parts: 8 µs before the first, 4 µs after each, then `rest` until the next operator."""
        begin = self.now
        self.host(8.0)
        for part in parts:
            part()
            self.host(4.0)
        self.events.append(op(name, begin, self.now, thread))
        self.host(rest)


def draw(steps: int = STEPS, seed: int = 0) -> list[dict[str, Any]]:
    """The events of the trace."""
    pen = Pen(random.Random(seed))
    for number in range(steps):
        begin = pen.now
        _step(pen)
        pen.events.append(annotation(f"ProfilerStep#{number}", begin, pen.now))
        pen.host(10.0)
    return pen.events


def _step(pen: Pen) -> None:
    pen.host(5.0)
    pen.operator("aten::to", lambda: pen.launch("Memcpy HtoD (Pinned -> Device)", 25, size=262_144))
    pen.operator("aten::linear", lambda: pen.launch("volta_sgemm_128x64_tn", 60))
    pen.operator(
        "aten::_embedding_bag",
        lambda: pen.stream_waits(SIDE_STREAM, MAIN_STREAM),
        lambda: pen.launch("EmbeddingBag_updateOutputKernel", 90, stream=SIDE_STREAM),
        lambda: pen.stream_waits(MAIN_STREAM, SIDE_STREAM),
    )
    pen.operator("aten::add_", lambda: pen.launch("vectorized_elementwise_kernel", 12))
    pen.operator("aten::mse_loss", lambda: pen.launch("reduce_kernel", 8), rest=30.0)
    pen.operator(
        "autograd::engine::evaluate_function: AddmmBackward0",
        lambda: pen.launch("volta_sgemm_128x64_nn", 70, AUTOGRAD),
        lambda: pen.launch("volta_sgemm_128x64_nt", 70, AUTOGRAD),
        thread=AUTOGRAD,
        rest=30.0,
    )
    pen.operator(
        "aten::item",
        lambda: pen.launch("Memcpy DtoH (Device -> Pageable)", 2, size=4),
        pen.synchronise,
    )
    pen.operator(
        "aten::_foreach_add_",
        *(lambda: pen.launch("multi_tensor_apply_kernel", 15) for _ in range(2)),
    )


if __name__ == "__main__":
    write_gzip(trace(draw(), baseTimeNanoseconds=0), PATH)
    print(f"{PATH.name}: {PATH.stat().st_size} bytes")
