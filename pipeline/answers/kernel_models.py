"""Chooses the models of a GPU's kernels.

The order, best first:

1. Models fitted on samples of that GPU (`family_model.py`): measured on this machine, by a campaign, or public.
2. Its shipped pack, for families that the first lacks.
3. A GPU with the same chip that has a pack (`same_chip_model.py`), then cross-GPU models (`cross_gpu_model.py`).
4. Products on tensor cores (`tensor_core_gemm.py`, then `tensor_core_transfer.py`), fused attention
   (`attention_constants.py`) and collectives, for calls that the models above do not cover.
5. Physics and the GPU's file (`pipeline/kernels/physics.py`).

A GPU with altered figures is predicted by the models of the unaltered GPU, and each call is scaled (`altered_gpu.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.answers.altered_gpu import AlteredPredictor
from pipeline.answers.kernel_predictor import KernelPredictor, predictor_of
from pipeline.answers.sources import HAS_MODELS, Source, kernel_source
from pipeline.collect.campaign_reader import measured_peaks
from pipeline.errors import InputError
from pipeline.hardware.altered_figures import catalogue_spec, differing_figures, proportional_factor
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.family_model import DESCRIPTION, find_families
from pipeline.packs import MANIFEST, list_packs, pack_models
from pipeline.paths import Artifacts, measurements_dir, packs_dir

CHOOSING_VARIANTS = ("auto", "long", "compare")
"""Variants that choose among the other variants. The shipped packs hold such a choice."""


def shipped_models(gpu: str) -> list[Path]:
    """The manifest of a GPU's pack; empty where none ships."""
    return [packs_dir() / gpu / MANIFEST] if gpu in list_packs() else []


def available_models(gpu: str, variant: str, results: str | Path | None) -> list[Path]:
    """The models that the `predict` rule declares for a GPU: fitted families under `results`, then its pack.

    Families that an earlier run fitted count only while the samples of that GPU exist. Otherwise the rule would not
    declare them.

    Args:
        gpu: name of the GPU.
        variant: label of the kernel settings (`Question.kernels_label`).
        results: the results folder; None takes the shipped pack.
    """
    if results is None or kernel_source(gpu) not in HAS_MODELS:
        return shipped_models(gpu)
    fitted = find_families([Artifacts(str(results)).kernels(gpu)], variant)
    return [*fitted.values(), *shipped_models(gpu)]


def kernel_predictor(gpu: GpuSpec, variant: str, models: Sequence[str | Path] | None = None) -> KernelPredictor:
    """Kernel models of a GPU, from exactly the `models` given; else cross-GPU models and physics.

    Args:
        gpu: the GPU, with the figures of its file or with altered ones.
        variant: label of the kernel settings (`Question.kernels_label`).
        models: folders of fitted families, `<family>/<variant>`, and manifests of packs, best first; None takes the
            shipped pack of this GPU.

    Raises:
        InputError: the variant has to be fitted first; packs hold the one that `auto` chose.
        PackError: the GPU's pack is damaged.
    """
    declared = [Path(path) for path in (shipped_models(gpu.name) if models is None else models)]
    stated = catalogue_spec(gpu.name)
    gpu = _with_measured_peaks(gpu, stated or gpu)
    if stated is not None:
        stated = _with_measured_peaks(stated, stated)
        if differing_figures(gpu, stated):
            return AlteredPredictor.of(gpu, kernel_predictor(stated, variant, declared))
    families: dict[str, Path] = {}
    fitted = [path for path in declared if (path / DESCRIPTION).is_file()]
    for path in fitted:
        families.setdefault(path.parent.name, path)
    for manifest in (path for path in declared if path.name == MANIFEST):
        families = find_families([pack_models(manifest.parent.name)]) | families
    choice = variant.partition("-")[0]
    folders = tuple(dict.fromkeys(str(p.parent.parent if p in fitted else p.parent) for p in declared if p.exists()))
    if fitted or choice in CHOOSING_VARIANTS:
        return replace(predictor_of(gpu, families), folders=folders)
    if choice == "roofline":
        return replace(predictor_of(gpu, families), models={}, folders=folders)
    raise InputError(
        f"kernels={choice}: no such models were fitted for {gpu.name}: run `snakemake --config gpu={gpu.name} "
        f"kernels={choice}` if samples of it are available, or use kernels=auto"
    )


def _with_measured_peaks(gpu: GpuSpec, stated: GpuSpec) -> GpuSpec:
    """`gpu` with measured peaks where it states none, from this project's campaign on the catalogue's `stated`."""
    if kernel_source(gpu.name) is not Source.MEASUREMENTS:
        return gpu
    peaks = {f"measured_{name}": value for name, value in measured_peaks(measurements_dir() / gpu.name).items()}
    missing: dict[str, Any] = {
        name: value * proportional_factor(name, gpu, stated)
        for name, value in peaks.items()
        if hasattr(gpu, name) and getattr(gpu, name) is None
    }
    return replace(gpu, **missing) if missing else gpu
