"""Training of the utilisation models (needs torch): the same formula as `utilisation.py`, differentiable.

Every GPU counts equally, the loss is the mean absolute log error of the latency. A small reward for attributing time to
memory settles what arithmetic-bound samples leave open: without it, memory traffic is unseen on GPUs with much
bandwidth per FLOP and missing on those with little (P4 from the others: bias -35 % against -20 %).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from pipeline.errors import InputError
from pipeline.hardware.spec import load_gpu
from pipeline.transfer.utilisation import (
    FEATURE_CLIP,
    FLOOR_SHARPNESS,
    Shape,
    Terms,
    UtilisationModel,
    terms,
)

FLOOR_QUANTILE = 0.002
"""A GPU's floor for an op is this quantile of its latencies: the least but for a few lucky measurements."""


@dataclass(frozen=True)
class Recipe:
    """How one family is trained.

    Attributes:
        shape: sizes and bounds of the networks.
        steps: optimizer steps per network.
        networks: seeds that are averaged.
        rows: samples per step, over all GPUs.
        memory_reward: weight of the reward for attributing time to memory.
        prior: how far, in log time, a GPU may differ from the common model before it costs.
        rate: peak learning rate of the one-cycle schedule.
    """

    shape: Shape = field(default_factory=Shape)
    steps: int = 700
    networks: int = 2
    rows: int = 1536
    memory_reward: float = 0.004
    prior: float = 0.1
    rate: float = 4e-3


_ROWS = Shape(width=12, depth=2, compute_bound=10.0, memory_high=1.1, norm=4.0, thread_steps=True)

RECIPES: dict[str, Recipe] = {
    # where tiles read their operands is a term of its own, so that little is left for the utilisation of bandwidth
    "gemm": Recipe(Shape(tile_reads=2.0, memory_low=0.2), networks=3),
    # narrow networks carry over better to a GPU they have not seen: 18.6 to 16.5 in bmm, 22.9 to 21.6 in conv
    "bmm": Recipe(Shape(width=24), networks=4, memory_reward=0.0, prior=0.3),
    "conv2d_forward": Recipe(
        Shape(width=24, compute_bound=4.0, tile_reads=1.0, memory_low=0.2), networks=4, memory_reward=0.001, prior=0.3
    ),
    "elementwise": Recipe(replace(_ROWS, width=16), steps=600, networks=3, memory_reward=0.0),
    # bandwidth is reached but for the issue of instructions: a free share of it would let networks tell GPUs apart
    "softmax": Recipe(replace(_ROWS, norm=2.0, memory_low=0.9), steps=600, networks=3, memory_reward=0.0, prior=0.4),
    "layer_norm": Recipe(_ROWS, steps=600, networks=3, memory_reward=0.01),
}
"""Chosen on leave-one-GPU-out errors (docs/transfer.md)."""


