"""Spare kernels at the start of a profiler session, where some versions of CUDA lose kernels.

CUPTI from CUDA 12.6 update 2 to 13.0 gives the first kernels of a session times of another clock. The number of these
kernels grows by one with every session of a process. Kineto takes them for events from before the session and drops
them without a message (github.com/pytorch/pytorch/issues/192021; NVIDIA's notes on CUPTI 13.1 describe the fault).

A call whose kernels are lost would seem to take no time. Therefore every session starts with spare kernels, and their
number grows with the number of sessions. `pipeline.collect.trace_windows` counts the launches whose kernel is still
missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.collect.device import synchronise

if TYPE_CHECKING:
    import torch

FIRST_SPARE, SPARE_PER_SESSION, MAX_SPARE = 32, 2, 2000
"""Number of spare kernels: in the first session, in addition per session so far, and at most."""
GROWTH = 4
"""Factor on the number of spare kernels after a session that lost more than its spare kernels."""


@dataclass
class ProfilerSessions:
    """State of the profiler sessions of this process.

    Attributes:
        sessions: sessions so far.
        lost: kernels that were missing after the spare ones.
        scale: factor on the number of spare kernels; 1 at first.
    """

    sessions: int = 0
    lost: int = 0
    scale: int = 1

    @property
    def spare(self) -> int:
        """Number of kernels to launch before the measured ones."""
        return min(self.scale * (FIRST_SPARE + SPARE_PER_SESSION * self.sessions), MAX_SPARE)

    def start_session(self, device: torch.device) -> None:
        """Start a new session: launch empty kernels and wait for each, so that only these kernels are lost."""
        self.sessions += 1
        if device.type != "cuda":
            return
        import torch

        for _ in range(self.spare):
            torch.cuda._sleep(0)  # type: ignore[no-untyped-call]
            synchronise(device)

    def record_lost(self, lost: int) -> None:
        """Record the kernels that a session still lost; if there are any, the next session has more spare kernels."""
        self.lost += lost
        self.scale = min(self.scale * GROWTH, MAX_SPARE) if lost else self.scale


SESSIONS = ProfilerSessions()
"""State of this process; CUPTI counts its sessions per process."""
