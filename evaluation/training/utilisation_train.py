"""Training of the utilisation models (needs torch), with the formula in `utilisation.py`.

Every GPU has the same weight. The loss is the mean absolute log error of the latency. Arithmetic-bound samples do not
show the memory time, so a small reward attributes time to memory. Without it the model underestimates times on GPUs
that have little bandwidth per FLOP (P4 predicted from the other GPUs: bias -35 % instead of -20 %).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluation.training.recipes import RECIPES, Recipe
from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.network_training import minimise, uniform
from pipeline.transfer.utilisation import (
    Shape,
    UtilisationModel,
    log_kernel_us,
    log_latency_us,
    standardised,
)
from pipeline.transfer.utilisation_terms import Terms, algorithms_of_kernels, terms

Array = npt.NDArray[np.float64]

TIMES = ("arithmetic", "dram", "l2", "steps", "tiles", "per_l2")
"""Fields of `Terms` that have a value for each algorithm and row."""

MODERN_HOSTS = {"A100-PCIE-40GB", "A100-PCIE-80GB", "T4"}
"""GPUs whose hosts represent an unknown modern host: the newest of the public set. Their floors are nearly equal."""

FLOOR_QUANTILE, FLOOR_SPREAD = 0.002, 1.1
"""Definition of the latency floor: the median of an op's latencies up to `FLOOR_SPREAD` times their `FLOOR_QUANTILE`.

