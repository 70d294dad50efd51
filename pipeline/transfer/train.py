"""Training of the utilisation models (needs torch): the same formula as `utilisation.py`, differentiable.

Every GPU counts equally, the loss is the mean absolute log error of the latency. A small reward for attributing time to
memory settles what arithmetic-bound samples leave open: without it, memory traffic is unseen on GPUs with much
bandwidth per FLOP and missing on those with little (P4 from the others: bias -35 % against -20 %).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.errors import InputError
from pipeline.hardware.spec import load_gpu
from pipeline.transfer.convolution import routes_taken
from pipeline.transfer.terms import Terms, route_names, terms
from pipeline.transfer.utilisation import FEATURE_CLIP, FLOOR_SHARPNESS, Shape, UtilisationModel

Array = npt.NDArray[np.float64]

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
        route_time: weight of the error of the route that a sample's kernel name shows.
        route_choice: weight of how unlikely the smooth minimum holds that route to be.
    """

    shape: Shape = field(default_factory=Shape)
    steps: int = 700
    networks: int = 2
    rows: int = 1536
    memory_reward: float = 0.004
    prior: float = 0.1
    rate: float = 4e-3
    route_time: float = 0.3
    route_choice: float = 0.1


_ROWS = Shape(width=12, depth=2, compute_bound=10.0, memory_high=1.1, norm=4.0, thread_steps=True)

RECIPES: dict[str, Recipe] = {
    # where tiles read their operands is a term of its own, so that little is left for the utilisation of bandwidth
    "gemm": Recipe(Shape(tile_reads=2.0, memory_low=0.2), networks=3),
    # narrow networks carry over better to a GPU they have not seen: 18.6 to 16.5 in bmm
    "bmm": Recipe(Shape(width=24), networks=4, memory_reward=0.0, prior=0.3),
    "conv2d_forward": Recipe(
        Shape(width=12, depth=2, memory_low=0.2), steps=600, networks=4, rows=1024, memory_reward=0.0, prior=0.3
    ),
    "elementwise": Recipe(replace(_ROWS, width=16), steps=600, networks=3, memory_reward=0.0),
    # bandwidth is reached but for the issue of instructions: a free share of it would let networks tell GPUs apart
    "softmax": Recipe(replace(_ROWS, norm=2.0, memory_low=0.9), steps=600, networks=3, memory_reward=0.0, prior=0.4),
    "layer_norm": Recipe(_ROWS, steps=600, networks=3, memory_reward=0.01),
}
"""Chosen on leave-one-GPU-out errors (docs/transfer.md)."""


@dataclass(frozen=True)
class _Device:
    """One GPU's samples as tensors; `norms` of the routes (`Terms.norm`)."""

    gpu: str
    columns: dict[str, Any]
    norms: dict[str, float | None]


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
    scales = {name: _scale(np.concatenate([t[name].x for t in seen.values()])) for name in route_names(family)}
    devices = [_device(gpu, by_gpu[gpu], seen[gpu], floors[gpu], ops, scales) for gpu in by_gpu]
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
    return {str(op): float(value) for op, value in samples.groupby("op")["latency_us"].quantile(FLOOR_QUANTILE).items()}


def unknown_host_floors(floors: dict[str, dict[str, float]]) -> dict[str, float]:
    """Floors to assume on a host that nobody measured: per op the median over the GPUs' hosts."""
    return {str(op): float(value) for op, value in pd.DataFrame(floors).median(axis=1).items()}


def _scale(x: Array) -> tuple[Array, Array]:
    """Mean and spread of each feature, shape (features,)."""
    return x.mean(axis=0), x.std(axis=0) + 1e-6


TIMES = ("arithmetic", "dram", "l2", "steps", "tiles", "per_l2")
"""What training takes of `Terms` beside the features."""


