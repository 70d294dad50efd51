"""The result of a prediction: the step time with its parts, its interval and its evidence."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class Prediction:
    """One predicted training step. Times are microseconds, memory is bytes, shares sum to 1."""

    gpu: str
    model: str
    variant: str
    batch_size: int
    predicted_us: float
    """Step time: from the start until both host and device have finished."""
    active_us: float
    """Time in which at least one kernel runs."""
    host_us: float
    """Time from the start of the step until the host has finished."""
    p10_us: float
    p90_us: float
    memory_bytes: int
    fits: bool
    """Whether `memory_bytes` is within the GPU's memory."""
    evidence: dict[str, float]
    """Share of device time by kind of evidence."""
    host_evidence: dict[str, float]
    """Share of host time by kind of evidence."""
    unmodelled_share: float
    """Share of device time without a model. It includes operators that are not in the operator map (predicted from
    their bytes) and arithmetic in dtypes without a rate (fp64). It also includes calls that no kernel model or formula
    covers."""
    families: dict[str, float] = field(default_factory=dict)
    """Device time by kernel family, largest first."""
    unmodelled: dict[str, float] = field(default_factory=dict)
    """Device time of unmodelled calls by operator, largest first."""
    bound: str = "device"
    """`host` or `device`: the one that the larger part of the critical path waits for."""
    measured_us: float | None = None
    """Step time measured on this device without the profiler, if there is one."""
    overrides: tuple[str, ...] = ()
    models_from: tuple[str, ...] = ()
    """Folders that the kernel models of this GPU were read from, best first; empty where it has no models of its own."""
    warnings: tuple[str, ...] = ()
    """What differs from what was asked, and what the prediction leaves out, one sentence each."""
    calls: pd.DataFrame | None = field(default=None, repr=False, compare=False)
    """Per operator and device call, in the `prediction` schema."""

    @property
    def step_time_us(self) -> float:
        """The step time: the same as `predicted_us`."""
        return self.predicted_us

    @property
    def idle_us(self) -> float:
        """Time of the step in which no kernel runs."""
        return self.predicted_us - self.active_us

    @property
    def samples_per_s(self) -> float:
        """Training throughput in samples per second."""
        return self.batch_size / self.predicted_us * 1e6

    @property
    def named(self) -> str:
        """Difference from the default prediction: the variant, or the overrides if the variant is a hash."""
        if re.fullmatch(r"v[0-9a-f]{10}", self.variant) and self.overrides:
            return " ".join(text.removeprefix("+").removeprefix("model.") for text in self.overrides)
        return "" if self.variant == "default" else self.variant

    @property
    def error(self) -> float | None:
        """Relative error: predicted / measured - 1, or None without a measurement."""
        return None if self.measured_us is None else self.predicted_us / self.measured_us - 1

    def as_dict(self) -> dict[str, Any]:
        """The public keys of a prediction, ready for JSON."""
        keys = {
            "gpu": self.gpu, "model": self.model, "variant": self.variant, "batch_size": self.batch_size,
            "predicted_us": self.predicted_us, "active_us": self.active_us, "idle_us": self.idle_us,
            "host_us": self.host_us, "p10_us": self.p10_us, "p90_us": self.p90_us, "bound": self.bound,
            "samples_per_s": self.samples_per_s, "memory_bytes": self.memory_bytes, "fits": self.fits,
            "evidence": self.evidence, "host_evidence": self.host_evidence,
            "unmodelled_share": self.unmodelled_share, "unmodelled_us": self.unmodelled, "families_us": self.families,
            "models_from": list(self.models_from), "warnings": list(self.warnings),
        }  # fmt: skip
        if self.measured_us is not None:
            keys |= {"measured_us": self.measured_us, "error": self.error}
        return keys

    def summary_row(self) -> pd.DataFrame:
        """One row in the `summary` schema."""
        apart = ("samples_per_s", "families_us", "unmodelled_us", "models_from")
        row = {
            **{k: [v] for k, v in self.as_dict().items() if k not in apart},
            "evidence": [json.dumps(self.evidence)],
            "host_evidence": [json.dumps(self.host_evidence)],
            "families": [json.dumps(self.families)],
            "unmodelled": [json.dumps(self.unmodelled)],
            "overrides": [json.dumps(self.overrides)],
            "warnings": [json.dumps(self.warnings)],
            "measured_us": [self.measured_us],
            "error": [self.error],
        }
        return pd.DataFrame(row)

    @classmethod
    def all_of(cls, summary: pd.DataFrame) -> list[Prediction]:
        """Every row of a `summary` table."""
        return [cls.from_summary({str(key): value for key, value in row.items()}) for row in summary.to_dict("records")]

    @classmethod
    def from_summary(cls, row: dict[str, Any]) -> Prediction:
        """The prediction behind a row of `summary.parquet` (without its calls)."""
        measured = row.get("measured_us")
        return cls(
            gpu=row["gpu"],
            model=row["model"],
            variant=row["variant"],
            batch_size=int(row["batch_size"]),
            predicted_us=row["predicted_us"],
            active_us=row["active_us"],
            host_us=row["host_us"],
            p10_us=row["p10_us"],
            p90_us=row["p90_us"],
            memory_bytes=int(row["memory_bytes"]),
            fits=bool(row["fits"]),
            evidence=json.loads(row["evidence"]),
            host_evidence=json.loads(row["host_evidence"]),
            unmodelled_share=row["unmodelled_share"],
            families=_read(row.get("families")),
            unmodelled=_read(row.get("unmodelled")),
            bound=row.get("bound") or "device",
            measured_us=None if measured is None or pd.isna(measured) else float(measured),
            overrides=tuple(json.loads(row.get("overrides") or "[]")),
            warnings=tuple(json.loads(row.get("warnings") or "[]")),
        )


def _read(text: object) -> dict[str, float]:
    """A column that holds times by name; empty if a file of an earlier version has no such column."""
    found: dict[str, float] = json.loads(text) if isinstance(text, str) else {}
    return found
