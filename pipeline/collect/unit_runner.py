"""Run a campaign's units within the time limit; a failure ends only its unit."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline.collect.campaign_folder import CampaignFolder
from pipeline.collect.device import UnsupportedByDeviceError, out_of_memory, release, still_computes
from pipeline.errors import InputError, MeasurementError, TableError, TraceError

if TYPE_CHECKING:
    import torch

    from pipeline.collect.cases import Spec

WRITE_RESERVE_S = 4.0
"""Seconds of the time limit that are reserved for the last writes."""
Outcome = dict[str, Any]


class DeviceLostError(MeasurementError):
    """The device no longer answers: nothing more can be measured in this process."""


@dataclass
class Campaign:
    """Settings and state that every part of a campaign needs.

    Args:
        folder: folder of the results.
        device: the measured device.
        gpu: name of the device in the tables.
        deadline: `time.monotonic()` at which the run ends.
        only: regular expression that unit names must match.
        tiny: whether to use very small sizes, for a trial on a CPU.
        identity: value of `campaign_id` without the unit's name.
        calls: calls of workloads that are already known, by unit (`pipeline.collect.campaign_calls`).
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
    calls: Mapping[str, Sequence[Spec]] = field(default_factory=dict)

    def left(self) -> float:
        """Seconds left for the current part."""
        return min(self.deadline - WRITE_RESERVE_S, self.part_deadline) - time.monotonic()

    def wants(self, unit: str, seconds: float = 0.0) -> bool:
        """Whether a unit matches `--only`, is not done, has not failed permanently, and fits the time."""
        status = self.folder.units.get(unit, {}).get("status")
        open_ = status in (None, "started", "partial")
        return (
            open_
            and re.search(self.only, unit) is not None
            and self.left() >= seconds * self.slowness()
        )

    def slowness(self) -> float:
        """Median ratio of the units' times to their estimates for a data-centre GPU; at least 1."""
        ratios = [
            u["seconds"] / u["estimate"] for u in self.folder.units.values() if u.get("estimate")
        ]
        return max(1.0, statistics.median(ratios)) if len(ratios) > 2 else 1.0

    def run(self, unit: str, seconds: float, work: Callable[[], Outcome]) -> bool:
        """Run one unit if it is wanted; failures are recorded, not raised.

        Raises:
            DeviceLostError: the device is lost; everything measured so far is saved.
        """
        if not self.wants(unit, seconds):
            return False
        attempts = int(self.folder.units.get(unit, {}).get("attempts", 0)) + 1
        entry: dict[str, Any] = {"status": "started", "attempts": attempts}
        if attempts > 2:  # it ended the process twice, so it would probably do so again
            entry = {
                "status": "error",
                "attempts": attempts - 1,
                "error": "ended the process twice",
            }
        self.folder.units[unit] = entry
        self.folder.save()
        if entry["status"] == "error":
            return False
        start = time.monotonic()
        lost = self._run(entry, work)
        entry["seconds"] = round(time.monotonic() - start, 2)
        if seconds and entry["status"] == "done":
            entry["estimate"] = seconds
        self.folder.save()
        # CUDA's errors end in four lines of advice
        note = _first_line(str(entry.get("error") or entry.get("note") or ""))[:140]
        begun = time.monotonic() - self.begin
        print(
            f"{begun:7.1f} s  {unit}: {entry['status']} in {entry['seconds']} s  {note}", flush=True
        )
        if lost:
            raise DeviceLostError(f"{unit}: {_first_line(lost)}")
        return True

    def _run(self, entry: dict[str, Any], work: Callable[[], Outcome]) -> str:
        """Run the work of a unit and record its result; returns the error with which the device was lost, or nothing."""
        lost = ""
        try:
            entry.update({"status": "done", **work()})
        except (TraceError, TableError) as error:  # a fault of the measured data
            entry.update(status="error", error=str(error)[:300])
        except (
            InputError,
            ImportError,
            UnsupportedByDeviceError,
        ) as error:  # of installed packages or device support
            entry.update(status="skipped", error=str(error)[:300])
        except Exception as error:  # one failing unit must not end the run
            status = "out_of_memory" if out_of_memory(error) else "error"
            entry.update(status=status, error=f"{type(error).__name__}: {error}"[:500])
            if isinstance(error, DeviceLostError) or not still_computes(self.device):
                lost = str(error)
        try:
            release(self.device)
        except RuntimeError as error:
            lost = lost or str(error)
        return lost


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
