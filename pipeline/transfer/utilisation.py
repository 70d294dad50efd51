"""Kernel times on a GPU from its spec file alone: bounded utilisation of sustained throughput and bandwidth.

The time of a kernel is the p-norm of three times:
- arithmetic over the sustained throughput;
- traffic over the sustained bandwidth of DRAM, or of L2 where the working set fits;
- thread steps over the resident threads of the device. For softmax and layer norm it is thread steps over the warp
  instructions that the schedulers issue.

Each time is divided by a utilisation. A small network computes it from device-normalised features (`gpu_features.py`).
For softmax its logit is linear in a few features. Bandwidth, clock and throughput are divisors
only, so a higher value never predicts a slower kernel.

Some families have several algorithms, and a smooth minimum over these gives their time:
- convolutions: one network for each route of cuDNN (`convolution_routes.py`);
- batched products: one time for each tile of cuBLAS (`output_tiles.py`).

The latency that event timing measures is a smooth maximum of two times. One is the host's floor, the other the launch
offset plus the kernel.

Inference uses NumPy; training (`evaluation/training/`) evaluates the same formula with torch. Several networks (seeds) are
averaged in log time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Ints
from pipeline.hardware.spec import GpuSpec
from pipeline.model_files import (
    REBUILD,
    Arrays,
    Shapes,
    check_shapes,
    layer_shapes,
    read_arrays,
    reading,
    write_arrays,
)
from pipeline.transfer.utilisation_terms import Terms, networks_of, terms

KIND = "utilisation"
"""Name of these models in the metadata of their files."""

FLOOR_SHARPNESS = 12.0
"""Exponent of the p-norm of the host's floor and launch offset plus kernel: 6 % above the maximum if both are equal."""

FEATURE_CLIP = 4.0
"""Limit of standardised features, in standard deviations: larger values than in the samples count as the limit."""


@dataclass(frozen=True)
class Correction:
    """Log factors on compute time, memory time and host floor, fitted to probes of a GPU; 0 without probes."""

    compute: float = 0.0
    memory: float = 0.0
    floor: float = 0.0


@dataclass(frozen=True)
class Shape:
    """Sizes and bounds of a family's networks.

    Attributes:
        width, depth: width and number of hidden layers; at depth 0 the utilisations' logits are linear in the features.
        compute_bound: largest utilisation of throughput; above 1 where algorithms save arithmetic (Winograd).
        memory_low, memory_high: range of the utilisation of bandwidth. The low end stands for repeated reads of tiles
            that L2 does not hold. The high end is above 1 where the sustained figure is cautious.
        norm: exponent p of the norm over the three times.
        thread_steps: whether the third time is included.
        tile_reads: largest share of a product's tile traffic that goes to DRAM; 0 for families without tiles.
        choice: exponent of the smooth minimum over the algorithms of a call, for families with several.
    """

    width: int = 64
    depth: int = 3
    compute_bound: float = 1.0
    memory_low: float = 0.07
    memory_high: float = 1.3
    norm: float = 2.0
    thread_steps: bool = False
    tile_reads: float = 0.0
    choice: float = 12.0

    @property
    def heads(self) -> int:
        """Number of outputs of a network.

        They are the logits of the utilisations of throughput and bandwidth, the log thread steps, and, for families
        with tiles, the logit of the share of repeated reads.
        """
        return 4 if self.tile_reads else 3


