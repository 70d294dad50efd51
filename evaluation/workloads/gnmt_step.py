"""NVIDIA's GNMT v2 in PyTorch, as a step of `model=custom`: the built-in `gnmt` with NVIDIA's training loop.

In fp16 the model is in half precision, with fp32 master weights (apex O2). Gradients are unscaled into those of the master
weights, the optimizer updates the master weights, and the model is copied from them. Gradients are clipped. The host reads
the loss before the backward pass. All sentences have the length of the longest in their batch. The packed sequences of the
first layer are computed in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from evaluation.workloads.squad_step import MasterWeights
from pipeline.as_on_cuda.host_reads import read
from pipeline.workloads.training_step import Batch, Step, host_empty, phase
from pipeline.workloads.translation import Gnmt, smoothed

WIDTH, DROPOUT, SMOOTHING, CLIP, SCALE = 1024, 0.2, 0.1, 5.0, 512.0

VOCABULARY = {"fp32": 31794, "tf32": 31794, "fp16": 31800}
"""Number of words by precision. In fp16 it is padded to a multiple of eight (logs of Lambda's benchmark)."""


LENGTH_BUCKETS = ((9, 0.034), (19, 0.208), (29, 0.371), (39, 0.270), (50, 0.118))
"""Longest sentence of each bucket, in tokens, and the bucket's share of the batches. The shares were counted over the
178 batches that the logs of two GPUs (V100-SXM2-16GB, A100-PCIE-40GB) print, by their tokens per sentence. A batch of 128
or more sentences contains some of its bucket's full length."""


def make_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """The step; `model.options.tokens` is the length of the batch's longest source and target."""
    tokens, dtype = int(config["options"]["tokens"]), str(config["dtype"])
    half = dtype == "fp16"
    with torch.device(device):
        model = Gnmt(WIDTH, VOCABULARY[dtype], DROPOUT, shared=True, normalised=True)
        masters = MasterWeights(model) if half else None
    if half:
        model.half()
    source, target, label = (
        host_empty(batch_size, n, dtype=torch.long) for n in (tokens, tokens - 1, tokens - 1)
    )

    def forward(source: Tensor, target: Tensor, label: Tensor) -> Tensor:
        output: Tensor = model(source, target)
        return output

    def procedure(batch: Batch, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        for parameter in model.parameters():
            parameter.grad = None
        with phase("forward"):
            output = model(*batch[:2])
        with phase("loss"):
            loss = smoothed(output.flatten(0, 1), batch[2].flatten(), SMOOTHING)
            read(loss)
        with phase("backward"):
            (loss * SCALE if half else loss).backward()  # type: ignore[no-untyped-call]
        with phase("optimizer"):
            own = list(model.parameters())
            updated = own if masters is None else list(masters.copies)
            if masters is not None:
                grads = [
                    torch.empty_like(copy).copy_(p.grad)
                    for copy, p in zip(updated, own, strict=True)
                    if p.grad is not None
                ]
                for copy, grad in zip(updated, grads, strict=True):
                    copy.grad = grad
                torch._foreach_mul_(grads, 1.0 / SCALE)
            nn.utils.clip_grad_norm_(updated, CLIP)
            optimizers[-1].step()
            if masters is not None:
                with torch.no_grad():
                    for copy, parameter in zip(updated, own, strict=True):
                        parameter.copy_(copy)

    modules = [model] if masters is None else [model, masters]
    return Step(
        modules, [(source, target, label)], forward, None, device, config, procedure=procedure
    )
