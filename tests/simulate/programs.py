"""Programs written row by row, for tests that add up times by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.simulate.program import Items, Kind, Program

HOST, LAUNCH, SYNC = int(Kind.HOST), int(Kind.LAUNCH), int(Kind.SYNC)


def row(kind: int = LAUNCH, **given: Any) -> dict[str, Any]:
    """One row of a program: T1 `lead`, T2/T5 `gap`, T4 `api`, T3 `tail`; latency 1, kernel gap 1 unless said."""
    return {
        "kind": kind,
        "lead": 0.0,
        "gap": 0.0,
        "api": 0.0,
        "tail": 0.0,
        "stream": 0,
        "thread": 0,
        "latency": 1.0,
        "kernel_gap": 1.0,
        "blocking": False,
        "waits": (),
        "previous": None,
        "item": None,
        **given,
    }


def drawn_rows(
    rng: np.random.Generator,
    count: int,
    kinds: Sequence[int] = (HOST, LAUNCH, LAUNCH, LAUNCH, SYNC),
    streams: int = 1,
    threads: int = 1,
    blocking: float = 0.0,
) -> list[dict[str, Any]]:
    """Rows of random kinds with times of some us, on random streams and threads; a share of the launches blocks."""
    return [
        row(
            int(rng.choice(kinds)),
            **{name: rng.exponential(3) for name in ("lead", "gap", "api", "tail", "latency")},
            stream=int(rng.integers(0, streams)),
            thread=int(rng.integers(0, threads)),
            blocking=bool(rng.random() < blocking),
        )
        for _ in range(count)
    ]


def program(*rows: dict[str, Any], backlog: tuple[float, ...] = (), **given: Any) -> Program:
    kinds = np.array([r["kind"] for r in rows])
    call = np.where(kinds == LAUNCH, np.cumsum(kinds == LAUNCH) - 1, -1)
    streams = np.arange(max([int(r["stream"]) for r in rows] + [len(backlog) - 1, 0]) + 1)
    items = np.array([i if r["item"] is None else r["item"] for i, r in enumerate(rows)])
    names = np.array([f"aten::op{i}" for i in range(items.max() + 1)], object)
    threads = np.zeros(len(names), int)
    threads[items] = [r["thread"] for r in rows]

    def column(key: str, dtype: Any = float) -> np.ndarray:
        return np.array([r[key] for r in rows], dtype)

    return Program(
        items=Items(
            np.arange(len(names)),
            names,
            threads,
            np.full(len(names), "forward", object),
            np.full(len(names), "measured", object),
        ),
        item=items,
        kind=kinds,
        thread=column("thread", int),
        previous=np.array(
            [i - 1 if r["previous"] is None else r["previous"] for i, r in enumerate(rows)]
        ),
        lead_us=column("lead"),
        gap_us=column("gap"),
        api_us=column("api"),
        tail_us=column("tail"),
        call=call,
        stream=column("stream", int),
        blocking=column("blocking", bool),
        latency_us=column("latency"),
        kernel_gap_us=column("kernel_gap"),
        wait_offsets=np.concatenate([[0], np.cumsum([len(r["waits"]) for r in rows])]),
        wait_calls=np.array([c for r in rows for c in r["waits"]], int),
        streams=streams,
        backlog_us=np.array([*backlog, *[0.0] * (len(streams) - len(backlog))]),
        call_count=int((call >= 0).sum()),
        **{"sync_return_us": 2.0, "queue_depth": 0, **given},
    )