@dataclass(frozen=True)
class UtilisationModel:
    """Trained networks of one family.

    Attributes:
        family: the kernel family.
        ops: ops in the order of `op_bias` and `launch`.
        shape: sizes and bounds of the networks.
        parameters: arrays with a leading axis of networks: `weight0`, `bias0`... (in, out), `op_bias` (ops, heads),
            `launch` (ops,), `l2` (2,). The `mean` and `scale` of the features do not have that axis. Convolutions
            have all but `launch` once for each route, as `winograd.weight0`.
        floors_us: latency floor by op that is assumed for an unknown host, µs.
        gpu_floors_us: floors by GPU and op of the GPUs with samples, µs.
        gpu_corrections: log factors between each trained GPU and the common model: {gpu: [compute, memory]}.
        log_p10, log_p90: ends of the p10-p90 interval of log(measured / predicted), from leaving each GPU out.
        provenance: origin of the samples and how the model was trained.
        probe_prior: covariance of the errors on a new GPU, for probes (`probes.ProbePrior`).
    """

    family: str
    ops: tuple[str, ...]
    shape: Shape
    parameters: Arrays
    floors_us: dict[str, float]
    gpu_floors_us: dict[str, dict[str, float]] = field(default_factory=dict)
    gpu_corrections: dict[str, list[float]] = field(default_factory=dict)
    log_p10: float = -0.25
    log_p90: float = 0.25
    provenance: dict[str, Any] = field(default_factory=dict)
    probe_prior: dict[str, Any] = field(default_factory=dict)

    def kernel_and_latency(
        self,
        calls: pd.DataFrame,
        gpu: GpuSpec,
        floors_us: dict[str, float] | None = None,
        correction: Correction | None = None,
        algorithm: Ints | None = None,
    ) -> tuple[Array, Array]:
        """Kernel time and latency in µs, each of shape (rows,), averaged over the networks in log time.

        Args:
            calls: rows of this family (`op` and dims).
            gpu: spec of the GPU.
            floors_us: latency floor by op, µs; that of the unknown host by default.
            correction: log factors fitted to probes or samples of the GPU.
            algorithm: index of the algorithm that each call is known to use, -1 where unknown; shape (rows,).
        """
        correction = correction or Correction()
        factors = correction.compute, correction.memory
        op, code = calls["op"].astype(str), self.op_codes(calls)
        floors = self.floors_us if floors_us is None else floors_us
        usual = float(np.median(list(floors.values())))
        floor = op.map(floors).fillna(usual).to_numpy(dtype=float)
        log_floor = np.log(floor) + correction.floor
        by_network = {
            prefix: self._standardised(prefix, found)
            for prefix, found in terms(self.family, calls, gpu).items()
        }
        kernels, latencies = [], []
        for network, launch in enumerate(self.parameters["launch"].astype(float)):
            times = np.concatenate(
                [
                    log_kernel_us(
                        np, self._network(network, prefix), found, self.shape, code, factors
                    )[0]
                    for prefix, found in by_network.items()
                ]
            )
            kernel = -np.logaddexp.reduce(-self.shape.choice * times) / self.shape.choice
            if algorithm is not None:
                known = times[np.maximum(algorithm, 0), np.arange(len(algorithm))]
                kernel = np.where(
                    (algorithm >= 0) & np.isfinite(known),
                    known,
                    kernel,
                )
            kernels.append(kernel)
            latencies.append(log_latency_us(np, log_floor, launch[code], kernel))
        return np.exp(np.mean(kernels, axis=0)), np.exp(np.mean(latencies, axis=0))

    def _standardised(self, prefix: str, found: Terms) -> Terms:
        mean, scale = self.parameters[f"{prefix}mean"], self.parameters[f"{prefix}scale"]
        return replace(found, x=standardised(found.x, mean, scale))

    def _network(self, network: int, prefix: str) -> Arrays:
        """Parameters of one network, without those that all networks share."""
        shared = (f"{prefix}mean", f"{prefix}scale")
        return {
            name.removeprefix(prefix): values[network].astype(float)
            for name, values in self.parameters.items()
            if name.startswith(prefix) and name not in shared
        }

    def op_codes(self, calls: pd.DataFrame) -> Ints:
        """Index of each call's op in `ops`; that of the first, the most frequent one, for ops without samples."""
        codes = pd.Index(self.ops).get_indexer(pd.Index(calls["op"].astype(str)))
        return np.asarray(np.maximum(codes, 0), dtype=np.int64)

    def own_correction(self, gpu: str) -> Correction:
        """The correction of a GPU that the model was trained on; 0 for other GPUs."""
        return Correction(*self.gpu_corrections.get(gpu, ())[:2])

    def save(self, path: Path) -> None:
        """Write one safetensors file: the arrays, with all other fields as JSON in its metadata."""
        facts = asdict(replace(self, parameters={}))
        del facts["parameters"]
        write_arrays(path, self.parameters, {KIND: facts})

    @classmethod
    def load(cls, path: Path) -> UtilisationModel:
        """Read a file that `save` wrote.

        Raises:
            PackError: the file is missing or damaged, or its arrays do not fit each other.
        """
        parameters, metadata = read_arrays(path, REBUILD)
        with reading(path, REBUILD):
            facts = metadata[KIND]
            ops, shape = tuple(facts.pop("ops")), Shape(**facts.pop("shape"))
            model = cls(ops=ops, shape=shape, parameters=parameters, **facts)
            check_shapes("model", parameters, model.array_shapes())
            return model

    def array_shapes(self) -> Shapes:
        """Shape of each of `parameters`; the number of networks and the inputs of each network are free."""
        shape, ops = self.shape, len(self.ops)
        expected: Shapes = {"launch": ("networks", ops)}
        for prefix in networks_of(self.family):
            inputs = f"{prefix}inputs"
            expected |= {f"{prefix}mean": (inputs,), f"{prefix}scale": (inputs,)}
            expected |= {
                f"{prefix}op_bias": ("networks", ops, shape.heads),
                f"{prefix}l2": ("networks", 2),
            }
            expected |= layer_shapes(
                [
                    inputs,
                    *[shape.width] * shape.depth,
                    shape.heads,
                ],
                prefix,
                ("networks",),
            )
        return expected


