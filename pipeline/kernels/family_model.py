"""The fitted model of one kernel family on one GPU, saved as `family.json` with weights in portable files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags
from pipeline.errors import PackError, shown
from pipeline.families import FAMILIES
from pipeline.families.chip import BandwidthCurve
from pipeline.families.dims import Dims
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels import features
from pipeline.kernels.estimate import (
    BLEND_TO,
    Estimate,
    Floor,
    KernelModel,
    Quantiles,
    converted,
    joined,
    merge,
)
from pipeline.kernels.features import Scope
from pipeline.kernels.gaussian_process import GaussianProcess
from pipeline.kernels.networks import Network, Trees
from pipeline.kernels.physics import LARGE_SIDES, PHYSICS_SPREAD, Physics
from pipeline.model_files import read_arrays, read_json, reading, write_arrays, write_json
from pipeline.schemas import atomic_path

DESCRIPTION = "family.json"


def find_families(model_dirs: Sequence[str | Path], variant: str = "auto") -> dict[str, Path]:
    """The folder of each family: the first of `model_dirs` that holds `<family>/` or `<family>/<variant>/`."""
    folders: dict[str, Path] = {}
    for directory in map(Path, model_dirs):
        for name in FAMILIES:
            for folder in (directory / name, directory / name / variant):
                if name not in folders and (folder / DESCRIPTION).is_file():
                    folders[name] = folder
    return folders


def read_description(folder: str | Path) -> dict[str, Any]:
    """Read a family's `family.json`.

    Raises:
        PackError: the file is missing, is not JSON, or lacks required keys.
    """
    remedy = "rebuild it with `steptime kernels fit`"
    return read_json(Path(folder) / DESCRIPTION, remedy, ("family", "evidence", "variant"))


def write_physics(
    out_dir: str | Path,
    gpu: GpuSpec,
    memory: BandwidthCurve,
    floor: Floor,
    error: float,
    samples: pd.DataFrame,
) -> None:
    """Write the bandwidth curve that all families without samples use, into `family.json` of family `copy`.

    A fitted model of that family keeps its entries there, and its floor then counts for the others.
    """
    folder = Path(out_dir) / "copy"
    sources = sorted(samples["source"].astype(str).unique()) if "source" in samples.columns else []
    curve = {
        "family": "copy",
        "gpu": gpu.name,
        "variant": "curve",
        "evidence": "fitted",
        "source": sources,
        "physics": {"memory": vars(memory)},
        "floor": vars(floor),
        "fitted_on": "element-wise ops, whose traffic is known",
        "fit_error": round(error, 6),
    }
    fitted: dict[str, Any] = {}
    with suppress(PackError):  # there is none, or a damaged one, which is written anew
        fitted = read_description(folder)
    if fitted.get("variant", "curve") != "curve":
        curve |= {**fitted, **{name: curve[name] for name in ("physics", "fitted_on", "fit_error")}}
    write_json(folder / DESCRIPTION, curve, sealed=True)


ARRAYS_FILE, PREFIX = "networks.safetensors", "member0."
"""File of the arrays of a network or processes, and what their names begin with."""

TREES_FILE = "trees0.txt"
"""File of trees."""

REFIT_ADVICE = "refit the family"

ROWS_IN_BLOCK = 16_384
"""Rows of a table that are predicted together. Features and intervals of so few rows stay in the processor's cache."""

AT_FLOOR_SPREAD = 1.6
"""Factor up and down of the interval of a kernel whose latency is at the floor: its time comes from physics alone."""

WIDENING_PER_OCTAVE = 1.0
"""Relative growth of the log half-widths per octave outside the samples' range, up to the width of physics."""

AT_FLOOR_LOG_RANGE = 0.02
"""Log difference (2 %) from the floor within which a prediction counts as at the floor."""

Member = Network | Trees | GaussianProcess
MEMBERS: dict[type[Member], str] = {Network: "network", Trees: "trees", GaussianProcess: "process"}
"""Name of each kind of member in `family.json`."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a family's `family.json` states of a fit.

    Attributes:
        inputs: `derived` (features and baseline of `features.py`), `raw` (log dims, as in the paper), or `constant`
            (all samples were equal: the floor).
        floor: the relation of latencies to kernel times; `prior_scale` corrects physics for kernels under the floor.
        memory: the bandwidth curve that the baseline uses.
        floor_trust: factor on the learned part of latencies at the floor, 0 to 1.
        extra: knots (log undisturbed latency, microseconds) of the session disturbance, which is added to latencies.
        latency_quantiles, kernel_quantiles: intervals of the latency, and of the undisturbed time.
    """

    family: str
    variant: str
    scope: Scope
    floor: Floor
    memory: BandwidthCurve
    latency_quantiles: Quantiles
    kernel_quantiles: Quantiles
    inputs: str = "derived"
    prior_scale: float = 1.0
    floor_trust: float = 1.0
    extra: tuple[tuple[float, ...], tuple[float, ...]] = ((0.0,), (0.0,))


