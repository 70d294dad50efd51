"""The grid as Snakemake uses it: its points and GPUs, the source of each, and the path of every artifact."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from pipeline.answers.who_answers import (
    HAS_MODELS,
    PUBLIC_KERNEL_GPUS,
    Source,
    kernel_source,
    overhead_source,
    shipped_overheads,
)
from pipeline.errors import InputError, SteptimeError
from pipeline.families import FAMILIES, family
from pipeline.hardware.find_gpu import load_gpu
from pipeline.overheads.trace_overheads import PUBLIC_TRACES
from pipeline.paths import CAMPAIGN, Artifacts, campaign_gpus, datasets_dir, measurements_dir
from pipeline.prediction import Prediction
from pipeline.question.compiled_target import as_written
from pipeline.question.compose import from_snakemake
from pipeline.question.question import LOCAL_GPU, Question, expand
from pipeline.question.settings import KernelSettings, plain
from pipeline.readable import distinct
from pipeline.user_cache import code_digest
from pipeline.work import own_terms
from pipeline.workloads.workload_files import file_digests

PUBLIC_FAMILIES = ("gemm", "bmm", "conv2d_forward", "elementwise", "softmax", "layer_norm")
"""Kernel families in the public latency data."""

BANDWIDTH = "copy"
"""The family whose folder holds the bandwidth curve, which is derived from element-wise samples."""

COMPARE = "compare"
"""The `kernels` choice that fits every variant. A run with this choice reports GPUs without samples to fit."""

SHIPPED_OVERHEADS = (Source.PACK, Source.TRANSFER)
"""Sources of overheads whose observations ship with Steptime."""

NEVER = "(?!)"
"""A wildcard constraint that nothing matches."""


@dataclass(frozen=True)
class Flow:
    """The points of one workflow run, with lookups that rules use as params and inputs."""

    points: tuple[Question, ...]
    """Sorted, so that the same points asked in another order make the same files."""
    artifacts: Artifacts
    experiment: str = ""
    started: float = field(default_factory=time.time)
    asked: tuple[Question, ...] = ()
    """The points in the order in which they were asked, for what is printed."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Flow:
        """The flow of Snakemake's `--config` values; a bad value ends the process with one line and exit code 2."""
        try:
            root = _usable(str(config.get("results") or "results"))
            _check_named("STEPTIME_DATASETS", "", "none")
            _check_named("STEPTIME_MEASUREMENTS", "")
            texts = from_snakemake(
                {key: value for key, value in config.items() if key != "results"}
            )
            read, *_ = own_terms(texts)
            if unread := [text for text in texts if text not in read]:
                raise InputError(
                    f"{unread[0]}: a run of the pipeline reads prices.yaml alone (docs/prices.md)"
                )
            points = tuple(expand(texts))
            for name in {name for point in points for name in point.kernels.families}:
                family(name)  # an unknown one is an error here, not in a job
            named = Path(str(config.get("experiment") or "")).stem
            return cls(
                tuple(sorted(points, key=key_of)),
                Artifacts(root),
                re.sub(r"[^A-Za-z0-9_-]+", "-", named),
                asked=points,
            )
        except SteptimeError as error:
            print(f"steptime: {error}", file=sys.stderr)
            sys.exit(error.exit_code)

    @property
    def gpus(self) -> list[str]:
        """GPUs of the grid."""
        return distinct(point.gpu.name for point in self.points)

    @property
    def grid(self) -> str:
        """Folder name of this grid: readable for one point, else the experiment or size with a hash of the points."""
        if len(self.points) == 1:
            p = self.points[0]
            return f"{p.gpu.name}-{p.model}-{p.variant}-b{p.batch_size}"
        digest = hashlib.sha256(repr(list(map(key_of, self.points))).encode()).hexdigest()[:8]
        return f"{self.experiment or f'{len(self.points)}-points'}-{digest}"

    def point(self, wildcards: Any) -> Question:
        """The point that a rule's wildcards name.

        Raises:
            KeyError: the path belongs to no point of this grid; Snakemake then reports that no rule makes it.
        """
        key = (wildcards.gpu, wildcards.model, wildcards.variant, int(wildcards.batch))
        return self._by_key[key]

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str, int], Question]:
        return {key_of(point): point for point in self.points}

    def workload(self, wildcards: Any) -> Question:
        """A point with the workload that a captured graph's wildcards name; `variant` is that of the model.

        Raises:
            KeyError: the path belongs to no point of this grid; Snakemake then reports that no rule makes it.
        """
        key = (wildcards.model, wildcards.variant, int(wildcards.batch))
        return {(p.model, p.model_variant, p.batch_size): p for p in reversed(self.points)}[key]

    def captured_model(self, wildcards: Any) -> dict[str, Any]:
        """Params function: the `model` section of a captured graph, which all GPUs share: compiled steps are those of a GPU."""
        return as_written(self.workload(wildcards).section("model"))

    def captured_files(self, wildcards: Any) -> dict[str, str]:
        """Params function: digests of the files that a captured workload names, such as the user's own module."""
        return file_digests(self.captured_model(wildcards))

    def graph_of_point(self, wildcards: Any) -> str:
        """Input function: the graph of a point's workload; on this machine, that of the point's own trace."""
        point = self.point(wildcards)
        if point.local:
            return f"{self.folder(point)}/graph.parquet"
        return self.artifacts.graph(
            point.model, point.model_variant, point.batch_size, point.edit_variant
        )

    def edits(self, wildcards: Any) -> dict[str, Any]:
        """Params function: the `edit` section of an edited graph."""
        edited = (point for point in self.points if point.edit_variant == wildcards.edit)
        return next(edited).section("edit")

    def section(self, name: str) -> Any:
        """A params function: one part of the point's configuration as plain values."""
        return lambda wildcards: self.point(wildcards).section(name)

    def files(self, wildcards: Any) -> dict[str, str]:
        """Params function: digests of the files that a point's workload names, such as the user's own module."""
        return file_digests(self.point(wildcards).section("model"))

    def folder(self, point: Question) -> str:
        """Folder of a point's artifacts."""
        return self.artifacts.point(point.gpu.name, point.model, point.variant, point.batch_size)

    def of_points(self, name: str, gpu: str | None = None) -> list[str]:
        """Paths of one artifact of every point, or of every point of one GPU."""
        return [
            f"{self.folder(point)}/{name}" for point in self.points if gpu in (None, point.gpu.name)
        ]

    def questions_of(self, predictions: Iterable[Prediction]) -> list[Question]:
        """The points of predictions, in their order."""
        return [self._by_key[p.gpu, p.model, p.variant, p.batch_size] for p in predictions]

    def gpus_from(self, kind: str, *sources: Source) -> str:
        """Wildcard constraint: GPUs whose kernels (or overheads) come from one of these sources."""
        source = {"kernels": kernel_source, "overheads": overhead_source}[kind]
        hosts = [point.host.observations for point in self.points]
        known = dict.fromkeys([*self.gpus, *PUBLIC_KERNEL_GPUS, *campaign_gpus(), *hosts])
        names = [re.escape(gpu) for gpu in known if source(gpu) in sources]
        return "|".join(names) or NEVER

    def families(self, source: Source) -> tuple[str, ...]:
        """Kernel families that a source may have samples of; they are known before any sample is taken."""
        every = tuple(name for name in FAMILIES if name != "other")
        return PUBLIC_FAMILIES if source is Source.PUBLIC else every

    def samples(self, gpu: str, source: Source) -> list[str]:
        """Sample tables of a GPU, one per family; the tables of families that its workloads do not use are empty."""
        return [
            f"{self.artifacts.kernels(gpu)}/{family}/samples.parquet"
            for family in self.families(source)
        ]

    def models(self, gpu: str, variant: str, source: Source) -> list[str]:
        """Model folders of a GPU, one per family."""
        families = dict.fromkeys([*self.families(source), BANDWIDTH])
        return [f"{self.artifacts.kernels(gpu)}/{family}/{variant}" for family in families]

    def models_of_point(self, wildcards: Any) -> list[str]:
        """Input function: the fitted families that predict a point; none where the GPU has no samples."""
        source = kernel_source(wildcards.gpu)
        if source not in HAS_MODELS:
            return []
        return self.models(wildcards.gpu, self.point(wildcards).kernels_label, source)

    def overheads_of_point(self, wildcards: Any) -> str:
        """Input function: the overhead statistics that a point uses."""
        point = self.point(wildcards)
        return self.artifacts.overheads(point.host.observations, point.overheads_label)

    def overhead_samples(self, wildcards: Any) -> str:
        """Input function: observations of a GPU's host from traces; the shipped ones if there are no traces here."""
        if overhead_source(wildcards.gpu) in SHIPPED_OVERHEADS:
            return on_this_machine(shipped_overheads(wildcards.gpu))
        return self.artifacts.overhead_samples(wildcards.gpu)

    def steps_of_point(self, wildcards: Any) -> list[str]:
        """Input function: the file with the measured step of a point, which is shown beside the prediction."""
        point = self.point(wildcards)
        if point.local:
            return [f"{self.folder(point)}/trace/step_times.parquet"]
        return self.campaign(wildcards) if in_campaign(point) else []

    def campaign(self, wildcards: Any) -> list[str]:
        """Input function: the files of a GPU's campaign, its manifest first."""
        folder = measurements_dir() / wildcards.gpu
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        paths = dict.fromkeys([folder / CAMPAIGN, *files])
        return [on_this_machine(path) for path in paths]

    def public_traces(self, wildcards: Any) -> list[str]:
        """Input function: the public traces of a GPU."""
        return [self.public(f"traces/{name}") for name in PUBLIC_TRACES[wildcards.gpu].values()]

    def trace_of_point(self, wildcards: Any) -> list[str]:
        """Input function: the profiler trace of a point on this machine, to be drawn below its predicted timeline."""
        point = self.point(wildcards)
        return [f"{self.folder(point)}/trace/kineto.json.gz"] if point.local else []

    def question(self, wildcards: Any) -> dict[str, Any]:
        """Params function: everything about a point that its prediction depends on, as plain values (`Question.of`).

        The number of processes of a fit and the notes on how the GPU was named are no part of it.
        """
        point = self.point(wildcards)
        kernels = replace(point.kernels, workers=1)
        return replace(point, kernels=kernels, notes=point.gpu.notes).plain()

    def gpu(self, wildcards: Any) -> dict[str, Any]:
        """Params function: the figures of a point's GPU."""
        return dict(self.point(wildcards).plain()["gpu"])

    def kernel_settings(self, wildcards: Any) -> dict[str, Any]:
        """Params function: settings of a kernel-model variant."""
        settings = self._kernels(wildcards.kernels)
        # workers change the duration of a fit, not its result
        return dict(plain(settings, without=("workers",)))

    def fit_workers(self, wildcards: Any) -> int:
        """Threads function: number of processes of a fit, so that two GPUs are fitted in sequence on few cores."""
        return max(1, self._kernels(wildcards.kernels).workers)

    def overhead_settings(self, wildcards: Any) -> dict[str, Any]:
        """Params function: settings of an overhead statistic."""
        label = str(wildcards.overheads).removeprefix("overheads").removeprefix("-") or "shared"
        point = next((point for point in self.points if point.overheads_label == label), None)
        settings = (point or expand([f"overheads={label}"])[0]).overheads
        # the host's scale is applied when a point is predicted
        return dict(plain(settings, without=("host_scale",)))

    def gpu_spec(self, wildcards: Any) -> dict[str, Any]:
        """Params function: the values of a GPU's specification file, which the fits of its kernel models use."""
        if wildcards.gpu == LOCAL_GPU:
            return {}
        return dict(plain(load_gpu(wildcards.gpu), without=("aliases", "sources")))

    def public(self, name: str) -> str:
        """Path of public data. Without public data, a path that does not exist and whose name says what to do."""
        absent = "public data is not available: set $STEPTIME_DATASETS"
        return on_this_machine(f"{datasets_dir() or absent}/{name}")

    def not_fitted(self) -> list[str]:
        """One sentence per GPU whose kernel models should be compared, but that has no samples here to fit them."""
        compared = {point.gpu.name for point in self.points if point.kernels.name == COMPARE}
        return [
            f"kernels={COMPARE}: no samples of {gpu} are available, so nothing was fitted or"
            " compared, and the shipped models were used; set $STEPTIME_DATASETS (docs/kernels.md)"
            for gpu in self.gpus
            if gpu in compared and kernel_source(gpu) not in HAS_MODELS
        ]

    def _kernels(self, label: str) -> KernelSettings:
        """Settings of the first point with this label; if there is none (a pack is built), the choice's defaults."""
        point = next((point for point in self.points if point.kernels_label == label), None)
        return (point or expand([f"kernels={label}"])[0]).kernels

    @staticmethod
    def code(script: str) -> str:
        """Digest of the library code that a script uses, as a param: a change of that code reruns the rule."""
        return code_digest(script)


