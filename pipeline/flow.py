"""The grid as Snakemake uses it: its points and GPUs, the source of each, and the path of every artifact."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from pipeline.answers.host_overheads import host_name
from pipeline.answers.kernel_models import shipped_models
from pipeline.answers.plan_request import PlanRequest
from pipeline.answers.sources import (
    HAS_MODELS,
    PUBLIC_KERNEL_GPUS,
    Source,
    kernel_source,
    overhead_source,
    shipped_overheads,
)
from pipeline.config import LOCAL_GPU, NAME, Point, expand, from_snakemake, method_label
from pipeline.digest import code_digest
from pipeline.errors import InputError, SteptimeError
from pipeline.hardware.altered_figures import is_altered
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.families import FAMILIES
from pipeline.paths import CAMPAIGN, Artifacts, datasets_dir, measurements_dir, packs_dir
from pipeline.settings import KernelSettings, section
from pipeline.workloads.workload_files import file_digests

PUBLIC_FAMILIES = ("gemm", "bmm", "conv2d_forward", "elementwise", "softmax", "layer_norm")
"""Kernel families in the public latency data."""

BANDWIDTH = "copy"
"""The family whose folder holds the bandwidth curve, which is derived from element-wise samples."""

COMPARE = "compare"
"""The `kernels` choice that fits every variant. A run with this choice reports GPUs without samples to fit."""

GROUPED_FROM = 16
"""Points from which a job predicts many points. Below, each has a job of its own, which takes 3 s of CPU time."""

POINTS_PER_JOB = 125
"""Most points of one job. A job starts in 1 s of CPU time, which a hundred points share; large grids still use many cores."""

SHIPPED_OVERHEADS = (Source.PACK, Source.TRANSFER)
"""Sources of overheads whose observations ship with Steptime."""

NEVER = "(?!)"
"""A wildcard constraint that nothing matches."""


@dataclass(frozen=True)
class Flow:
    """The points of one workflow run, with lookups that rules use as params and inputs."""

    points: tuple[Point, ...]
    artifacts: Artifacts
    experiment: str = ""
    plan: PlanRequest = field(default_factory=PlanRequest)
    started: float = field(default_factory=time.time)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Flow:
        """The flow of Snakemake's `--config` values; a bad value ends the process with one line and exit code 2."""
        try:
            root = _usable(str(config.get("results") or "results"))
            _check_named("STEPTIME_DATASETS", "", "none")
            _check_named("STEPTIME_MEASUREMENTS", "")
            plan = PlanRequest.of(config)
            given = {key: value for key, value in plan.without(config).items() if key != "results"}
            points = tuple(expand(from_snakemake(given)))
            if plan.asked and any(point.local for point in points):
                raise InputError("plan predicts points: name GPUs instead of gpu=local")
            return cls(points, Artifacts(root), str(config.get("experiment") or ""), plan)
        except SteptimeError as error:
            print(f"steptime: {error}", file=sys.stderr)
            sys.exit(error.exit_code)

    @property
    def gpus(self) -> list[str]:
        """GPUs of the grid, in order of first use."""
        return list(dict.fromkeys(point.gpu for point in self.points))

    @cached_property
    def jobs(self) -> list[tuple[Point, ...]]:
        """The points that one job predicts together, workload by workload; none in a small grid, and in a plan.

        GPUs whose models were fitted here, or whose steps were measured, have jobs of their own: other GPUs need not wait
        for them. All others share jobs, and so what their points have in common.
        """
        points = [point for point in self.points if not point.local and not self.plan.asked]
        if len(points) < GROUPED_FROM:
            return []
        workloads: dict[str, list[Point]] = {}
        for point in points:
            workloads.setdefault(self.graph_of_point(wildcards_of(point)), []).append(point)
        return _groups((point for same in workloads.values() for point in same), self._rests_on)

    @cached_property
    def captures(self) -> list[tuple[Point, ...]]:
        """The workloads that one job captures together: batch sizes of one model, a point for each workload."""
        workloads = {(p.model, p.model_variant, p.batch_size): p for job in reversed(self.jobs) for p in reversed(job)}
        return _groups(reversed(workloads.values()), lambda p: (p.model, p.model_variant))

    def _rests_on(self, point: Point) -> str:
        """Fitted models and measured steps that the points of one job share."""
        at = wildcards_of(point)
        return repr((self.models_of_point(at), self.steps_of_point(at)))

    @cached_property
    def shipped_statistics(self) -> list[SimpleNamespace]:
        """Wildcards of the overhead statistics that one job computes from shipped observations; none in a small grid."""
        points = [point for job in self.jobs for point in job]
        files = dict.fromkeys((p.gpu, self.overheads_of_point(wildcards_of(p))) for p in points)
        shipped = [(gpu, path) for gpu, path in files if overhead_source(gpu) in SHIPPED_OVERHEADS]
        return [SimpleNamespace(gpu=gpu, overheads=Path(path).stem) for gpu, path in shipped]

    @property
    def single_statistics(self) -> str:
        """Wildcard constraint: GPUs whose overhead statistics have jobs of their own."""
        together = {re.escape(each.gpu) for each in self.shipped_statistics}
        return f"(?!(?:{'|'.join(sorted(together))})/){NAME}" if together else NAME

    @property
    def single(self) -> str:
        """Wildcard constraint: GPUs whose points have jobs of their own."""
        return re.escape(LOCAL_GPU) if self.jobs else NAME

    @property
    def grid(self) -> str:
        """Folder name of this grid: readable for one point, else the experiment or size with a hash of the points."""
        if len(self.points) == 1:
            p = self.points[0]
            return f"{p.gpu}-{p.model}-{p.variant}-b{p.batch_size}"
        keys = repr([(p.gpu, p.model, p.variant, p.batch_size) for p in self.points])
        return f"{self.experiment or f'{len(self.points)}-points'}-{hashlib.sha256(keys.encode()).hexdigest()[:8]}"

    @cached_property
    def plan_files(self) -> str:
        """Path of a plan's files without suffix: objective, number of points, and a hash of these and of the constraints."""
        keys = repr([(p.gpu, p.model, p.variant, p.batch_size) for p in self.points]) + repr(self.plan.limits)
        digest = hashlib.sha256(keys.encode()).hexdigest()[:8]
        return self.artifacts.plan(f"{self.plan.objective}-{len(self.points)}-points-{digest}")

    def models_of_plan(self, _wildcards: Any) -> list[str]:
        """Input function: the fitted families of all GPUs of a plan."""
        return list(dict.fromkeys(path for at in self._devices for path in self.models_of_point(at)))

    def overheads_of_plan(self, _wildcards: Any) -> list[str]:
        """Input function: the overhead statistics of all hosts of a plan."""
        return list(dict.fromkeys(self.overheads_of_point(at) for at in self._devices))

    @cached_property
    def _devices(self) -> list[SimpleNamespace]:
        """Wildcards of a point for each GPU and method."""
        found = {(p.gpu, p.settings.kernels, p.settings.overheads): p for p in self.points}
        return [wildcards_of(point) for point in found.values()]

    def files_of_plan(self) -> dict[str, str]:
        """Digests of the files that the workloads of a plan name, such as the user's own module."""
        models = {point.settings.model: point for point in self.points}
        return {name: digest for p in models.values() for name, digest in file_digests(p.section("model")).items()}

    def point(self, wildcards: Any) -> Point:
        """The point that a rule's wildcards name.

        Raises:
            KeyError: the path belongs to no point of this grid; Snakemake then reports that no rule makes it.
        """
        key = (wildcards.gpu, wildcards.model, wildcards.variant, int(wildcards.batch))
        return self._by_key[key]

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str, int], Point]:
        return {(p.gpu, p.model, p.variant, p.batch_size): p for p in self.points}

    def workload(self, wildcards: Any) -> Point:
        """A point with the workload that a captured graph's wildcards name; `variant` is that of the model.

        Raises:
            KeyError: the path belongs to no point of this grid; Snakemake then reports that no rule makes it.
        """
        key = (wildcards.model, wildcards.variant, int(wildcards.batch))
        return {(p.model, p.model_variant, p.batch_size): p for p in reversed(self.points)}[key]

    def captured_model(self, wildcards: Any) -> dict[str, Any]:
        """Params function: the `model` section of a captured graph."""
        return self.workload(wildcards).section("model")

    def captured_files(self, wildcards: Any) -> dict[str, str]:
        """Params function: digests of the files that a captured workload names, such as the user's own module."""
        return file_digests(self.captured_model(wildcards))

    def graph_of_point(self, wildcards: Any) -> str:
        """Input function: the graph of a point's workload; on this machine, that of the point's own trace."""
        point = self.point(wildcards)
        if point.local:
            return f"{self.folder(point)}/graph.parquet"
        return self.artifacts.graph(point.model, point.model_variant, point.batch_size, point.edit_variant)

    def edits(self, wildcards: Any) -> dict[str, Any]:
        """Params function: the `edit` section of an edited graph."""
        found = next(p for p in self.points if p.edit_variant == wildcards.edit)
        return found.section("edit")

    def captured_graph(self, point: Point) -> str:
        """The captured graph of a point's workload, before edits of its operators."""
        return self.artifacts.graph(point.model, point.model_variant, point.batch_size)

    def section(self, name: str) -> Any:
        """A params function: one part of the point's configuration as plain values."""
        return lambda wildcards: self.point(wildcards).section(name)

    def files(self, wildcards: Any) -> dict[str, str]:
        """Params function: digests of the files that a point's workload names, such as the user's own module."""
        return file_digests(self.point(wildcards).section("model"))

    def folder(self, point: Point) -> str:
        """Folder of a point's artifacts."""
        return self.artifacts.point(point.gpu, point.model, point.variant, point.batch_size)

    def of_points(self, name: str, gpu: str | None = None) -> list[str]:
        """Paths of one artifact of every point, or of every point of one GPU."""
        return [f"{self.folder(point)}/{name}" for point in self.points if gpu in (None, point.gpu)]

    def gpus_from(self, kind: str, *sources: Source) -> str:
        """Wildcard constraint: GPUs whose kernels (or overheads) come from one of these sources."""
        source = {"kernels": kernel_source, "overheads": overhead_source}[kind]
        names = [re.escape(gpu) for gpu in dict.fromkeys([*self.gpus, *PUBLIC_KERNEL_GPUS]) if source(gpu) in sources]
        return "|".join(names) or NEVER

    def families(self, source: Source) -> tuple[str, ...]:
        """Kernel families that a source may have samples of; they are known before any sample is taken."""
        if source is Source.PUBLIC:
            return PUBLIC_FAMILIES

        return tuple(name for name in FAMILIES if name != "other")

    def samples(self, gpu: str, source: Source) -> list[str]:
        """Sample tables of a GPU, one per family; the tables of families that its workloads do not use are empty."""
        return [f"{self.artifacts.kernels(gpu)}/{family}/samples.parquet" for family in self.families(source)]

    def models(self, gpu: str, variant: str, source: Source) -> list[str]:
        """Model folders of a GPU, one per family."""
        families = dict.fromkeys([*self.families(source), BANDWIDTH])
        return [f"{self.artifacts.kernels(gpu)}/{family}/{variant}" for family in families]

    def models_of_point(self, wildcards: Any) -> list[str]:
        """Input function: the fitted families that predict a point; none where the GPU has no samples."""
        source = kernel_source(wildcards.gpu)
        if source not in HAS_MODELS:
            return []
        return self.models(wildcards.gpu, method_label(self.point(wildcards).settings.kernels), source)

    def pack_of_point(self, wildcards: Any) -> list[str]:
        """Params function: the manifest of the GPU's shipped pack, for families that were not fitted; empty without one.

        It is not an input: the rule that makes packs would then run as a part of each prediction.
        """
        return [str(path) for path in shipped_models(wildcards.gpu)]

    def overheads_of_point(self, wildcards: Any) -> str:
        """Input function: the overhead statistics that a point uses."""
        label = method_label(self.point(wildcards).settings.overheads)
        return self.artifacts.overheads(wildcards.gpu, label)

    def overhead_samples(self, wildcards: Any) -> str:
        """Input function: observations of a GPU's host from traces; the shipped ones if there are no traces here."""
        if overhead_source(wildcards.gpu) in SHIPPED_OVERHEADS:
            return on_this_machine(shipped_overheads(wildcards.gpu))
        return self.artifacts.overhead_samples(wildcards.gpu)

    def steps_of_point(self, wildcards: Any) -> list[str]:
        """Input function: the file with the measured step of a point, which is shown beside the prediction.

        A what-if GPU and an edited step have none: only the real GPU and the real step were measured.
        """
        point = self.point(wildcards)
        if point.local:
            return [f"{self.folder(point)}/trace/step_times.parquet"]
        if kernel_source(point.gpu) is not Source.MEASUREMENTS or is_altered(point.settings.gpu):
            return []
        if point.settings.edit:
            return []
        return [self.campaign(point.gpu)]

    def campaign(self, gpu: str) -> str:
        """The manifest of a GPU's campaign; the GPU may be a wildcard."""
        return on_this_machine(measurements_dir() / gpu / CAMPAIGN)

    def trace_of_point(self, wildcards: Any) -> list[str]:
        """Input function: the profiler trace of a point on this machine, to be drawn below its predicted timeline."""
        point = self.point(wildcards)
        return [f"{self.folder(point)}/trace/kineto.json.gz"] if point.local else []

    def settings(self, wildcards: Any) -> dict[str, Any]:
        """Params function: everything about a point that its prediction depends on, as plain values."""
        return settings_of(self.point(wildcards))

    def kernel_settings(self, wildcards: Any) -> dict[str, Any]:
        """Params function: settings of a kernel-model variant."""
        settings = self._kernels(wildcards.kernels)
        # workers change the duration of a fit, not its result
        return {key: value for key, value in section(settings).items() if key != "workers"}

    def fit_workers(self, wildcards: Any) -> int:
        """Threads function: number of processes of a fit, so that two GPUs are fitted in sequence on few cores."""
        return max(1, self._kernels(wildcards.kernels).workers)

    def overhead_label(self, wildcards: Any) -> str:
        """Params function: label of an overhead statistic, as in its file name."""
        return str(wildcards.overheads).removeprefix("overheads").removeprefix("-") or "shared"

    def overhead_settings(self, wildcards: Any) -> dict[str, Any]:
        """Params function: settings of an overhead statistic."""
        label = self.overhead_label(wildcards)
        found = next((p for p in self.points if method_label(p.settings.overheads) == label), None)
        found = found or expand([f"overheads={label}"])[0]
        # the host's scale is applied when a point is predicted
        return {key: value for key, value in section(found.settings.overheads).items() if key != "host_scale"}

    def gpu_spec(self, wildcards: Any) -> dict[str, Any]:
        """Params function: the values of a GPU's specification file, which the fits of its kernel models use."""
        if wildcards.gpu == LOCAL_GPU:
            return {}

        return {
            key: value for key, value in asdict(load_gpu(wildcards.gpu)).items() if key not in ("aliases", "sources")
        }

    def first_section(self, name: str) -> dict[str, Any]:
        """A section of the configuration that is the same for all points."""
        return self.points[0].section(name)

    def local_workloads(self) -> list[str]:
        """Names of the workloads that run on this machine, in the order of their traces."""
        return [point.workload for point in self.points if point.local]

    def public(self, name: str) -> str:
        """Path of public data. Without public data, a path that does not exist and whose name says what to do."""
        found = datasets_dir()
        return on_this_machine(
            found / name if found else f"public data is not available: set $STEPTIME_DATASETS/{name}"
        )

    @property
    def packs(self) -> str:
        """Folder of the shipped packs."""
        return str(packs_dir())

    def not_fitted(self) -> list[str]:
        """One sentence per GPU whose kernel models should be compared, but that has no samples here to fit them."""
        compared = {point.gpu for point in self.points if point.settings.kernels.name == COMPARE}
        return [
            f"kernels={COMPARE}: no samples of {gpu} are available, so nothing was fitted or compared, and the "
            "shipped models were used; set $STEPTIME_DATASETS (docs/kernels.md)"
            for gpu in self.gpus if gpu in compared and kernel_source(gpu) not in HAS_MODELS
        ]  # fmt: skip

    def _kernels(self, label: str) -> KernelSettings:
        """Settings of the first point with this label; if there is none (a pack is built), the choice's defaults."""
        found = next((point for point in self.points if method_label(point.settings.kernels) == label), None)
        return (found or expand([f"kernels={label}"])[0]).settings.kernels

    @staticmethod
    def code(script: str, drawing: bool = False) -> str:
        """Digest of the library code that a script uses, as a param: a change of that code reruns the rule."""
        return code_digest(script, drawing)


