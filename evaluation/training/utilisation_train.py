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
from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.network_training import minimise, uniform
from pipeline.transfer.utilisation import FEATURE_CLIP, FLOOR_SHARPNESS, Shape, UtilisationModel
from pipeline.transfer.utilisation_terms import Terms, networks_of, terms, ways_taken

Array = npt.NDArray[np.float64]

Ways = dict[str, tuple[str, float | None]]
"""Type of the ways to compute a family's calls: by name, the prefix of the network and the norm (`Terms`)."""

TIMES = ("arithmetic", "dram", "l2", "steps", "tiles", "per_l2")
"""Fields of `Terms` that training uses in addition to the features."""

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
    samples: pd.DataFrame,
    family: str,
    recipe: Recipe | None = None,
    seed: int = 0,
    provenance: dict[str, Any] | None = None,
) -> UtilisationModel:
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
        raise InputError(
            f"no samples of family {family}: measure some, or use the roofline for this family"
        )
    by_gpu = {str(gpu): part.reset_index(drop=True) for gpu, part in own.groupby("gpu", sort=True)}
    floors = {gpu: op_floors(part) for gpu, part in by_gpu.items()}
    ops = tuple(own["op"].value_counts().index.astype(str))
    terms_of = {gpu: terms(family, part, load_gpu(gpu)) for gpu, part in by_gpu.items()}
    scales = {
        name: _scale(
            [way.x for t in terms_of.values() for way in t.values() if way.network == name]
        )
        for name in networks_of(family)
    }
    ways = {name: (way.network, way.norm) for name, way in next(iter(terms_of.values())).items()}
    tables = [
        _columns(family, by_gpu[gpu], terms_of[gpu], floors[gpu], ops, scales) for gpu in by_gpu
    ]
    fitted = [_fit_one(tables, ways, len(ops), recipe, seed + i) for i in range(recipe.networks)]
    parameters = {key: np.stack([network[key] for network, _ in fitted]) for key in fitted[0][0]}
    for name, (mean, scale) in scales.items():
        parameters |= {
            f"{name}mean": mean.astype(np.float32),
            f"{name}scale": scale.astype(np.float32),
        }
    corrections = np.mean([found for _, found in fitted], axis=0).astype(np.float64).tolist()
    facts = {"gpus": list(by_gpu), "samples": len(own), "recipe": asdict(recipe), "seed": seed}
    return UtilisationModel(
        family,
        ops,
        recipe.shape,
        parameters,
        unknown_host_floors(floors),
        floors,
        dict(zip(by_gpu, corrections, strict=True)),
        provenance=facts | (provenance or {}),
    )


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
    family: str,
    part: pd.DataFrame,
    terms_of: dict[str, Terms],
    floors: dict[str, float],
    ops: tuple[str, ...],
    scales: dict[str, tuple[Array, Array]],
) -> dict[str, Any]:
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
    for name, way in terms_of.items():
        mean, scale = scales[way.network]
        columns[f"{name} x"] = tensor(np.clip((way.x - mean) / scale, -FEATURE_CLIP, FEATURE_CLIP))
        columns |= {
            f"{name} {key}": tensor(np.minimum(getattr(way, key), UNAVAILABLE_LOG_US))
            for key in TIMES
        }
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
    """Train the networks of one seed; returns parameters by name, and each GPU's correction (GPUs, 2): compute and memory."""
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
        rows = torch.cat(
            [
                torch.randint(0, count, (per_gpu,), generator=generator) + start
                for start, count in zip(starts, counts, strict=True)
            ]
        )
        batch = {key: value[rows] for key, value in pooled.items()}
        value = _batch_loss(p, batch, recipe, ways, centred[whose].T)
        return value + CORRECTION_WEIGHT * (centred**2).mean() / recipe.prior**2

    others = [value for key, value in p.items() if key not in layers]
    minimise(
        loss,
        [p[key] for key in layers],
        recipe.steps,
        recipe.rate,
        weight_decay=NETWORK_DECAY,
        undecayed=[*others, latent],
    )
    corrections = (latent - latent.mean(dim=0, keepdim=True)).detach().numpy()
    return {
        key: value.detach().numpy().astype(np.float32) for key, value in p.items()
    }, -corrections