def key_of(point: Question) -> tuple[str, str, str, int]:
    """What names the folder of a point's artifacts."""
    return point.gpu.name, point.model, point.variant, point.batch_size


def in_campaign(point: Question) -> bool:
    """Whether a campaign may have measured a point: only the real GPU, step and host were."""
    here = point.host.observations == point.gpu.name and not point.host.inferred
    measured = kernel_source(point.gpu.name) is Source.MEASUREMENTS
    return here and measured and not point.altered and not point.edit


def wildcards_of(point: Question) -> SimpleNamespace:
    """The wildcards of a point's files, for input and params functions."""
    return SimpleNamespace(
        gpu=point.gpu.name, model=point.model, variant=point.variant, batch=point.batch_size
    )


def on_this_machine(path: str | Path) -> str:
    """A file that ships or that the user has: it stays a path of this machine when results are in an object store."""
    from snakemake.io import local

    return local(str(path))  # type: ignore[no-any-return]


def _check_named(variable: str, *off: str) -> None:
    """Check the folder in an environment variable: a misspelt one would silently give predictions with less evidence."""
    value = os.environ.get(variable)
    if value is not None and value not in off and not Path(value).is_dir():
        raise InputError(f"${variable}={value}: no such folder; set another or unset the variable")


def _usable(root: str) -> str:
    """The results folder; a folder that cannot be written to is refused."""
    folder = Path(root).absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        # root may write everywhere by its rights, but not in /proc
        with TemporaryDirectory(prefix=".steptime-", dir=folder):
            return root
    except OSError:
        raise InputError(
            f"results={root}: {folder} is not a writable folder; give another"
        ) from None
