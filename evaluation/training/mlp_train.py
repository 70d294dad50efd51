"""Trains the networks of Habitat and Surfer (`pipeline/transfer/wave_scaling.py`)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd

from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.network_training import minimise
from pipeline.transfer.gpu_features import COMPUTE_FAMILIES
from pipeline.transfer.wave_scaling import DIMS, TransferMlp, inputs

SHIPPED_SIZE = (3, 96)
"""Hidden layers and width of the shipped networks."""

PUBLISHED_SIZE = (8, 1024)
"""Hidden layers and width of the published networks."""


def train_mlp(
    samples: pd.DataFrame,
    family: str,
    size: tuple[int, int] = SHIPPED_SIZE,
    steps: int = 1500,
    rows: int = 1024,
    seed: int = 0,
    rate: float = 3e-3,
) -> TransferMlp:
    """Fit a network to samples of several GPUs (needs torch).

    Args:
        samples: a samples table; rows of other families are ignored.
        family: gemm, bmm or conv2d_forward.
        size: hidden layers and width; `PUBLISHED_SIZE` is (8, 1024).
        steps: optimizer steps.
        rows: samples per step.
        seed: seed of initial weights and sampling.
        rate: peak learning rate.

    Raises:
        InputError: no network exists for the family, or there are no samples of it.
    """
    import torch

    if family not in DIMS:
        raise InputError(
            f"no network for family {family}: choose one of {', '.join(sorted(COMPUTE_FAMILIES))}"
        )
    rows_of_family = samples[samples["family"] == family]
    if rows_of_family.empty:
        raise InputError(f"no samples of family {family} to train on")
    groups = [(part, load_gpu(str(gpu))) for gpu, part in rows_of_family.groupby("gpu", sort=True)]
    x = np.concatenate([inputs(family, part, gpu) for part, gpu in groups])
    y = np.concatenate(
        [np.log(part["latency_us"].to_numpy(dtype=np.float64)) for part, _ in groups]
    )
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    torch.manual_seed(seed)
    layers, width = size
    sizes = [x.shape[1], *[width] * layers, 1]
    network = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
    with torch.no_grad():
        network[-1].bias.fill_(float(y.mean()))
    parameters = [p for layer in network for p in layer.parameters()]
    features = torch.tensor((x - mean) / scale, dtype=torch.float32)
    target = torch.tensor(y, dtype=torch.float32)

    def loss() -> torch.Tensor:
        batch = torch.randint(0, len(target), (rows,))
        hidden = features[batch]
        for layer in network[:-1]:
            hidden = torch.relu(layer(hidden))
        error = network[-1](hidden)[:, 0] - target[batch]
        # MAPE of the latency; the exponent is limited, so that a large initial error does not overflow
        return (torch.exp(error.clamp(max=3.0)) - 1.0).abs().mean() + torch.relu(error - 3.0).mean()

    # the published size trains almost twice as fast on two threads
    minimise(loss, parameters, steps, rate, weight_decay=1e-4, max_gradient_norm=1.0, threads=None)
    arrays = {"mean": mean.astype(np.float32), "scale": scale.astype(np.float32)}
    for index, layer in enumerate(network):
        arrays[f"weight{index}"] = np.ascontiguousarray(layer.weight.detach().numpy().T)
        arrays[f"bias{index}"] = layer.bias.detach().numpy()
    facts = {
        "gpus": [gpu.name for _, gpu in groups],
        "samples": len(rows_of_family),
        "seed": seed,
        "steps": steps,
    }
    return TransferMlp(family, layers, arrays, facts)