def standardised(x: Array, mean: Array, scale: Array) -> Array:
    """Features after centring, scaling and clipping, shape (..., features)."""
    return np.clip(
        (x - mean) / scale,
        -FEATURE_CLIP,
        FEATURE_CLIP,
    )


def log_kernel_us(
    xp: Any, p: Mapping[str, Any], found: Terms, shape: Shape, op: Any, factors: Sequence[Any]
) -> tuple[Any, Any]:
    """Logarithms of the kernel's time in µs and of its utilisation of bandwidth, each of shape (algorithms, rows).

    Args:
        xp: the library of the arrays, numpy or torch.
        p: parameters of one network: `weight0`, `bias0`..., `op_bias`, `l2`.
        found: times and standardised features.
        shape: sizes and bounds of the network.
        op: index of the op, shape (rows,).
        factors: log factors on compute and memory time, numbers or of shape (rows,).
    """
    hidden = found.x
    for layer in range(shape.depth):
        hidden = hidden @ p[f"weight{layer}"] + p[f"bias{layer}"]
        hidden = hidden / (1.0 + xp.exp(-hidden))
    logits = hidden @ p[f"weight{shape.depth}"] + p[f"bias{shape.depth}"] + p["op_bias"][op]
    use_compute = log_sigmoid(xp, logits[..., 0]) + math.log(shape.compute_bound)
    span = shape.memory_high - shape.memory_low
    use_memory = xp.log(shape.memory_low + span * xp.exp(log_sigmoid(xp, logits[..., 1])))
    centre, steep = p["l2"]
    missed = log_sigmoid(
        xp,
        xp.exp(steep) * (found.per_l2 - centre),
    )
    from_dram = xp.logaddexp(
        missed,
        xp.zeros_like(missed) + math.log(1e-6),
    )
    memory = _norm(
        xp,
        shape.norm,
        found.dram + from_dram,
        found.l2,
    )
    compute_factor, memory_factor = factors
    kernel = _norm(
        xp,
        found.norm or shape.norm,
        found.arithmetic - use_compute + compute_factor,
        memory - use_memory + memory_factor,
    )
    if shape.tile_reads:
        # data that L2 holds is not read from DRAM again, whatever the network's output
        again = missed + log_sigmoid(xp, logits[..., 3]) + math.log(shape.tile_reads)
        kernel = _norm(
            xp,
            shape.norm,
            kernel,
            found.tiles + again + memory_factor,
        )
    if shape.thread_steps:
        kernel = _norm(
            xp,
            shape.norm,
            kernel,
            found.steps + logits[..., 2],
        )
    return kernel, use_memory


def log_latency_us(xp: Any, log_floor: Any, launch: Any, kernel: Any) -> Any:
    """Logarithm of the latency from those of the host's floor and of the kernel's time, of their shape.

    `launch` is the logit of the share of the floor that comes before the kernel.
    """
    before = xp.logaddexp(log_floor + log_sigmoid(xp, launch), kernel)
    return _norm(xp, FLOOR_SHARPNESS, log_floor, before)


def log_sigmoid(xp: Any, logits: Any) -> Any:
    """Logarithm of the logistic function, by numpy or torch."""
    return -xp.logaddexp(xp.zeros_like(logits), -logits)


def _norm(xp: Any, p: float, a: Any, b: Any) -> Any:
    """Logarithm of the p-norm of two times given by their logarithms."""
    return xp.logaddexp(p * a, p * b) / p


@lru_cache(maxsize=32)
def load_cached(path: Path) -> UtilisationModel:
    """`UtilisationModel.load`; each file is read once per process."""
    return UtilisationModel.load(path)
