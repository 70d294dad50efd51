"""Training of the utilisation models (needs torch): the same formula as `utilisation.py`, differentiable.

Every GPU counts equally, the loss is the mean absolute log error of the latency. A small reward for attributing time to
memory settles what arithmetic-bound samples leave open: without it, memory traffic is unseen on GPUs with much
bandwidth per FLOP and missing on those with little (P4 from the others: bias -35 % against -20 %).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.transfer.recipes import RECIPES, Recipe
from pipeline.transfer.utilisation import FEATURE_CLIP, Shape, UtilisationModel
from pipeline.transfer.utilisation_loss import TIMES, Ways, batch_loss
from pipeline.transfer.utilisation_terms import Terms, networks_of, terms, ways_taken

Array = npt.NDArray[np.float64]

NEWEST = {"A100-PCIE-40GB", "A100-PCIE-80GB", "T4"}
"""GPUs whose hosts stand for an unknown modern one: the newest of the set, with nearly equal floors."""

FLOOR_QUANTILE, FLOOR_SPREAD = 0.002, 1.1
"""A GPU's floor for an op is the median of the latencies up to this factor above this quantile of them. The least
latencies are lucky ones: calls that only wait for the host lie 1 to 4 % above (on the P100's host 10 %)."""


@dataclass(frozen=True)
class _Device:
    """One GPU's samples as tensors; `ways` to compute them with network and norm (`Terms`)."""

    gpu: str
    columns: dict[str, Any]
    ways: Ways


def train_utilisation(
    samples: pd.DataFrame,
    family: str,
    recipe: Recipe | None = None,
    seed: int = 0,
    provenance: dict[str, Any] | None = None,
) -> UtilisationModel:
    """Fit one family's model to samples of several GPUs.

    Args:
        samples: a samples table; rows of other families are passed over.
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
        raise InputError(f"no samples of family {family}: measure some, or leave the family to the roofline")
    by_gpu = {str(gpu): part.reset_index(drop=True) for gpu, part in own.groupby("gpu", sort=True)}
    floors = {gpu: op_floors(part) for gpu, part in by_gpu.items()}
    ops = tuple(own["op"].value_counts().index.astype(str))
    seen = {gpu: terms(family, part, load_gpu(gpu)) for gpu, part in by_gpu.items()}
    scales = {name: _scale([way.x for t in seen.values() for way in t.values() if way.network == name])
              for name in networks_of(family)}  # fmt: skip
    devices = [_device(family, gpu, by_gpu[gpu], seen[gpu], floors[gpu], ops, scales) for gpu in by_gpu]
    fitted = [_fit_one(devices, len(ops), recipe, seed + i) for i in range(recipe.networks)]
    parameters = {key: np.stack([network[key] for network, _ in fitted]) for key in fitted[0][0]}
    for name, (mean, scale) in scales.items():
        parameters |= {f"{name}mean": mean.astype(np.float32), f"{name}scale": scale.astype(np.float32)}
    latent = np.mean([latents for _, latents in fitted], axis=0)
    return UtilisationModel(
        family=family,
        ops=ops,
        shape=recipe.shape,
        parameters=parameters,
        floors_us=unknown_host_floors(floors),
        gpu_floors_us=floors,
        gpu_corrections={device.gpu: [float(v) for v in row] for device, row in zip(devices, latent, strict=True)},
        provenance={
            "gpus": list(by_gpu),
            "samples": len(own),
            "recipe": asdict(recipe),
            "seed": seed,
            **(provenance or {}),
        },
    )


def op_floors(samples: pd.DataFrame) -> dict[str, float]:
    """Latency floor by op, µs."""

    def floor(latency: pd.Series) -> float:
        return float(latency[latency <= FLOOR_SPREAD * latency.quantile(FLOOR_QUANTILE)].median())

    return {str(op): floor(own["latency_us"]) for op, own in samples.groupby("op")}


def unknown_host_floors(floors: dict[str, dict[str, float]]) -> dict[str, float]:
    """Floors to assume on a host that nobody measured: per op the median over hosts of the newest GPUs at hand."""
    hosts = {gpu: own for gpu, own in floors.items() if gpu in NEWEST} or floors
    return {str(op): float(value) for op, value in pd.DataFrame(hosts).median(axis=1).items()}


def _scale(parts: list[Array]) -> tuple[Array, Array]:
    """Mean and spread of each feature over several tables of them, shape (features,)."""
    x = np.concatenate(parts)
    return x.mean(axis=0), x.std(axis=0) + 1e-6


NEVER = 40.0
"""Logarithm of the time that stands for a way that is not open, µs."""


def _open(seen: dict[str, Terms], taken: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether a way is known for a row and open on its GPU, shape (rows,)."""
    times = np.stack([way.arithmetic for way in seen.values()])
    return (taken >= 0) & np.isfinite(times[np.maximum(taken, 0), np.arange(len(taken))])


def _device(
    family: str,
    gpu: str,
    part: pd.DataFrame,
    seen: dict[str, Terms],
    floors: dict[str, float],
    ops: tuple[str, ...],
    scales: dict[str, tuple[Array, Array]],
) -> _Device:
    import torch

    def tensor(values: Any) -> Any:
        return torch.tensor(np.asarray(values), dtype=torch.float32)

    codes = part["op"].astype(str).map({op: i for i, op in enumerate(ops)}).to_numpy(dtype=np.int64)
    taken = ways_taken(family, part)
    columns = {
        "floor": tensor(np.log(part["op"].astype(str).map(floors).astype(float))),
        "target": tensor(np.log(part["latency_us"])),
        "op": torch.tensor(codes),
        "way": torch.tensor(np.where(_open(seen, taken), taken, -1)),
    }
    for name, found in seen.items():
        mean, scale = scales[found.network]
        columns[f"{name} x"] = tensor(np.clip((found.x - mean) / scale, -FEATURE_CLIP, FEATURE_CLIP))
        # no gradient passes infinities
        columns |= {f"{name} {key}": tensor(np.minimum(getattr(found, key), NEVER)) for key in TIMES}
    return _Device(gpu, columns, {name: (found.network, found.norm) for name, found in seen.items()})


def _start(inputs: int, ops: int, shape: Shape, generator: Any) -> dict[str, Any]:
    """Parameters of one network before training."""
    import torch

    heads = 4 if shape.tile_reads else 3
    sizes = [inputs, *[shape.width] * shape.depth, heads]
    p: dict[str, Any] = {}
    for layer, (rows, columns) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        bound = (0.1 if layer == shape.depth else 1.0) / rows**0.5
        p[f"weight{layer}"] = (torch.rand(rows, columns, generator=generator) * 2 - 1) * bound
        p[f"bias{layer}"] = torch.zeros(columns)
    p[f"bias{shape.depth}"] = torch.tensor([1.0, 1.0, 0.0, 0.0][:heads])
    return p | {"op_bias": torch.zeros(ops, heads), "l2": torch.tensor([0.0, 1.0])}


def _fit_one(devices: list[_Device], ops: int, recipe: Recipe, seed: int) -> tuple[dict[str, Any], Any]:
    """Train the networks of one seed; their parameters as arrays, and each GPU's (compute, memory) correction."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape, ways = recipe.shape, devices[0].ways
    p: dict[str, Any] = {"launch": torch.zeros(ops)}
    for prefix, way in {prefix: way for way, (prefix, _) in ways.items()}.items():
        inputs = devices[0].columns[f"{way} x"].shape[1]
        p |= {prefix + key: value for key, value in _start(inputs, ops, shape, generator).items()}
    latent = torch.zeros(len(devices), 2, requires_grad=True)
    for value in p.values():
        value.requires_grad_(True)
    network = [value for key, value in p.items() if "weight" in key or ".bias" in f".{key}"]
    others = [value for key, value in p.items() if not ("weight" in key or ".bias" in f".{key}")]
    groups = [{"params": network, "weight_decay": 1e-2}, {"params": [*others, latent], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, total_steps=recipe.steps)
    # one batch of as many rows of each device: every GPU counts equally, however many samples it has
    per_device = recipe.rows // len(devices)
    pooled = {key: torch.cat([device.columns[key] for device in devices]) for key in devices[0].columns}
    counts = [len(device.columns["target"]) for device in devices]
    starts = np.cumsum([0, *counts[:-1]])
    whose = torch.arange(len(devices)).repeat_interleave(per_device)
    for _ in range(recipe.steps):
        centred = latent - latent.mean(dim=0, keepdim=True)
        drawn = [
            torch.randint(0, count, (per_device,), generator=generator) + int(start)
            for start, count in zip(starts, counts, strict=True)
        ]
        rows = torch.cat(drawn)
        batch = {key: value[rows] for key, value in pooled.items()}
        loss = batch_loss(p, batch, recipe, ways, centred[whose].T)
        loss = loss + 0.01 * (centred**2).mean() / recipe.prior**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    corrections = (latent - latent.mean(dim=0, keepdim=True)).detach().numpy()
    return {key: value.detach().numpy().astype(np.float32) for key, value in p.items()}, -corrections
