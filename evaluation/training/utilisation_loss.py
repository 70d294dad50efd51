"""The training loss of utilisation models (needs torch): a differentiable form of the formula in `utilisation.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.training.recipes import Recipe
from pipeline.transfer.utilisation import FLOOR_SHARPNESS, Shape

Ways = dict[str, tuple[str, float | None]]
"""Type of the ways to compute a family's calls: by name, the prefix of the network and the norm (`Terms`)."""

TIMES = ("arithmetic", "dram", "l2", "steps", "tiles", "per_l2")
"""Fields of `Terms` that training uses in addition to the features."""


def batch_loss(p: dict[str, Any], batch: dict[str, Any], recipe: Recipe, ways: Ways, latent: Any) -> Any:
    """Mean absolute log error of a batch's latencies; `UtilisationModel` has the same formula in NumPy."""
    import torch
    from torch.nn.functional import log_softmax, logsigmoid

    shape = recipe.shape
    found: list[tuple[Any, Any]] = []
    for prefix, norm in dict.fromkeys(ways.values()):
        # ways that share a network are evaluated together
        own = [way for way, network in ways.items() if network == (prefix, norm)]
        call_terms = {key: torch.cat([batch[f"{way} {key}"] for way in own]) for key in (*TIMES, "x")}
        op = batch["op"].repeat(len(own))
        kernels, uses = _log_kernel(p, prefix, call_terms, op, shape, norm, latent.repeat(1, len(own)))
        found += zip(kernels.chunk(len(own)), uses.chunk(len(own)), strict=True)
    start = batch["floor"] + logsigmoid(p["launch"][batch["op"]])

    def error(kernel: Any) -> Any:
        latency = _norm(FLOOR_SHARPNESS, batch["floor"], torch.logaddexp(start, kernel))
        return (latency - batch["target"]).abs()

    if len(found) == 1:
        kernel, memory_use = found[0]
        return error(kernel).mean() + recipe.memory_reward * memory_use.mean()
    all_ways = torch.stack([kernel for kernel, _ in found], dim=-1)
    known = (batch["way"] >= 0).float()
    at = batch["way"].clamp(min=0)[:, None]
    loss = error(-torch.logsumexp(-shape.choice * all_ways, dim=-1) / shape.choice).mean()
    # kernel names show the way of a sample: its own time must fit, and it must be the shortest of all ways
    loss = loss + recipe.route_time * (error(all_ways.gather(-1, at)[:, 0]) * known).mean()
    unlikely = -log_softmax(-shape.choice * all_ways, dim=-1).gather(-1, at)[:, 0]
    return loss + recipe.route_choice * (unlikely * known).mean()


def _log_kernel(
    p: dict[str, Any], prefix: str, call_terms: dict[str, Any], op: Any, shape: Shape, norm: float | None, latent: Any
) -> tuple[Any, Any]:
    """Log kernel time by one network and log memory utilisation, each of shape (rows,)."""
    import torch
    from torch.nn.functional import logsigmoid, silu

    hidden = call_terms["x"]
    for layer in range(shape.depth):
        hidden = silu(hidden @ p[f"{prefix}weight{layer}"] + p[f"{prefix}bias{layer}"])
    z = hidden @ p[f"{prefix}weight{shape.depth}"] + p[f"{prefix}bias{shape.depth}"] + p[f"{prefix}op_bias"][op]
    centre, steep = p[f"{prefix}l2"]
    use_compute = logsigmoid(z[:, 0]) + float(np.log(shape.compute_bound))
    use_memory = torch.log(shape.memory_low + (shape.memory_high - shape.memory_low) * torch.sigmoid(z[:, 1]))
    missed = logsigmoid(torch.exp(steep) * (call_terms["per_l2"] - centre))
    reached = torch.logaddexp(missed, torch.full_like(missed, float(np.log(1e-6))))
    memory = _norm(shape.norm, call_terms["dram"] + reached, call_terms["l2"])
    kernel = _norm(
        norm or shape.norm, call_terms["arithmetic"] - use_compute - latent[0], memory - use_memory - latent[1]
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
