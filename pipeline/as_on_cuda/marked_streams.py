"""Streams and events of a step that write marks into its recording: which stream runs what, and what waits for what.

Marks are operators without tensors, in the order of the host: `steptime_comm::stream` switches the stream of what follows,
`::record` records an event on a stream, `::hold` lets a stream wait for an event. Stream 0 is the computing one.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count
from typing import Any

import torch

_LIBRARY: Any = torch.library.Library("steptime_comm", "FRAGMENT")  # type: ignore[no-untyped-call]
for _schema in ("stream(int id)", "record(int event, int stream)", "hold(int event, int stream)"):
    _LIBRARY.define(f"{_schema} -> ()")
    _LIBRARY.impl(_schema.partition("(")[0], lambda *_: None, "CompositeExplicitAutograd")


class MarkedStream:
    """In place of `torch.cuda.Stream`."""

    _numbers = count()
    now: MarkedStream
    """The current stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(self._numbers)

    def wait_stream(self, stream: MarkedStream) -> None:
        """What is launched here from now on waits for what was launched on another stream."""
        self.wait_event(stream.record_event())

    def wait_event(self, event: MarkedEvent) -> None:
        """What is launched here from now on waits for an event."""
        torch.ops.steptime_comm.hold(event.number, self.number)

    def record_event(self, event: MarkedEvent | None = None) -> MarkedEvent:
        """The event, or a new one, recorded here."""
        return (event or MarkedEvent()).record(self)

    def query(self) -> bool:
        """True: the host never waits for it."""
        return True

    def synchronize(self) -> None:
        """Nothing: no step of a library waits on the host for these streams."""

    def __enter__(self) -> MarkedStream:
        self._before = MarkedStream.now
        self._switch(self)
        return self

    def __exit__(self, *_: Any) -> None:
        self._switch(self._before)

    @staticmethod
    def _switch(stream: MarkedStream) -> None:
        MarkedStream.now = stream
        torch.ops.steptime_comm.stream(stream.number)


class MarkedEvent:
    """In place of `torch.cuda.Event`."""

    _numbers = count()

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(self._numbers)

    def record(self, stream: MarkedStream | None = None) -> MarkedEvent:
        """Record it on a stream, or on the current one."""
        torch.ops.steptime_comm.record(self.number, (stream or MarkedStream.now).number)
        return self

    def wait(self, stream: MarkedStream | None = None) -> None:
        """Let a stream, or the current one, wait for it."""
        (stream or MarkedStream.now).wait_event(self)

    def query(self) -> bool:
        """True: the device has finished."""
        return True

    def synchronize(self) -> None:
        """Nothing, as for streams."""


MarkedStream.now = MarkedStream()


class Handle:
    """What meshes and FSDP2 ask of the module of their device, such as `torch.cuda`."""

    Stream, Event = MarkedStream, MarkedEvent
    is_available = is_initialized = staticmethod(lambda: True)
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 8)  # PyTorch weighs its redistributions of tensors by it
    current_stream = staticmethod(lambda *_: MarkedStream.now)
    stream = staticmethod(lambda stream: nullcontext() if stream is None else stream)
