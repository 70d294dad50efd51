"""Networks for ops whose kernel varies with the GPU, in the published form of Habitat and Surfer.

Inputs are the logarithms of the op's dims and of four features of the destination GPU: memory, bandwidth, SMs, peak
FLOP/s. The target is the latency, and the loss is its MAPE. A prediction multiplies the time measured on the origin GPU
by the ratio of the network's outputs for the two GPUs. The published size is 8 x 1024 (34 MB for each op), the shipped
size 3 x 96.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.model_files import REBUILD, Arrays, check_shapes, layer_shapes, read_arrays, reading, write_arrays

Array = npt.NDArray[np.float64]

KIND = "mlp"
"""Name of these models in the metadata of their files."""

DIMS: dict[str, tuple[str, ...]] = {
    "gemm": ("M", "N", "K"),
    "bmm": ("B", "M", "N", "K"),
    "conv2d_forward": ("B", "in_channels", "out_channels", "input_size"),
}
"""Dims by family. LSTM and batch norm have no samples, so the roofline predicts them."""


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
