"""The networks of Habitat and Surfer for ops whose kernel varies with the GPU, as a baseline (Yu et al., USENIX ATC 2021).

Inputs are the logarithms of the op's dims and of four features of the destination GPU: memory, bandwidth, SMs, peak
FLOP/s. The target is the latency, and the loss is its MAPE. A prediction multiplies the time measured on the origin GPU
by the ratio of the network's outputs for the two GPUs. The published size is 8 x 1024 (34 MB for each op).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.network_training import Recipe, train_network
from pipeline.kernels.networks import Network
from pipeline.model_files import REBUILD, read_arrays, write_arrays

Array = npt.NDArray[np.float64]

DIMS: dict[str, tuple[str, ...]] = {
    "gemm": ("M", "N", "K"),
    "bmm": ("B", "M", "N", "K"),
    "conv2d_forward": ("B", "in_channels", "out_channels", "input_size"),
}
"""Dims by family. LSTM and batch norm have no samples."""

SMALL = Recipe(
    width=96,
    layers=3,
    residual=False,
    relu=True,
    loss="relative",
    steps=1500,
    batch=1024,
    learning_rate=3e-3,
    weight_decay=1e-4,
)
"""A small network, whose errors stand beside those of Steptime."""

PUBLISHED = Recipe(
    width=1024,
    layers=8,
    residual=False,
    relu=True,
    loss="relative",
    steps=20_000,
    batch=1024,
    learning_rate=3e-4,
    weight_decay=1e-4,
)
"""A network of the published size."""


@dataclass(frozen=True)
class PublishedNetwork:
    """A trained network of one family; its output is the logarithm of the latency in µs."""

    family: str
    network: Network

    def predict(self, calls: pd.DataFrame, gpu: GpuSpec) -> Array:
        """Latency in µs, shape (rows,)."""
        return np.exp(self.network.predict(inputs(self.family, calls, gpu)))

    def ratio(self, calls: pd.DataFrame, origin: GpuSpec, destination: GpuSpec) -> Array:
        """Time on the destination over time on the origin, shape (rows,)."""
        return self.predict(calls, destination) / self.predict(calls, origin)

    def save(self, path: Path) -> None:
        """Write one safetensors file."""
        write_arrays(path, self.network.tensors(), {"family": self.family})

    @classmethod
    def load(cls, path: Path) -> PublishedNetwork:
        """Read a file that `save` wrote.

        Raises:
            PackError: the file is missing or damaged.
        """
        arrays, metadata = read_arrays(path, REBUILD)
        return cls(metadata["family"], Network.from_tensors(arrays, relu=True))


def inputs(family: str, calls: pd.DataFrame, gpu: GpuSpec) -> Array:
    """Log dims and log destination features, shape (rows, dims + 4)."""
    sizes = np.log(calls[list(DIMS[family])].to_numpy(dtype=np.float64))
    device = np.log([gpu.memory_bytes, gpu.dram_gb_per_s, gpu.sms, gpu.fp32_gflop_per_s])
    return np.hstack([sizes, np.broadcast_to(device, (len(calls), 4))])


def train_published(
    samples: pd.DataFrame, family: str, recipe: Recipe = SMALL, seed: int = 0
) -> PublishedNetwork:
    """Fit a network to samples of several GPUs (needs torch); rows of other families are ignored.

    Raises:
        InputError: no network exists for the family, or there are no samples of it.
    """
    if family not in DIMS:
        raise InputError(f"no network for family {family}: choose one of {', '.join(sorted(DIMS))}")
    own = samples[samples["family"] == family]
    if own.empty:
        raise InputError(f"no samples of family {family} to train on")
    parts = [part for _, part in own.groupby("gpu", sort=True)]
    x = [inputs(family, part, load_gpu(str(part["gpu"].iloc[0]))) for part in parts]
    target = np.log(pd.concat(parts)["latency_us"].to_numpy(dtype=np.float64))
    return PublishedNetwork(family, train_network(np.concatenate(x), target, seed, recipe))