def _device(
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
    columns = {
        "floor": tensor(np.log(part["op"].astype(str).map(floors).astype(float))),
        "target": tensor(np.log(part["latency_us"])),
        "op": torch.tensor(codes),
        "route": torch.tensor(routes_taken(part) if len(seen) > 1 else np.full(len(part), -1)),
    }
    for name, found in seen.items():
        mean, scale = scales[name]
        columns[f"{name}x"] = tensor(np.clip((found.x - mean) / scale, -FEATURE_CLIP, FEATURE_CLIP))
        columns |= {f"{name}{key}": tensor(getattr(found, key)) for key in TIMES}
    return _Device(gpu, columns, {name: found.norm for name, found in seen.items()})


def _start(inputs: int, ops: int, shape: Shape, generator: Any) -> dict[str, Any]:
    """Parameters of one route's network before training."""
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
    """Train one network per route; their parameters as arrays, and each GPU's (compute, memory) correction."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape, norms = recipe.shape, devices[0].norms
    p: dict[str, Any] = {"launch": torch.zeros(ops)}
    for name in norms:
        inputs = devices[0].columns[f"{name}x"].shape[1]
        p |= {name + key: value for key, value in _start(inputs, ops, shape, generator).items()}
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
        loss = _loss(p, batch, recipe, norms, centred[whose].T)
        loss = loss + 0.01 * (centred**2).mean() / recipe.prior**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    corrections = (latent - latent.mean(dim=0, keepdim=True)).detach().numpy()
    return {key: value.detach().numpy().astype(np.float32) for key, value in p.items()}, -corrections


def _loss(p: dict[str, Any], batch: dict[str, Any], recipe: Recipe, norms: dict[str, float | None], latent: Any) -> Any:
    """Mean absolute log error of a batch's latencies; `UtilisationModel` has the same formula in NumPy."""
    import torch
    from torch.nn.functional import log_softmax, logsigmoid

    shape = recipe.shape
    found = [_log_kernel(p, name, batch, shape, norm, latent) for name, norm in norms.items()]
    start = batch["floor"] + logsigmoid(p["launch"][batch["op"]])

    def error(kernel: Any) -> Any:
        latency = _norm(FLOOR_SHARPNESS, batch["floor"], torch.logaddexp(start, kernel))
        return (latency - batch["target"]).abs()

    if len(found) == 1:
        kernel, memory_use = found[0]
        return error(kernel).mean() + recipe.memory_reward * memory_use.mean()
    routes = torch.stack([kernel for kernel, _ in found], dim=-1)
    known = (batch["route"] >= 0).float()
    at = batch["route"].clamp(min=0)[:, None]
    loss = error(-torch.logsumexp(-shape.choice * routes, dim=-1) / shape.choice).mean()
    # kernel names say which route a sample took: that one's network answers for it, and was the shortest
    loss = loss + recipe.route_time * (error(routes.gather(-1, at)[:, 0]) * known).mean()
    unlikely = -log_softmax(-shape.choice * routes, dim=-1).gather(-1, at)[:, 0]
    return loss + recipe.route_choice * (unlikely * known).mean()


def _log_kernel(
    p: dict[str, Any], route: str, batch: dict[str, Any], shape: Shape, norm: float | None, latent: Any
) -> tuple[Any, Any]:
    """Log kernel time by one route and log memory utilisation, each of shape (rows,)."""
    import torch
    from torch.nn.functional import logsigmoid, silu

    hidden = batch[f"{route}x"]
    for layer in range(shape.depth):
        hidden = silu(hidden @ p[f"{route}weight{layer}"] + p[f"{route}bias{layer}"])
    z = hidden @ p[f"{route}weight{shape.depth}"] + p[f"{route}bias{shape.depth}"] + p[f"{route}op_bias"][batch["op"]]
    centre, steep = p[f"{route}l2"]
    use_compute = logsigmoid(z[:, 0]) + float(np.log(shape.compute_bound))
    use_memory = torch.log(shape.memory_low + (shape.memory_high - shape.memory_low) * torch.sigmoid(z[:, 1]))
    missed = logsigmoid(torch.exp(steep) * (batch[f"{route}per_l2"] - centre))
    reached = torch.logaddexp(missed, torch.full_like(missed, float(np.log(1e-6))))
    memory = _norm(shape.norm, batch[f"{route}dram"] + reached, batch[f"{route}l2"])
    kernel = _norm(
        norm or shape.norm, batch[f"{route}arithmetic"] - use_compute - latent[0], memory - use_memory - latent[1]
    )
    if shape.tile_reads:
        again = missed + logsigmoid(z[:, 3]) + float(np.log(shape.tile_reads))
        kernel = _norm(shape.norm, kernel, batch[f"{route}tiles"] + again - latent[1])
    if shape.thread_steps:
        kernel = _norm(shape.norm, kernel, batch[f"{route}steps"] + z[:, 2])
    return kernel, use_memory


def _norm(exponent: float, a: Any, b: Any) -> Any:
    """Logarithm of the norm of two times given by their logarithms."""
    import torch

    return torch.logaddexp(exponent * a, exponent * b) / exponent