The quantile is used because the smallest latencies are outliers. Calls that only wait for the host take 1 to 4 % longer
(10 % on the P100's host)."""


UNAVAILABLE_LOG_US = 40.0
"""Log of the time in µs of an algorithm that cannot compute a call; finite because infinity has NaN gradients."""

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
    own = own.sort_values("gpu", kind="stable").reset_index(drop=True)
    by_gpu = {str(gpu): part for gpu, part in own.groupby("gpu", sort=True)}
    floors = {gpu: op_floors(part) for gpu, part in by_gpu.items()}
    ops = tuple(own["op"].value_counts().index.astype(str))
    found = _joined([terms(family, part, load_gpu(gpu)) for gpu, part in by_gpu.items()])
    scales = _scales(found)
    tensors = _Samples.of(family, own, found, floors, ops, scales)
    counts = [len(part) for part in by_gpu.values()]
    fitted = [_fit_one(tensors, counts, len(ops), recipe, seed + i) for i in range(recipe.networks)]
    parameters = {key: np.stack([network[key] for network, _ in fitted]) for key in fitted[0][0]}
    parameters |= {name: values.astype(np.float32) for name, values in scales.items()}
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


def _scales(found: dict[str, Terms]) -> dict[str, Array]:
    """Mean and standard deviation of each feature, by name of the parameter, shape (features,)."""
    scales: dict[str, Array] = {}
    for name, each in found.items():
        x = np.concatenate(each.x)
        scales |= {f"{name}mean": x.mean(axis=0), f"{name}scale": x.std(axis=0) + 1e-6}
    return scales


def op_floors(samples: pd.DataFrame) -> dict[str, float]:
    """Latency floor by op, µs."""

    def floor(latency: pd.Series) -> float:
        return float(latency[latency <= FLOOR_SPREAD * latency.quantile(FLOOR_QUANTILE)].median())

    return {str(op): floor(own["latency_us"]) for op, own in samples.groupby("op")}


def unknown_host_floors(floors: dict[str, dict[str, float]]) -> dict[str, float]:
    """Floors assumed on an unmeasured host: per op, the median over the hosts in `MODERN_HOSTS`, or over all."""
    hosts = {gpu: own for gpu, own in floors.items() if gpu in MODERN_HOSTS} or floors
    return {str(op): float(value) for op, value in pd.DataFrame(hosts).median(axis=1).items()}


def _joined(tables: list[dict[str, Terms]]) -> dict[str, Terms]:
    """The inputs of several GPUs' samples as one, by network."""

    def join(name: str, key: str) -> Array:
        return np.concatenate(
            [getattr(table[name], key) for table in tables],
            axis=1,
        )

    return {
        name: Terms(
            **{key: join(name, key) for key in (*TIMES, "x")},
            norm=first.norm,
        )
        for name, first in tables[0].items()
    }


@dataclass(frozen=True)
class _Samples:
    """Samples as tensors: log floor, log latency, op and known algorithm (-1 if unknown), each (rows,); inputs by network."""

    log_floor: Any
    target: Any
    op: Any
    algorithm: Any
    inputs: dict[str, Terms]

    @classmethod
    def of(
        cls,
        family: str,
        samples: pd.DataFrame,
        found: dict[str, Terms],
        floors: dict[str, dict[str, float]],
        ops: tuple[str, ...],
        scales: dict[str, Array],
    ) -> _Samples:
        """Samples of several GPUs with their inputs, and latency floors by GPU and op."""
        import torch

        def tensor(values: Any) -> Any:
            return torch.tensor(np.asarray(values), dtype=torch.float32)

        def inputs(name: str, each: Terms) -> Terms:
            x = standardised(each.x, scales[f"{name}mean"], scales[f"{name}scale"])
            times = {
                key: tensor(np.minimum(getattr(each, key), UNAVAILABLE_LOG_US)) for key in TIMES
            }
            return replace(each, x=tensor(x), **times)

        op = samples["op"].astype(str)
        floor = [floors[str(gpu)][name] for gpu, name in zip(samples["gpu"], op, strict=True)]
        able = np.isfinite(np.concatenate([each.arithmetic for each in found.values()]))
        shown = algorithms_of_kernels(family, samples)
        known = (shown >= 0) & able[np.maximum(shown, 0), np.arange(len(op))]
        return cls(
            tensor(np.log(floor)),
            tensor(np.log(samples["latency_us"])),
            torch.tensor(pd.Index(ops).get_indexer(pd.Index(op))),
            torch.tensor(np.where(known, shown, -1)),
            {name: inputs(name, each) for name, each in found.items()},
        )

    def rows(self, at: Any) -> _Samples:
        """Some of the samples."""
        inputs = {
            name: replace(
                each, x=each.x[:, at], **{key: getattr(each, key)[:, at] for key in TIMES}
            )
            for name, each in self.inputs.items()
        }
        return _Samples(
            self.log_floor[at], self.target[at], self.op[at], self.algorithm[at], inputs
        )


def _initial_parameters(inputs: int, ops: int, shape: Shape, generator: Any) -> dict[str, Any]:
    """Parameters of one network before training."""
    import torch

    sizes = [
        inputs,
        *[shape.width] * shape.depth,
        shape.heads,
    ]
    p: dict[str, Any] = {}
    for layer, (rows, columns) in enumerate(pairwise(sizes)):
        bound = (0.1 if layer == shape.depth else 1.0) / rows**0.5
        p[f"weight{layer}"] = uniform((rows, columns), bound, generator)
        p[f"bias{layer}"] = torch.zeros(columns)
    p[f"bias{shape.depth}"] = torch.tensor([1.0, 1.0, 0.0, 0.0][: shape.heads])
    return p | {
        "op_bias": torch.zeros(ops, shape.heads),
        "l2": torch.tensor([0.0, 1.0]),
    }


def _fit_one(
    samples: _Samples, counts: list[int], ops: int, recipe: Recipe, seed: int
) -> tuple[dict[str, Any], Any]:
    """Train the networks of one seed; returns parameters by name, and each GPU's correction (GPUs, 2): compute and memory."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    p: dict[str, Any] = {"launch": torch.zeros(ops)}
    for prefix, found in samples.inputs.items():
        start = _initial_parameters(
            found.x.shape[-1],
            ops,
            recipe.shape,
            generator,
        )
        p |= {prefix + key: value for key, value in start.items()}
    latent = torch.zeros(len(counts), 2)
    layers = [key for key in p if "weight" in key or ".bias" in f".{key}"]
    # a batch has the same number of rows of each GPU, so that every GPU has the same weight
    per_gpu = recipe.rows // len(counts)
    starts = np.cumsum([0, *counts[:-1]]).tolist()
    whose = torch.arange(len(counts)).repeat_interleave(per_gpu)

    def loss() -> Any:
        centred = latent - latent.mean(dim=0, keepdim=True)
        drawn = [
            torch.randint(0, count, (per_gpu,), generator=generator) + start
            for start, count in zip(starts, counts, strict=True)
        ]
        value = _loss(
            p,
            samples.rows(torch.cat(drawn)),
            recipe,
            -centred[whose].T,
        )
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
    parameters = {key: value.detach().numpy().astype(np.float32) for key, value in p.items()}
    return parameters, -corrections


def _loss(p: dict[str, Any], samples: _Samples, recipe: Recipe, factors: Any) -> Any:
    """Mean absolute log error of the latencies of a batch, with the rewards of the recipe."""
    import torch

    found = [
        log_kernel_us(
            torch,
            {key.removeprefix(name): value for key, value in p.items() if key.startswith(name)},
            inputs,
            recipe.shape,
            samples.op,
            factors,
        )
        for name, inputs in samples.inputs.items()
    ]
    kernels = torch.cat([kernel for kernel, _ in found])
    memory_use = torch.cat([use for _, use in found])

    def error(kernel: Any) -> Any:
        latency = log_latency_us(
            torch,
            samples.log_floor,
            p["launch"][samples.op],
            kernel,
        )
        return (latency - samples.target).abs()

    log_share = torch.log_softmax(-recipe.shape.choice * kernels, dim=0)
    shortest = -torch.logsumexp(-recipe.shape.choice * kernels, dim=0) / recipe.shape.choice
    loss = error(shortest).mean() + recipe.memory_reward * memory_use.mean()
    # kernel names show the algorithm of a sample: its time must fit, and it must be the shortest of all
    known, at = (
        (samples.algorithm >= 0).float(),
        samples.algorithm.clamp(min=0)[
            None,
            :,
        ],
    )
    of_known = error(kernels.gather(0, at)[0]) * known
    unlikely = -log_share.gather(0, at)[0] * known
    return loss + recipe.route_time * of_known.mean() + recipe.route_choice * unlikely.mean()