@dataclass(frozen=True, kw_only=True)
class FittedModel(Fit, KernelModel):
    """The model of one family on one GPU.

    Attributes:
        member: a network, trees or Gaussian processes; None: baseline only.
        description: further entries of `family.json`: metrics, provenance, seed, split.
    """

    gpu: GpuSpec
    member: Member | None = None
    description: dict[str, Any] = field(default_factory=dict)

    @property
    def evidence(self) -> str:
        """Source of the samples: `fitted`, `pack` or `measured`."""
        return str(self.description.get("evidence", "fitted"))

    @property
    def physics(self) -> Physics:
        """Formulas with this model's bandwidth curve."""
        return Physics.of(self.gpu).calibrate(self.memory, self.evidence)

    def covers(self, calls: pd.DataFrame) -> Flags:
        """Rows that the scope of the samples covers, of the kernels that were measured."""
        covered, unlike = self.scope.covers(calls), FAMILIES[self.family].unlike
        return covered if unlike is None else covered & ~unlike(Dims(calls), self.gpu)

    def baseline(self, calls: pd.DataFrame) -> Array:
        """Log latency by physics and floor, shape (rows,); learned members fit the difference from it."""
        kernel = self.prior_scale * self.physics.reference_us(self.family, calls)
        return np.log(self.floor.latency(kernel, Dims(calls).op))

    def prior(self, calls: pd.DataFrame) -> Array:
        """Kernel time by physics for kernels that the floor may hide, shape (rows,).

        The shortest kernels above the floor give a factor on physics (`prior_scale`). It applies in full where kernels
        rise above the floor. Towards the shortest kernels, whose time is that of physics, it falls to one.
        """
        physics = self.physics
        start = physics.start_us(self.family)
        growing = np.maximum(physics.kernel_us(self.family, calls) - start, 0.0)
        floor = self.floor.of(Dims(calls).op)
        visible = np.maximum(BLEND_TO * floor - self.floor.offset_us - start, start)
        share = np.clip(np.log1p(growing / start) / np.log1p(visible / start), 0.0, 1.0)
        return start + self.prior_scale**share * growing

    def features(self, calls: pd.DataFrame) -> Array:
        """Inputs of the members, shape (rows, columns)."""
        if self.inputs == "raw":
            return features.raw_features(self.family, calls, self.scope.ops)
        return features.derived_features(self.family, calls, self.gpu, self.scope.ops)

    def without_drift(self, calls: pd.DataFrame, table_rows: int = 0) -> Array:
        """Log latency without the session's disturbance, for calls within the range of the samples.

        `table_rows` is the number of rows of the table that the calls are a block of, as in `Network.predict`.
        """
        if self.inputs == "constant":
            return np.full(len(calls), np.log(self.floor.default_us))
        start = np.zeros(len(calls)) if self.inputs == "raw" else self.baseline(calls)
        if self.member is None:
            return start
        learned = self.member.predict(self.features(calls), table_rows)
        return start + self.damp(calls, start, learned)

    def damp(self, calls: pd.DataFrame, start: Array, learned: Array) -> Array:
        """Multiply the learned part at the floor by `floor_trust`, because differences there are mostly noise."""
        if self.inputs == "raw" or self.floor_trust >= 1.0 or self.floor.default_us <= 0:
            return learned
        floor = np.log(self.floor.of(Dims(calls).op))
        at_floor = (start <= floor + 1e-9) & (np.abs(learned) < AT_FLOOR_LOG_RANGE)
        return np.where(at_floor, self.floor_trust * learned, learned)

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Estimate calls; physics scales the nearest size within the samples' range to sizes outside it."""
        rows = len(calls)
        starts = range(0, max(rows, 1), ROWS_IN_BLOCK)
        return joined([self._predict(calls.iloc[at : at + ROWS_IN_BLOCK], rows) for at in starts])

    def _predict(self, calls: pd.DataFrame, table_rows: int) -> Estimate:
        """As `predict`, for a block of a table."""
        calls = self.scope.as_sampled(calls)
        clamped, octaves = self.scope.clamp(calls, self.gpu.l2_bytes)
        outside = octaves > 0
        ops = Dims(clamped).op
        log_time = self.without_drift(clamped, table_rows)
        time = np.exp(log_time)
        physics = self.prior(clamped)
        kernel = self.floor.kernel(time, physics, ops)
        hidden = kernel < 0.9 * (time - self.floor.offset_us)
        low, high = (np.exp(q) for q in self.kernel_quantiles.at(log_time))
        kernel_low = np.where(
            hidden, kernel / AT_FLOOR_SPREAD, np.maximum(kernel - time * (1.0 - low), kernel / 3.0)
        )
        kernel_high = np.where(hidden, kernel * AT_FLOOR_SPREAD, kernel + time * (high - 1.0))
        latency = time + np.interp(log_time, *self.extra)
        low, high = (np.exp(q) for q in self.latency_quantiles.at(log_time))
        estimate = Estimate(
            latency, kernel, kernel_low, kernel_high, ~outside, latency * low, latency * high
        )
        if outside.any():
            stated = ["flops", "bytes_read", "bytes_written"]
            by_dims = calls.drop(columns=stated, errors="ignore")
            factor = np.where(outside, self.prior(by_dims) / physics, 1.0)
            if FAMILIES[self.family].added is not None:
                large = self.scope.clamp(clamped.assign(**LARGE_SIDES))[0]
                large_us = np.exp(self.without_drift(large))
                added = self.physics.added_us(self.family, by_dims, clamped, large, large_us)
                factor = np.fmin(factor, 1.0 + added / kernel)
                least_us = self.physics.least_moving_us(self.family, by_dims)
                factor = np.where(outside, np.fmax(factor, least_us / kernel), factor)
            estimate = estimate.scale(factor, self._growth(estimate, octaves))
            error = FAMILIES[self.family].outside_spread * np.minimum(octaves[outside], 1.0)
            estimate = merge(estimate, estimate.rows(outside).widen(np.exp(error)), outside)
        return estimate

    def _growth(self, inside: Estimate, octaves: Array) -> Array:
        """Growth factor of log half-widths outside the samples' range, shape (rows,), limited by physics' width."""
        half = 0.5 * np.log(inside.p90 / inside.p10)
        most = np.log(PHYSICS_SPREAD[FAMILIES[self.family].law]) / np.maximum(half, 1e-9)
        return np.clip(1.0 + WIDENING_PER_OCTAVE * octaves, 1.0, np.maximum(most, 1.0))

    def save(self, folder: str | Path) -> None:
        """Write the family's folder: `family.json`, `networks.safetensors`, `trees0.txt`... Each write is atomic.

        Files of a former model that this model does not have are deleted.

        Raises:
            SteptimeError: a file cannot be written.
        """
        folder, member = Path(folder), self.member
        former = {*folder.glob("trees*.txt"), *folder.glob(ARRAYS_FILE)}
        if isinstance(member, Trees):
            with atomic_path(folder / TREES_FILE) as part:
                part.write_text(member.text(), encoding="utf-8")
            former.discard(folder / TREES_FILE)
        elif member is not None:
            tensors = {PREFIX + name: values for name, values in member.tensors().items()}
            write_arrays(folder / ARRAYS_FILE, tensors)
            former.discard(folder / ARRAYS_FILE)
        fit = Fit(**{entry.name: getattr(self, entry.name) for entry in fields(Fit)})
        values = {
            **self.description,
            **asdict(fit),
            "gpu": self.gpu.name,
            "evidence": self.evidence,
            "feature_version": features.VERSION,
            "members": [MEMBERS[type(member)]] if member else [],
        }
        write_json(folder / DESCRIPTION, values, sealed=True)
        for path in former:
            path.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | Path, gpu: GpuSpec) -> FittedModel:
        """Read a family's folder.

        Raises:
            PackError: a file is missing or damaged, or was made by another version of the features.
        """
        folder = Path(folder)
        values = read_description(folder)
        if values.get("feature_version") != features.VERSION:
            raise PackError(
                f"{folder}: features of version {values.get('feature_version')}; {REFIT_ADVICE}"
            )
        with reading(folder / DESCRIPTION, REFIT_ADVICE):
            kinds, fit = converted(values["members"], list[str]), converted(values, Fit)
        member = _load_member(folder, kinds)
        return cls(gpu=gpu, member=member, description=values, **vars(fit))


def _load_member(folder: Path, kinds: list[str]) -> Member | None:
    if not kinds:
        return None
    kind, *more = kinds
    if unknown := {kind, *more} - set(MEMBERS.values()) or more:
        raise PackError(
            f"{folder / DESCRIPTION}: members of kind {shown(min(unknown))} are not of this"
            f" version; {REFIT_ADVICE}"
        )
    if kind == MEMBERS[Trees]:
        path = folder / TREES_FILE
        with reading(path, REFIT_ADVICE):
            return Trees.from_text(path.read_text(encoding="utf-8"))
    tensors, _ = read_arrays(folder / ARRAYS_FILE, REFIT_ADVICE)
    own = {name.removeprefix(PREFIX): values for name, values in tensors.items()}
    with reading(folder / ARRAYS_FILE, REFIT_ADVICE):
        is_network = kind == MEMBERS[Network]
        return Network.from_tensors(own) if is_network else GaussianProcess.from_tensors(own)
