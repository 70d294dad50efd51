"""Running a campaign's units within its time, one failure at a time."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.collect.device import release
from pipeline.collect.output import CampaignFolder
from pipeline.errors import InputError, MeasurementError

if TYPE_CHECKING:
    import torch

WRITE_RESERVE_S = 4.0
"""Seconds kept for the last writes."""
GRACE_S = 25.0
"""A unit that hangs is ended this long after the limit."""
EXIT_DONE, EXIT_BAD_INPUT, EXIT_NO_KERNELS, EXIT_DEVICE_LOST, EXIT_HUNG = 0, 2, 3, 4, 5

Outcome = dict[str, Any]


class DeviceLostError(MeasurementError):
    """The device no longer answers: nothing more can be measured in this process."""


@dataclass
class Campaign:
    """What every part of a campaign needs.

    Args:
        folder: where results go.
        device: what is measured.
        gpu: its name in the tables.
        deadline: `time.monotonic()` at which the run ends.
        only: regular expression that unit names must match.
        tiny: sizes that a CPU can afford, to try the command.
        identity: value of `campaign_id`, before the unit's name.
    """

    folder: CampaignFolder
    device: torch.device
    gpu: str
    deadline: float
    only: str = ""
    tiny: bool = False
    identity: str = ""
    begin: float = field(default_factory=time.monotonic)
    part_deadline: float = float("inf")

    def left(self) -> float:
        """Seconds left to the current part."""
        return min(self.deadline - WRITE_RESERVE_S, self.part_deadline) - time.monotonic()

    def wants(self, unit: str, seconds: float = 0.0) -> bool:
        """Whether a unit matches `--only`, is not done, has not failed for good, and fits the time."""
        status = self.folder.units.get(unit, {}).get("status")
        open_ = status in (None, "started", "partial")
        return open_ and re.search(self.only, unit) is not None and self.left() >= seconds

    def run(self, unit: str, seconds: float, work: Callable[[], Outcome]) -> bool:
        """Run one unit if it is wanted; failures are recorded, not raised.

        Raises:
            DeviceLostError: the device is gone; what was measured is saved.
        """
        if not self.wants(unit, seconds):
            return False
        attempts = int(self.folder.units.get(unit, {}).get("attempts", 0)) + 1
        entry: dict[str, Any] = {"status": "started", "attempts": attempts}
        if attempts > 2:  # it ended the process twice: it would do so again
            self.folder.units[unit] = {"status": "error", "attempts": attempts - 1, "error": "ended the process twice"}
            self.folder.save()
            return False
        self.folder.units[unit] = entry
        self.folder.save()
        start, lost = time.monotonic(), None
        try:
            entry.update({"status": "done", **work()})
        except (InputError, ImportError) as error:
            entry.update(status="skipped", error=str(error)[:300])
        except Exception as error:  # one failing unit must not end the run
            status = "out_of_memory" if "out of memory" in str(error).lower() else "error"
            entry.update(status=status, error=f"{type(error).__name__}: {error}"[:500])
            lost = error if _fatal(error) else None
        try:
            release(self.device)
        except RuntimeError as error:
            lost = lost or error
        entry["seconds"] = round(time.monotonic() - start, 2)
        self.folder.save()
        note = str(entry.get("error") or entry.get("note") or "")
        print(
            f"{time.monotonic() - self.begin:7.1f} s  {unit}: {entry['status']} in {entry['seconds']} s  {note[:140]}",
            flush=True,
        )
        if lost is not None:
            raise DeviceLostError(f"{unit}: {lost}")
        return True


def watchdog(deadline: float) -> threading.Timer:
    """End the process some time after the deadline, so that a unit that hangs costs nothing that is written."""

    def give_up() -> None:
        print("error: a unit ran past the time limit; stopped. Run again to go on", file=sys.stderr, flush=True)
        os._exit(EXIT_HUNG)

    timer = threading.Timer(max(1.0, deadline + GRACE_S - time.monotonic()), give_up)
    timer.daemon = True
    timer.start()
    return timer


def _fatal(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, DeviceLostError) or ("CUDA error" in text and "out of memory" not in text)
