"""Inputs of a grid's figures and report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pandas as pd

from pipeline.answers.engine import engine
from pipeline.answers.gap_models import FILE as ATTENTION
from pipeline.answers.gap_models import FOLDER, measured_gpus
from pipeline.answers.who_answers import HAS_MODELS, Source, kernel_source, observations_in
from pipeline.flow import Flow, on_this_machine
from pipeline.graph.graph_file import read_graph
from pipeline.kernels.collective_bandwidth import FILE
from pipeline.model_files import MANIFEST, file_digest, list_packs, model_folders
from pipeline.paths import packs_dir, transfer_dir
from pipeline.prediction import Prediction
from pipeline.prices import price_file
from pipeline.question.question import Question
from pipeline.readable import distinct


def fitted_models(flow: Flow) -> list[str]:
    """Model folders that the grid's points use and that this run fits."""
    folders: dict[str, None] = {}
    for point in flow.points:
        source = kernel_source(point.gpu.name)
        if source in HAS_MODELS:
            folders |= dict.fromkeys(flow.models(point.gpu.name, point.kernels_label, source))
    return list(folders)


def shipped_models(flow: Flow) -> list[str]:
    """Model folders of the packs that the grid's points use."""
    gpus = [gpu for gpu in flow.gpus if kernel_source(gpu) is Source.PACK]
    return [str(path) for gpu in gpus for path in model_folders(gpu)]


def host_observations(flow: Flow) -> list[str]:
    """Overhead observations of the grid's hosts, each once."""
    gpus = dict.fromkeys(point.host.observations for point in flow.points)
    return distinct(flow.overhead_samples(SimpleNamespace(gpu=gpu)) for gpu in gpus)


def step_graphs(flow: Flow) -> list[str]:
    """One graph per model of the grid: which operators a step calls hardly depends on the batch size."""
    points = {point.model: point for point in reversed(flow.points)}
    return [
        f"{flow.folder(point)}/graph.parquet"
        if point.local
        else flow.artifacts.graph(point.model, point.model_variant, point.batch_size)
        for point in reversed(points.values())
    ]


def read_operators(paths: Sequence[str]) -> pd.DataFrame:
    """Number of calls of each top-level operator in a step, from graphs: model, op, calls."""
    parts = []
    for path in paths:
        graph = read_graph(path).table
        counts = graph.loc[graph["is_top_level"], "name"].value_counts()
        calls = counts.rename_axis("op").rename("calls").reset_index()
        parts.append(calls.assign(model=Path(path).parts[-4]))
    none = pd.DataFrame(columns=["model", "op", "calls"])
    return pd.concat(parts, ignore_index=True) if parts else none


def price_table() -> list[str]:
    """The price list in use, if there is one; it is an input of the figures, so that a new price redraws `cost`."""
    path = price_file()
    return [on_this_machine(path)] if path is not None else []


def pack_digests() -> dict[str, str]:
    """Digest of all shipped files: manifests of packs, and the cross-GPU models for GPUs without samples.

    Predictions take it as a param: a pack can replace that of a similar GPU, and cross-GPU models can replace any
    family.
    """
    names = [*list_packs(), *(f"{FOLDER}/{gpu}" for gpu in measured_gpus())]
    files = {name: packs_dir() / name / MANIFEST for name in names}
    files |= {name: packs_dir() / name for name in (ATTENTION, FILE, MANIFEST)}
    files |= {
        f"transfer/{path.stem}": path for path in sorted(transfer_dir().glob("*.safetensors"))
    }
    return {name: file_digest(path)[:16] for name, path in files.items() if path.is_file()}


def with_gpus(folders: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """(GPU, folder) pairs of model folders; the GPU's name is the part of the path before `kernels`."""
    paths = [Path(folder) for folder in folders]
    return tuple((path.parts[path.parts.index("kernels") - 1], path) for path in paths)


def with_distinct_names(models: Sequence[tuple[str, Path]]) -> tuple[tuple[str, Path], ...]:
    """`with_gpus` pairs for a figure; a GPU with models of several `kernels` choices has the choice in its name."""
    choices: dict[str, set[str]] = {}
    for gpu, path in models:
        choices.setdefault(gpu, set()).add(_choice(path))
    return tuple(
        (f"{gpu} {_choice(path)}".rstrip() if len(choices[gpu]) > 1 else gpu, path)
        for gpu, path in models
    )


def _choice(folder: Path) -> str:
    """The `kernels` choice of a model folder `kernels/<family>/<choice>`; empty for a folder of a pack."""
    return folder.name if folder.parent.parent.name == "kernels" else ""


def grid_steps(flow: Flow, predictions: Sequence[Prediction]) -> tuple[Prediction, ...]:
    """Steps to look into, with their calls, the slower first: of both GPUs of a grid of two, else of the fastest GPU.

    The first model is taken, at its largest batch size that fits, else the smallest. `gpu=local` has none.

    Args:
        flow: the grid.
        predictions: its points, which say what GPU has most samples per second.
    """
    best = max(
        (p for p in predictions if p.model == flow.points[0].model),
        key=lambda p: (p.fits, p.samples_per_s),
    )
    gpus = flow.gpus if len(flow.gpus) == 2 else [best.gpu]
    by_batch: dict[tuple[str, int], dict[str, Question]] = {}
    for point in flow.points:
        if point.model == flow.points[0].model and point.gpu.name in gpus and not point.local:
            same = by_batch.setdefault((point.model_variant, point.batch_size), {})
            same.setdefault(point.gpu.name, point)
    whole = [list(points.values()) for points in by_batch.values() if len(points) == len(gpus)]
    answering, steps = engine(flow.artifacts.root), tuple[Prediction, ...]()
    for points in sorted(whole, key=lambda points: -points[0].batch_size):
        answers = answering.predict(points, detail=True)
        predicted = sorted(
            (a.prediction for a in answers if a.prediction), key=lambda p: -p.predicted_us
        )
        steps = tuple(predicted) if len(predicted) == len(gpus) else steps
        if steps and all(p.fits for p in steps):
            break
    return steps


def read_observations(paths: Sequence[str]) -> pd.DataFrame:
    """Observations of several hosts as one table; column `gpu` is the GPU in the observed machine."""
    parts = [observations_in(path).assign(gpu=Path(path).parent.name) for path in paths]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
