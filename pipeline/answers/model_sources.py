"""Where the engine's kernel models and overheads come from: what there is now, or the files that a rule declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.who_answers import (
    available_models,
    kernel_predictor,
    overhead_model,
    overheads_from,
    run_command,
)
from pipeline.errors import InputError, SteptimeError
from pipeline.hardware.clusters import Cluster
from pipeline.hardware.spec import GpuSpec
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.paths import Artifacts
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.schemas import read_table
from pipeline.summary_rows import predictions_of

Value = TypeVar("Value")


class Models(Protocol):
    """Where kernel models and overheads come from."""

    def kernels(self, question: Question) -> KernelPredictor:
        """Kernel models of a question's GPU and method."""

    def overheads(self, question: Question) -> OverheadModel:
        """Overheads of a question's host."""

    def measured(self, question: Question) -> Prediction | None:
        """The prediction of a step that the pipeline measured on this machine; None where it has to be predicted now."""


@dataclass(frozen=True)
class DeclaredModels:
    """Model folders and overhead statistics that a rule declares."""

    folders: Sequence[str | Path]
    statistics: str

    def kernels(self, question: Question) -> KernelPredictor:
        """Kernel models from exactly the declared folders."""
        gpu, label, cluster = device_key(question)
        return kernel_predictor(gpu, label, self.folders, cluster)

    def overheads(self, question: Question) -> OverheadModel:
        """Overheads from the declared statistics."""
        statistics = read_table(self.statistics, "overheads")
        return overheads_from(statistics, question.overheads, question.host, question.step_name)

    def measured(self, question: Question) -> Prediction | None:
        """None: a rule predicts."""
        return None


@dataclass(frozen=True)
class AvailableModels:
    """The best models that there are now; each is read once.

    Args:
        results: results folder of a run. Families fitted there come first, if their samples still exist, then the
            shipped pack, then cross-GPU models and physics. None takes what ships.
    """

    results: str | Path | None = "results"
    _read: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    def kernels(self, question: Question) -> KernelPredictor:
        """Kernel models of a question's GPU and method."""
        gpu, label, cluster = device_key(question)
        return self._once(
            (gpu, label, cluster),
            lambda: kernel_predictor(
                gpu, label, available_models(gpu.name, label, self.results), cluster
            ),
        )

    def overheads(self, question: Question) -> OverheadModel:
        """Overheads of a question's host; GPUs with equal overheads get the same object."""
        host, settings = question.host, question.overheads
        step_name = question.step_name if settings.observations == "own" else ""

        def read() -> OverheadModel:
            model = overhead_model(host, settings, self.results, question.step_name)
            models = (other for other in self._read.values() if isinstance(other, OverheadModel))
            return next((other for other in models if other.equals(model)), model)

        return self._once(("overheads", host, settings, step_name), read)

    def measured(self, question: Question) -> Prediction | None:
        """The prediction that a run with `gpu=local` left under the results.

        Raises:
            InputError: the machine was not measured yet.
        """
        if not question.local:
            return None
        artifacts = Artifacts(str(self.results or "results"))
        folder = artifacts.point(
            question.gpu.name, question.model, question.variant, question.batch_size
        )
        path = Path(folder) / "summary.parquet"
        if not path.is_file():
            point = f"gpu=local model={question.model} batch_size={question.batch_size}".split()
            command = run_command(self.results, *point, *question.overrides)
            raise InputError(f"gpu=local must be measured first: run `{command}`")
        return predictions_of(read_table(path, "summary"), path)[0]

    def _once(self, key: object, read: Callable[[], Value]) -> Value:
        """What was read; a failure is kept too, and raised again."""
        if key not in self._read:
            try:
                self._read[key] = read()
            except SteptimeError as error:
                self._read[key] = error
        value = self._read[key]
        if isinstance(value, SteptimeError):
            raise value
        return value  # type: ignore[return-value]


def device_key(question: Question) -> tuple[GpuSpec, str, Cluster | None]:
    """What decides the kernel models of a question: the GPU, the label of the method, and what joins several GPUs.

    All power limits of a GPU share them: times are slowed afterwards (`step_power.py`).
    """
    cluster = question.ranks.cluster if question.ranks else None
    return question.gpu.unlimited, question.kernels_label, cluster
