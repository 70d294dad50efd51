"""Networks for ops whose kernel varies with the GPU, in the published form of Habitat and Surfer.

Inputs are the logarithms of the op's dims and of four features of the destination GPU: memory, bandwidth, SMs, peak
FLOP/s. The target is the latency, and the loss is its MAPE. A prediction multiplies the time measured on the origin GPU
by the ratio of the network's outputs for the two GPUs. The published size is 8 x 1024 (34 MB for each op), the shipped
size 3 x 96.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.training_loop import minimise
from pipeline.model_files import REBUILD, Arrays, check_shapes, layer_shapes, read_arrays, reading, write_arrays
from pipeline.transfer.gpu_features import COMPUTE_FAMILIES

Array = npt.NDArray[np.float64]

KIND = "mlp"
"""Name of these models in the metadata of their files."""

DIMS: dict[str, tuple[str, ...]] = {
    "gemm": ("M", "N", "K"),
    "bmm": ("B", "M", "N", "K"),
    "conv2d_forward": ("B", "in_channels", "out_channels", "input_size"),
}
"""Dims by family. LSTM and batch norm have no samples, so the roofline predicts them."""

SHIPPED_SIZE = (3, 96)
"""Hidden layers and width of the shipped networks."""

PUBLISHED_SIZE = (8, 1024)
"""Hidden layers and width of the published networks."""


def inputs(family: str, calls: pd.DataFrame, gpu: GpuSpec) -> Array:
    """Log dims and log destination features, shape (rows, dims + 4)."""
    sizes = np.column_stack([np.log(calls[name].to_numpy(dtype=np.float64)) for name in DIMS[family]])
    device = np.log([gpu.memory_bytes, gpu.dram_gb_per_s, gpu.sms, gpu.fp32_gflop_per_s])
    return np.hstack([sizes, np.broadcast_to(device, (len(calls), 4))])


@dataclass(frozen=True)
class TransferMlp:
    """A trained network: `parameters` holds `weight0`, `bias0`..., `mean`, `scale`; its output is log µs."""

    family: str
    layers: int
    parameters: Arrays
    provenance: dict[str, Any]

    def predict(self, calls: pd.DataFrame, gpu: GpuSpec) -> Array:
        """Latency in µs, shape (rows,)."""
        p = self.parameters
        hidden = (inputs(self.family, calls, gpu) - p["mean"]) / p["scale"]
        for layer in range(self.layers):
            hidden = np.maximum(hidden @ p[f"weight{layer}"] + p[f"bias{layer}"], 0.0)
        out = hidden @ p[f"weight{self.layers}"] + p[f"bias{self.layers}"]
        return np.asarray(np.exp(out[:, 0]))

    def ratio(self, calls: pd.DataFrame, origin: GpuSpec, destination: GpuSpec) -> Array:
        """Time on the destination over time on the origin, shape (rows,); exactly 1 for the same GPU."""
        if origin == destination:
            return np.ones(len(calls))
        return self.predict(calls, destination) / self.predict(calls, origin)

    def save(self, path: Path) -> None:
        """Write one safetensors file."""
        facts = {"family": self.family, "layers": self.layers, "provenance": self.provenance}
        write_arrays(path, self.parameters, {KIND: facts})

    @classmethod
    def load(cls, path: Path) -> TransferMlp:
        """Read a file that `save` wrote.

        Raises:
            PackError: the file is missing or damaged, or its arrays do not fit each other.
        """
        parameters, metadata = read_arrays(path, REBUILD)
        with reading(path, REBUILD):
            model = cls(parameters=parameters, **metadata[KIND])
            inputs = len(DIMS[model.family]) + 4
            layers = layer_shapes([inputs, *(f"width{i}" for i in range(model.layers)), 1])
            check_shapes("network", parameters, {"mean": (inputs,), "scale": (inputs,), **layers})
            return model


def train_mlp(
    samples: pd.DataFrame, family: str, size: tuple[int, int] = SHIPPED_SIZE, steps: int = 1500, rows: int = 1024,
    seed: int = 0, rate: float = 3e-3,
) -> TransferMlp:  # fmt: skip
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
        raise InputError(f"no network for family {family}: choose one of {', '.join(sorted(COMPUTE_FAMILIES))}")
    own = samples[samples["family"] == family]
    if own.empty:
        raise InputError(f"no samples of family {family} to train on")
    groups = [(part, load_gpu(str(gpu))) for gpu, part in own.groupby("gpu", sort=True)]
    x = np.concatenate([inputs(family, part, gpu) for part, gpu in groups])
    y = np.concatenate([np.log(part["latency_us"].to_numpy(dtype=np.float64)) for part, _ in groups])
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
    facts = {"gpus": [gpu.name for _, gpu in groups], "samples": len(own), "seed": seed, "steps": steps}
    return TransferMlp(family, layers, arrays, facts)