def _batch_loss(
    p: dict[str, Any], batch: dict[str, Any], recipe: Recipe, ways: Ways, latent: Any
) -> Any:
    """Mean absolute log error of a batch's latencies; `UtilisationModel` has the same formula in NumPy."""
    import torch
    from torch.nn.functional import log_softmax, logsigmoid

    shape = recipe.shape
    kernels_and_uses: list[tuple[Any, Any]] = []
    for prefix, norm in dict.fromkeys(ways.values()):
        # ways that share a network are evaluated together
        sharing = [way for way, network in ways.items() if network == (prefix, norm)]
        call_terms = {
            key: torch.cat([batch[f"{way} {key}"] for way in sharing]) for key in (*TIMES, "x")
        }
        op = batch["op"].repeat(len(sharing))
        kernels, uses = _log_kernel(
            p, prefix, call_terms, op, shape, norm, latent.repeat(1, len(sharing))
        )
        kernels_and_uses += zip(kernels.chunk(len(sharing)), uses.chunk(len(sharing)), strict=True)
    start = batch["floor"] + logsigmoid(p["launch"][batch["op"]])

    def error(kernel: Any) -> Any:
        latency = _norm(FLOOR_SHARPNESS, batch["floor"], torch.logaddexp(start, kernel))
        return (latency - batch["target"]).abs()

    if len(kernels_and_uses) == 1:
        kernel, memory_use = kernels_and_uses[0]
        return error(kernel).mean() + recipe.memory_reward * memory_use.mean()
    all_ways = torch.stack([kernel for kernel, _ in kernels_and_uses], dim=-1)
    is_known = (batch["way"] >= 0).float()
    at = batch["way"].clamp(min=0)[:, None]
    loss = error(-torch.logsumexp(-shape.choice * all_ways, dim=-1) / shape.choice).mean()
    # kernel names show the way of a sample: its sharing time must fit, and it must be the shortest of all ways
    loss = loss + recipe.route_time * (error(all_ways.gather(-1, at)[:, 0]) * is_known).mean()
    unlikely = -log_softmax(-shape.choice * all_ways, dim=-1).gather(-1, at)[:, 0]
    return loss + recipe.route_choice * (unlikely * is_known).mean()


def _log_kernel(
    p: dict[str, Any],
    prefix: str,
    call_terms: dict[str, Any],
    op: Any,
    shape: Shape,
    norm: float | None,
    latent: Any,
) -> tuple[Any, Any]:
    """Log kernel time by one network and log memory utilisation, each of shape (rows,)."""
    import torch
    from torch.nn.functional import logsigmoid, silu

    hidden = call_terms["x"]
    for layer in range(shape.depth):
        hidden = silu(hidden @ p[f"{prefix}weight{layer}"] + p[f"{prefix}bias{layer}"])
    z = (
        hidden @ p[f"{prefix}weight{shape.depth}"]
        + p[f"{prefix}bias{shape.depth}"]
        + p[f"{prefix}op_bias"][op]
    )
    centre, steep = p[f"{prefix}l2"]
    use_compute = logsigmoid(z[:, 0]) + float(np.log(shape.compute_bound))
    use_memory = torch.log(
        shape.memory_low + (shape.memory_high - shape.memory_low) * torch.sigmoid(z[:, 1])
    )
    missed = logsigmoid(torch.exp(steep) * (call_terms["per_l2"] - centre))
    reached = torch.logaddexp(missed, torch.full_like(missed, float(np.log(1e-6))))
    memory = _norm(shape.norm, call_terms["dram"] + reached, call_terms["l2"])
    kernel = _norm(
        norm or shape.norm,
        call_terms["arithmetic"] - use_compute - latent[0],
        memory - use_memory - latent[1],
    )
    if shape.tile_reads:
        again = missed + logsigmoid(z[:, 3]) + float(np.log(shape.tile_reads))
        kernel = _norm(shape.norm, kernel, call_terms["tiles"] + again - latent[1])
    if shape.thread_steps:
        kernel = _norm(shape.norm, kernel, call_terms["steps"] + z[:, 2])
    return kernel, use_memory


def _norm(exponent: float, a: Any, b: Any) -> Any:
    """Logarithm of the norm of two times given by their logarithms."""
    import torch

    return torch.logaddexp(exponent * a, exponent * b) / exponent
