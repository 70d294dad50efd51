"""Training of the utilisation models (needs torch), with a differentiable form of the formula in `utilisation.py`.

Every GPU has the same weight. The loss is the mean absolute log error of the latency. Arithmetic-bound samples do not
show the memory time, so a small reward attributes time to memory. Without it the model underestimates times on GPUs
that have little bandwidth per FLOP (P4 predicted from the other GPUs: bias -35 % instead of -20 %).
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluation.training.recipes import RECIPES, Recipe
from evaluation.training.utilisation_loss import TIMES, Ways, batch_loss
from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.training_loop import minimise, uniform
from pipeline.transfer.utilisation import FEATURE_CLIP, Shape, UtilisationModel
from pipeline.transfer.utilisation_terms import Terms, networks_of, terms, ways_taken

Array = npt.NDArray[np.float64]

MODERN_HOSTS = {"A100-PCIE-40GB", "A100-PCIE-80GB", "T4"}
"""GPUs whose hosts represent an unknown modern host: the newest of the public set. Their floors are nearly equal."""

FLOOR_QUANTILE, FLOOR_SPREAD = 0.002, 1.1
"""Definition of the latency floor: the median of an op's latencies up to `FLOOR_SPREAD` times their `FLOOR_QUANTILE`.

The quantile is used because the smallest latencies are outliers. Calls that only wait for the host take 1 to 4 % longer
(10 % on the P100's host)."""


UNAVAILABLE_LOG_US = 40.0
"""Log of the time in µs of a way in which a call cannot be computed; finite because infinity has NaN gradients."""

NETWORK_DECAY, CORRECTION_WEIGHT = 1e-2, 0.01
"""Weight decay of the networks' layers, and weight of the squared ratio of GPU corrections to `Recipe.prior`."""


def train_utilisation(
    samples: pd.DataFrame, family: str, recipe: Recipe | None = None, seed: int = 0,
    provenance: dict[str, Any] | None = None,
) -> UtilisationModel:  # fmt: skip
    """Fit one family's model to samples of several GPUs.

    Args:
        samples: a samples table; rows of other families are ignored.
        family: a covered family.
        recipe: sizes and schedule; the family's by default.
        seed: first seed; networks use consecutive ones.
        provenance: stored with the model.

    Raises:
        InputError: the table has no sample of the family.
    """
    recipe = recipe or RECIPES[family]
    own = samples[samples["family"] == family]
    if own.empty:
        raise InputError(f"no samples of family {family}: measure some, or use the roofline for this family")
    by_gpu = {str(gpu): part.reset_index(drop=True) for gpu, part in own.groupby("gpu", sort=True)}
    floors = {gpu: op_floors(part) for gpu, part in by_gpu.items()}
    ops = tuple(own["op"].value_counts().index.astype(str))
    terms_of = {gpu: terms(family, part, load_gpu(gpu)) for gpu, part in by_gpu.items()}
    scales = {name: _scale([way.x for t in terms_of.values() for way in t.values() if way.network == name])
              for name in networks_of(family)}  # fmt: skip
    ways = {name: (way.network, way.norm) for name, way in next(iter(terms_of.values())).items()}
    tables = [_columns(family, by_gpu[gpu], terms_of[gpu], floors[gpu], ops, scales) for gpu in by_gpu]
    fitted = [_fit_one(tables, ways, len(ops), recipe, seed + i) for i in range(recipe.networks)]
    parameters = {key: np.stack([network[key] for network, _ in fitted]) for key in fitted[0][0]}
    for name, (mean, scale) in scales.items():
        parameters |= {f"{name}mean": mean.astype(np.float32), f"{name}scale": scale.astype(np.float32)}
    corrections = np.mean([found for _, found in fitted], axis=0).astype(np.float64).tolist()
    facts = {"gpus": list(by_gpu), "samples": len(own), "recipe": asdict(recipe), "seed": seed}
    return UtilisationModel(
        family, ops, recipe.shape, parameters, unknown_host_floors(floors), floors,
        dict(zip(by_gpu, corrections, strict=True)), provenance=facts | (provenance or {}),
    )  # fmt: skip


def op_floors(samples: pd.DataFrame) -> dict[str, float]:
    """Latency floor by op, µs."""

    def floor(latency: pd.Series) -> float:
        return float(latency[latency <= FLOOR_SPREAD * latency.quantile(FLOOR_QUANTILE)].median())

    return {str(op): floor(own["latency_us"]) for op, own in samples.groupby("op")}


def unknown_host_floors(floors: dict[str, dict[str, float]]) -> dict[str, float]:
    """Floors assumed on an unmeasured host: per op, the median over the hosts in `MODERN_HOSTS`, or over all."""
    hosts = {gpu: own for gpu, own in floors.items() if gpu in MODERN_HOSTS} or floors
    return {str(op): float(value) for op, value in pd.DataFrame(hosts).median(axis=1).items()}


def _scale(parts: list[Array]) -> tuple[Array, Array]:
    """Mean and standard deviation of each feature over several tables of features, shape (features,)."""
    x = np.concatenate(parts)
    return x.mean(axis=0), x.std(axis=0) + 1e-6


def _known_way(terms_of: dict[str, Terms], taken: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Index of the way that each row takes, -1 where it is unknown or not available on the GPU; shape (rows,)."""
    times = np.stack([way.arithmetic for way in terms_of.values()])
    known = (taken >= 0) & np.isfinite(times[np.maximum(taken, 0), np.arange(len(taken))])
    return np.where(known, taken, -1)


def _columns(
    family: str, part: pd.DataFrame, terms_of: dict[str, Terms], floors: dict[str, float], ops: tuple[str, ...],
    scales: dict[str, tuple[Array, Array]],
) -> dict[str, Any]:  # fmt: skip
    """One GPU's samples as tensors by name, each of shape (rows, ...)."""
    import torch

    def tensor(values: Any) -> Any:
        return torch.tensor(np.asarray(values), dtype=torch.float32)

    codes = part["op"].astype(str).map({op: i for i, op in enumerate(ops)}).to_numpy(dtype=np.int64)
    columns = {
        "floor": tensor(np.log(part["op"].astype(str).map(floors).astype(float))),
        "target": tensor(np.log(part["latency_us"])),
        "op": torch.tensor(codes),
        "way": torch.tensor(_known_way(terms_of, ways_taken(family, part))),
    }
    for name, found in terms_of.items():
        mean, scale = scales[found.network]
        columns[f"{name} x"] = tensor(np.clip((found.x - mean) / scale, -FEATURE_CLIP, FEATURE_CLIP))
        columns |= {f"{name} {key}": tensor(np.minimum(getattr(found, key), UNAVAILABLE_LOG_US)) for key in TIMES}
    return columns


def _initial_parameters(inputs: int, ops: int, shape: Shape, generator: Any) -> dict[str, Any]:
    """Parameters of one network before training."""
    import torch

    sizes = [inputs, *[shape.width] * shape.depth, shape.heads]
    p: dict[str, Any] = {}
    for layer, (rows, columns) in enumerate(pairwise(sizes)):
        bound = (0.1 if layer == shape.depth else 1.0) / rows**0.5
        p[f"weight{layer}"] = uniform((rows, columns), bound, generator)
        p[f"bias{layer}"] = torch.zeros(columns)
    p[f"bias{shape.depth}"] = torch.tensor([1.0, 1.0, 0.0, 0.0][: shape.heads])
    return p | {"op_bias": torch.zeros(ops, shape.heads), "l2": torch.tensor([0.0, 1.0])}


def _fit_one(
    tables: list[dict[str, Any]], ways: Ways, ops: int, recipe: Recipe, seed: int
) -> tuple[dict[str, Any], Any]:
    """Train the networks of one seed.

    Args:
        tables: each GPU's samples (`_columns`).
        ways: network and norm of each way to compute a call.
        ops: number of ops.
        recipe: sizes and schedule.
        seed: seed of initial weights and batches.

    Returns:
        Parameters by name, and the correction of each GPU, shape (GPUs, 2): compute and memory.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    p: dict[str, Any] = {"launch": torch.zeros(ops)}
    for prefix, way in {prefix: way for way, (prefix, _) in ways.items()}.items():
        start = _initial_parameters(tables[0][f"{way} x"].shape[1], ops, recipe.shape, generator)
        p |= {prefix + key: value for key, value in start.items()}
    latent = torch.zeros(len(tables), 2)
    layers = [key for key in p if "weight" in key or ".bias" in f".{key}"]
    # a batch has the same number of rows of each GPU, so that every GPU has the same weight
    per_gpu = recipe.rows // len(tables)
    pooled = {key: torch.cat([table[key] for table in tables]) for key in tables[0]}
    counts = [len(table["target"]) for table in tables]
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    whose = torch.arange(len(tables)).repeat_interleave(per_gpu)

    def loss() -> Any:
        centred = latent - latent.mean(dim=0, keepdim=True)
        rows = torch.cat([torch.randint(0, count, (per_gpu,), generator=generator) + start
                          for start, count in zip(starts, counts, strict=True)])  # fmt: skip
        batch = {key: value[rows] for key, value in pooled.items()}
        value = batch_loss(p, batch, recipe, ways, centred[whose].T)
        return value + CORRECTION_WEIGHT * (centred**2).mean() / recipe.prior**2

    others = [value for key, value in p.items() if key not in layers]
    minimise(
        loss, [p[key] for key in layers], recipe.steps, recipe.rate,
        weight_decay=NETWORK_DECAY, undecayed=[*others, latent],
    )  # fmt: skip
    corrections = (latent - latent.mean(dim=0, keepdim=True)).detach().numpy()
    return {key: value.detach().numpy().astype(np.float32) for key, value in p.items()}, -corrections