def wildcards_of(point: Point) -> SimpleNamespace:
    """The wildcards of a point's files, for input and params functions."""
    return SimpleNamespace(gpu=point.gpu, model=point.model, variant=point.variant, batch=point.batch_size)


def on_this_machine(path: str | Path) -> str:
    """A file that ships or that the user has: it stays a path of this machine when results are in an object store."""
    from snakemake.io import local

    return local(str(path))  # type: ignore[no-any-return]


def settings_of(point: Point) -> dict[str, Any]:
    """Everything about a point that its prediction depends on, as plain values."""
    parts = {name: point.section(name) for name in ("gpu", "model", "kernels", "overheads", "predict")}
    named = {"name": point.model, "variant": point.variant, "batch_size": point.batch_size}
    named["host"] = host_name(point.gpu, point.settings.overheads)
    return {**parts, **named, "overrides": list(point.overrides), "workload": point.workload}


def _groups(points: Iterable[Point], key: Callable[[Point], object]) -> list[tuple[Point, ...]]:
    """Points with the same key, at most `POINTS_PER_JOB` in a group."""
    found: dict[object, list[Point]] = {}
    for point in points:
        found.setdefault(key(point), []).append(point)
    return [tuple(same[i : i + POINTS_PER_JOB]) for same in found.values() for i in range(0, len(same), POINTS_PER_JOB)]


def _check_named(variable: str, *off: str) -> None:
    """Check the folder in an environment variable: a misspelt one would silently give predictions with less evidence.

    Raises:
        InputError: the variable is neither a folder nor one of the values `off`.
    """
    value = os.environ.get(variable)
    if value is not None and value not in off and not Path(value).is_dir():
        raise InputError(f"${variable}={value}: no such folder; set another or unset the variable")


def _usable(root: str) -> str:
    """The results folder; a folder that cannot be written to is refused.

    Raises:
        InputError: the folder cannot be written to; the message names it, or the part of its path that prevents it.
    """
    place = Path(root).absolute()
    while not place.exists():
        place = place.parent
    try:
        with TemporaryDirectory(
            prefix=".steptime-", dir=place
        ):  # root may write everywhere by its rights, but not in /proc
            return root
    except OSError:
        raise InputError(f"results={root}: {place} is not a writable folder; give another") from None
