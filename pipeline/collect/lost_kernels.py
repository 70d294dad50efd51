"""The head of a profiler session, where kernels get lost on some versions of CUDA.

CUPTI from CUDA 12.6 update 2 to 13.0 gives the first kernels of a session times of another clock, one kernel more with
every session of a process; Kineto takes them for events from before the session and drops them without a word
(github.com/pytorch/pytorch/issues/192021; NVIDIA's notes on CUPTI 13.1 name the fault). A call whose kernels are lost
would count as free. So every session begins with kernels that nobody needs, more of them the more sessions there were,
and `pipeline.collect.trace_windows` counts the launches whose kernel is missing all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.collect.device import synchronise

if TYPE_CHECKING:
    import torch

SPARE, SPARE_PER_SESSION, MOST = 32, 2, 2000
"""Kernels that a session may lose: to begin with, per session so far, and at most."""
GROWTH = 4
"""After a session that lost more than its spare kernels there are this many times as many."""


@dataclass
class Head:
    """What the sessions of this process have shown.

    Attributes:
        sessions: sessions so far.
        lost: kernels that were missing behind the spare ones.
        scale: how many times as many spare kernels as at first.
    """

    sessions: int = 0
    lost: int = 0
    scale: int = 1

    @property
    def spare(self) -> int:
        """Kernels to launch before those that count."""
        return min(self.scale * (SPARE + SPARE_PER_SESSION * self.sessions), MOST)

    def spend(self, device: torch.device) -> None:
        """Begin a session, just opened: launch empty kernels, each waited for, so that what is lost is theirs."""
        self.sessions += 1
        if device.type != "cuda":
            return
        import torch

        for _ in range(self.spare):
            torch.cuda._sleep(0)  # type: ignore[no-untyped-call]
            synchronise(device)

    def learn(self, lost: int) -> None:
        """Note the kernels that were missing in a session all the same: the next one spares more."""
        self.lost += lost
        self.scale = min(self.scale * GROWTH, MOST) if lost else self.scale


HEAD = Head()
"""Of this process: CUPTI counts its sessions per process."""