@dataclass(frozen=True)
class _Device:
    """One GPU's samples as tensors."""

    gpu: str
    columns: dict[str, Any]


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
    x = np.concatenate([t.x for t in seen.values()])
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    devices = [_device(gpu, by_gpu[gpu], seen[gpu], floors[gpu], ops, mean, scale) for gpu in by_gpu]
    fitted = [_fit_one(devices, len(ops), recipe, seed + i) for i in range(recipe.networks)]
    parameters = {key: np.stack([network[key] for network, _ in fitted]) for key in fitted[0][0]}
    latent = np.mean([latents for _, latents in fitted], axis=0)
    return UtilisationModel(
        family=family,
        ops=ops,
        shape=recipe.shape,
        parameters={**parameters, "mean": mean.astype(np.float32), "scale": scale.astype(np.float32)},
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
    return {str(op): float(value) for op, value in samples.groupby("op")["latency_us"].quantile(FLOOR_QUANTILE).items()}


def unknown_host_floors(floors: dict[str, dict[str, float]]) -> dict[str, float]:
    """Floors to assume on a host that nobody measured: per op the median over the GPUs' hosts."""
    return {str(op): float(value) for op, value in pd.DataFrame(floors).median(axis=1).items()}


def _device(
    gpu: str, part: pd.DataFrame, seen: Terms, floors: dict[str, float], ops: tuple[str, ...], mean: Any, scale: Any
) -> _Device:
    import torch

    def tensor(values: Any) -> Any:
        return torch.tensor(np.asarray(values), dtype=torch.float32)

    codes = part["op"].astype(str).map({op: i for i, op in enumerate(ops)}).to_numpy(dtype=np.int64)
    return _Device(
        gpu,
        {
            "x": tensor(np.clip((seen.x - mean) / scale, -FEATURE_CLIP, FEATURE_CLIP)),
            "arithmetic": tensor(seen.arithmetic),
            "dram": tensor(seen.dram),
            "l2": tensor(seen.l2),
            "steps": tensor(seen.steps),
            "tiles": tensor(seen.tiles),
            "per_l2": tensor(seen.per_l2),
            "held_per_l2": tensor(seen.held_per_l2),
            "floor": tensor(np.log(part["op"].astype(str).map(floors).astype(float))),
            "target": tensor(np.log(part["latency_us"])),
            "op": torch.tensor(codes),
        },
    )


def _fit_one(devices: list[_Device], ops: int, recipe: Recipe, seed: int) -> tuple[dict[str, Any], Any]:
    """Train one network; its parameters as arrays, and each GPU's (compute, memory) correction."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape = recipe.shape
    heads = 4 if shape.tile_reads else 3
    sizes = [devices[0].columns["x"].shape[1], *[shape.width] * shape.depth, heads]
    p: dict[str, Any] = {}
    for layer, (inputs, outputs) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        bound = (0.1 if layer == shape.depth else 1.0) / inputs**0.5
        p[f"weight{layer}"] = (torch.rand(inputs, outputs, generator=generator) * 2 - 1) * bound
        p[f"bias{layer}"] = torch.zeros(outputs)
    p[f"bias{shape.depth}"] = torch.tensor([1.0, 1.0, 0.0, 0.0][:heads])
    p |= {"op_bias": torch.zeros(ops, heads), "launch": torch.zeros(ops), "l2": torch.tensor([0.0, 1.0])}
    latent = torch.zeros(len(devices), 2, requires_grad=True)
    for value in p.values():
        value.requires_grad_(True)
    network = [value for key, value in p.items() if key.startswith(("weight", "bias"))]
    others = [value for key, value in p.items() if not key.startswith(("weight", "bias"))]
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
        latency, memory_use = _log_latency(p, batch, shape, centred[whose].T)
        error = (latency - batch["target"]).abs().mean()
        loss = error + recipe.memory_reward * memory_use.mean() + 0.01 * (centred**2).mean() / recipe.prior**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    corrections = (latent - latent.mean(dim=0, keepdim=True)).detach().numpy()
    return {key: value.detach().numpy().astype(np.float32) for key, value in p.items()}, -corrections


def _log_latency(p: dict[str, Any], batch: dict[str, Any], shape: Shape, latent: Any) -> tuple[Any, Any]:
    """Log latency and log memory utilisation of a batch; `UtilisationModel` has the same formula in NumPy."""
    import torch
    from torch.nn.functional import logsigmoid, silu

    hidden = batch["x"]
    for layer in range(shape.depth):
        hidden = silu(hidden @ p[f"weight{layer}"] + p[f"bias{layer}"])
    z = hidden @ p[f"weight{shape.depth}"] + p[f"bias{shape.depth}"] + p["op_bias"][batch["op"]]
    use_compute = logsigmoid(z[:, 0]) + float(np.log(shape.compute_bound))
    use_memory = torch.log(shape.memory_low + (shape.memory_high - shape.memory_low) * torch.sigmoid(z[:, 1]))
    missed = logsigmoid(torch.exp(p["l2"][1]) * (batch["per_l2"] - p["l2"][0]))
    missed = torch.logaddexp(missed, torch.full_like(missed, float(np.log(1e-6))))

    def norm(exponent: float, a: Any, b: Any) -> Any:
        return torch.logaddexp(exponent * a, exponent * b) / exponent

    memory = norm(shape.norm, batch["dram"] + missed, batch["l2"])
    kernel = norm(shape.norm, batch["arithmetic"] - use_compute - latent[0], memory - use_memory - latent[1])
    if shape.tile_reads:
        gone = logsigmoid(torch.exp(p["l2"][1]) * (batch["held_per_l2"] - p["l2"][0]))
        again = gone + logsigmoid(z[:, 3]) + float(np.log(shape.tile_reads))
        kernel = norm(shape.norm, kernel, batch["tiles"] + again - latent[1])
    if shape.thread_steps:
        kernel = norm(shape.norm, kernel, batch["steps"] + z[:, 2])
    start = batch["floor"] + logsigmoid(p["launch"][batch["op"]])
    return norm(FLOOR_SHARPNESS, batch["floor"], torch.logaddexp(start, kernel)), use_memory
