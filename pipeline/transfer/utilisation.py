"""Kernel times on a GPU from its spec file alone: bounded utilisation of sustained throughput and bandwidth.

The time of a kernel is the p-norm of three times:
- arithmetic over the sustained throughput;
- traffic over the sustained bandwidth of DRAM, or of L2 where the working set fits;
- thread steps over the resident threads of the device. For softmax and layer norm it is thread steps over the warp
  instructions that the schedulers issue.

Each time is divided by a utilisation. A small network computes it from device-normalised features (`gpu_features.py`).
For softmax its logit is linear in a few features. Bandwidth, clock and throughput are divisors
only, so a higher value never predicts a slower kernel.

Some families can be computed in several ways, and a smooth minimum over the ways gives their time:
- convolutions: one network for each route of cuDNN (`ways.py`);
- batched products: one time for each tile of cuBLAS (`ways.py`).

The latency that event timing measures is a smooth maximum of two times. One is the host's floor, the other the launch
offset plus the kernel.

Inference uses NumPy; training is in `evaluation/training/`. Several networks (seeds) are averaged in log time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

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

Array = npt.NDArray[np.float64]

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
        choice: exponent of the smooth minimum over the ways to compute a call, for families with several ways.
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
        taken: npt.NDArray[np.int64] | None = None,
    ) -> tuple[Array, Array]:
        """Kernel time and latency in µs, each of shape (rows,), averaged over the networks in log time.

        Args:
            calls: rows of this family (`op` and dims).
            gpu: spec of the GPU.
            floors_us: latency floor by op, µs; that of the unknown host by default.
            correction: log factors fitted to probes or samples of the GPU.
            taken: index of the way in `terms` that each call is known to take, -1 where unknown; shape (rows,).
        """
        correction = correction or Correction()
        call_terms = terms(self.family, calls, gpu)
        op = pd.Series(calls["op"].astype(str)).map({name: i for i, name in enumerate(self.ops)})
        # an op without samples is treated as the first op of its family, which is the most frequent one
        code = np.asarray(op.fillna(0), dtype=np.int64)
        floors = self.floors_us if floors_us is None else floors_us
        usual = float(np.median(list(floors.values())))
        floor = np.array(
            [floors.get(name, usual) for name in calls["op"].astype(str)], dtype=np.float64
        )
        log_floor = np.log(floor) + correction.floor
        kernels, latencies = [], []
        for network in range(len(self.parameters["launch"])):
            ways = np.stack(
                [self._log_kernel(network, way, code, correction) for way in call_terms.values()]
            )
            kernel = _norm(-self.shape.choice, *ways) if len(ways) > 1 else ways[0]
            if taken is not None:
                shown = ways[np.maximum(taken, 0), np.arange(len(taken))]
                kernel = np.where((taken >= 0) & np.isfinite(shown), shown, kernel)
            start = log_floor + _log_sigmoid(
                self.parameters["launch"][network].astype(np.float64)[code]
            )
            kernels.append(kernel)
            latencies.append(_norm(FLOOR_SHARPNESS, log_floor, np.logaddexp(start, kernel)))
        return np.exp(np.mean(kernels, axis=0)), np.exp(np.mean(latencies, axis=0))

    def _log_kernel(
        self, network: int, call_terms: Terms, code: npt.NDArray[np.int64], correction: Correction
    ) -> Array:
        """Logarithm of the kernel's time in µs when computed in one way, shape (rows,)."""
        prefix = call_terms.network
        p = {
            name.removeprefix(prefix): value
            for name, value in self.parameters.items()
            if name.startswith(prefix)
        }
        shape = self.shape
        hidden = np.clip((call_terms.x - p["mean"]) / p["scale"], -FEATURE_CLIP, FEATURE_CLIP)
        for layer in range(shape.depth):
            hidden = hidden @ p[f"weight{layer}"][network] + p[f"bias{layer}"][network]
            hidden = hidden / (1.0 + np.exp(-hidden))
        last = shape.depth
        z = (
            hidden @ p[f"weight{last}"][network]
            + p[f"bias{last}"][network]
            + p["op_bias"][network][code]
        )
        use_compute = _log_sigmoid(z[:, 0]) + np.log(shape.compute_bound)
        span = shape.memory_high - shape.memory_low
        use_memory = np.log(shape.memory_low + span * np.exp(_log_sigmoid(z[:, 1])))
        centre, steep = (float(v) for v in p["l2"][network])
        missed = _log_sigmoid(np.exp(steep) * (call_terms.per_l2 - centre))
        memory = _norm(
            shape.norm, call_terms.dram + np.logaddexp(missed, np.log(1e-6)), call_terms.l2
        )
        log_kernel = _norm(
            shape.norm if call_terms.norm is None else call_terms.norm,
            call_terms.arithmetic - use_compute + correction.compute,
            memory - use_memory + correction.memory,
        )
        if shape.tile_reads:
            # data that L2 holds is not read from DRAM again, whatever the network's output
            again = missed + _log_sigmoid(z[:, 3]) + np.log(shape.tile_reads)
            log_kernel = _norm(shape.norm, log_kernel, call_terms.tiles + again + correction.memory)
        return (
            _norm(shape.norm, log_kernel, call_terms.steps + z[:, 2])
            if shape.thread_steps
            else log_kernel
        )

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
                [inputs, *[shape.width] * shape.depth, shape.heads], prefix, ("networks",)
            )
        return expected


def _log_sigmoid(z: Array) -> Array:
    return np.asarray(-np.logaddexp(0.0, -z))


def _norm(p: float, *logs: Array) -> Array:
    """Logarithm of the p-norm of times given by their logarithms."""
    total = p * logs[0]
    for other in logs[1:]:
        total = np.logaddexp(total, p * other)
    return np.asarray(total / p)


@lru_cache(maxsize=32)
def load_cached(path: Path) -> UtilisationModel:
    """`UtilisationModel.load`; each file is read once per process."""
    return UtilisationModel.load(path)
