"""Inputs of a grid's figures and report."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.answers.engine import engine
from pipeline.answers.gap_models import FILE as ATTENTION
from pipeline.flow import Flow, on_this_machine
from pipeline.kernels.collective_bandwidth import FILE
from pipeline.model_files import HALF, MANIFEST, file_digest, list_packs
from pipeline.paths import packs_dir, transfer_dir
from pipeline.prediction import Prediction
from pipeline.prices import price_file
from pipeline.question.question import Question


def price_table() -> list[str]:
    """The price list in use, if there is one; it is an input of the figures, so that a new price redraws `cost`."""
    path = price_file()
    return [on_this_machine(path)] if path is not None else []


def pack_digests() -> dict[str, str]:
    """Digest of all shipped files: manifests of packs, and the cross-GPU models for GPUs without samples.

    Predictions take it as a param: a pack can replace that of a similar GPU, and cross-GPU models can replace any
    family.
    """
    names = [*list_packs(), *(f"{HALF}/{gpu}" for gpu in list_packs(HALF))]
    files = {name: packs_dir() / name / MANIFEST for name in names}
    files |= {name: packs_dir() / name for name in (ATTENTION, FILE, MANIFEST)}
    files |= {
        f"transfer/{path.stem}": path for path in sorted(transfer_dir().glob("*.safetensors"))
    }
    return {name: file_digest(path)[:16] for name, path in files.items() if path.is_file()}


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
