"""Host times of a step from overhead statistics, with the evidence of each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.overheads.op_names import calls_signature, switch_signature
from pipeline.overheads.overhead_model import GLOBAL, LookedUp, OverheadModel
from pipeline.simulate.step_program import HOST_EVIDENCE, StepSequence
from pipeline.trace.host_activity import CPU_API

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]


class HostTimes:
    """Host times of a sequence from the statistics. The object records the evidence of each."""

    def __init__(self, sequence: StepSequence, model: OverheadModel, counts: Ints, workload: str | None) -> None:
        self.sequence, self.model, self.counts, self.workload = sequence, model, counts, workload
        self.by_count = np.array([calls_signature(int(n)) for n in counts], object)
        self.found: list[tuple[LookedUp, Ints]] = []

    def gaps(self) -> Floats:
        """T1 (or the loading gap) before each item."""
        s = self.sequence
        names, before = s.items.name, np.maximum(s.previous, 0)
        threads = s.items.thread[before].tolist(), s.items.thread.tolist()
        switch = [switch_signature(*pair) for pair in zip(*threads, strict=True)]
        full = [f"{text}|{name}" for text, name in zip(switch, names[before], strict=True)]
        out = np.zeros(len(names))
        for kind, rows in (
            ("T1", np.flatnonzero((s.previous >= 0) & ~s.loading)),
            ("loading", np.flatnonzero(s.loading)),
        ):
            out[rows] = self._find(kind, rows, rows, [np.array(full, object)[rows], np.array(switch, object)[rows]])
        return out

    def inside(
        self, item: Ints, place: Ints, first: Flags, last: Flags, acts: Flags, gap: Floats, tail: Floats
    ) -> None:
        """Write T2, T3 and T5 into `gap` and `tail`."""
        s = self.sequence
        for kind, mask, out in (("T2", first & acts, gap), ("T3", last & acts, tail), ("T5", ~acts, gap)):
            rows = np.flatnonzero(mask)
            owner = item[rows]
            out[rows] = self._find(kind, rows, owner, [s.signature[owner], self.by_count[owner]])
        rows = np.flatnonzero(~first & acts)
        owner = item[rows]
        placed = np.array([f"{t}@{k}" for t, k in zip(s.signature[owner], place[rows], strict=True)], object)
        gap[rows] = self._find("T5", rows, owner, [placed, self.by_count[owner]])

    def apis(self) -> Floats:
        """T4 of each action; 0 where the CPU is the device."""
        s = self.sequence
        rows = np.flatnonzero(s.api != CPU_API)
        out = np.zeros(len(s.api))
        owner = s.action_item[rows]
        out[rows] = self._find("T4", rows, owner, [s.signature[owner]], s.api[rows])
        return out

    def _find(self, kind: str, rows: Ints, owner: Ints, signatures: list[Texts], apis: Texts | None = None) -> Floats:
        if not len(rows):
            return np.zeros(0)
        found = self.model.find(
            kind, list(self.sequence.items.name[owner]), signatures, None if apis is None else list(apis)
        )
        self.found.append((found, owner))
        return found.value_us

    def evidence(self) -> tuple[dict[str, float], float, Texts]:
        """Share of host time per evidence, share without statistics of its own op, and evidence per item."""
        table = self.model.table
        known = table["evidence"].to_numpy(object) if "evidence" in table else np.full(len(table), None)
        which, holders = pd.factorize(table["workloads"].to_numpy(object))  # few distinct texts, -1 for none
        own = [self.workload is None or self.workload in text.split(",") for text in [*holders, ""]]
        kinds = np.where(np.array(own)[which] & (known != "shared"), 0, 1)
        kinds = np.append(np.where(known == "transferred", 2, kinds), 2)
        n_items = len(self.sequence.items.node)
        per_item, unmatched = np.zeros((n_items, 3)), 0.0
        for found, owner in self.found:
            kind = kinds[found.row]
            kind = np.where((found.level >= GLOBAL) & (kind == 0), 1, kind)
            np.add.at(per_item, (owner, kind), found.value_us)
            unmatched += float(found.value_us[found.level >= GLOBAL].sum())
        total = float(per_item.sum())
        shares = per_item.sum(axis=0) / total if total else np.array([1.0, 0.0, 0.0])
        names = np.array(HOST_EVIDENCE, object)[np.argmax(per_item, axis=1)] if n_items else np.empty(0, object)
        return dict(zip(HOST_EVIDENCE, shares.tolist(), strict=True)), unmatched / total if total else 0.0, names
