"""What is recorded of the measured device: name, caches, versions, and clocks as `nvidia-smi` reads them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.hardware.find_gpu import load_gpu

if TYPE_CHECKING:
    import torch


DEFAULT_CPU_CACHE_BYTES = 32 << 20
"""Bytes of last-level cache that are assumed if the system does not report a size."""


VERSIONED_PACKAGES = (
    "numpy",
    "pandas",
    "pyarrow",
    "torchvision",
    "transformers",
    "triton",
    "nvidia-cuda-cupti",
)
"""Packages whose versions are recorded in the provenance; the profiler records kernels with CUPTI."""


SMI_SECONDS = 8
"""Seconds in which `nvidia-smi` must answer."""


_SILENT: list[str] = []
"""The error that replaces its answer, after it once did not answer in time."""


def cache_bytes(device: torch.device) -> int:
    """Size of the cache in front of DRAM: L2 of a GPU, last level of a CPU."""
    if device.type == "cuda":
        import torch

        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20))
    files = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    try:
        sizes = [int(path.read_text().strip().removesuffix("K")) << 10 for path in files]
    except (OSError, ValueError):
        sizes = []
    return max(sizes, default=DEFAULT_CPU_CACHE_BYTES)


def name_of_gpu(driver_name: str) -> str:
    """The project's name of a GPU, from the name that its driver reports.

    A GPU without a file under `config/gpu/` is named after its driver string: `NVIDIA GeForce RTX 4090` is `RTX4090`.
    """
    try:
        return str(load_gpu(driver_name).name)
    except (
        Exception
    ):  # no PyYAML on a bare GPU machine, or no file for a new GPU: use the driver's name
        short = re.sub(r"\b(NVIDIA|Tesla|GeForce)\b", "", driver_name)
        return re.sub(r"[^A-Za-z0-9.-]+", "", short) or "gpu"


def gpu_state() -> dict[str, str]:
    """Current clocks, power, temperature and load from `nvidia-smi`; `error` if it fails.

    If `nvidia-smi` once did not answer in time, it is not called again, because every unit would wait as long.
    """
    if _SILENT:
        return {"error": _SILENT[0]}
    # nvidia-smi accepts the index or UUID in CUDA_VISIBLE_DEVICES
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip() or "0"
    core = (
        "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,"
        "power.limit,power.draw,temperature.gpu,pstate"
    )
    more = (
        "utilization.gpu,memory.total,memory.used,"
        "pcie.link.gen.current,pcie.link.width.current,mig.mode.current"
    )
    state: dict[str, str] = {}
    for keys in (f"{core},{more}", core):  # some drivers refuse some fields
        command = [
            "nvidia-smi",
            f"--query-gpu={keys}",
            "--format=csv,noheader,nounits",
            f"--id={gpu}",
        ]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=SMI_SECONDS, check=True
            ).stdout
            return dict(
                zip(keys.split(","), (field.strip() for field in answer.split(",")), strict=False)
            )
        except subprocess.TimeoutExpired:
            _SILENT.append(f"nvidia-smi did not answer in {SMI_SECONDS} s")
            return {"error": _SILENT[0]}
        except (OSError, subprocess.SubprocessError) as error:
            state = {"error": str(error)[:200]}
    return state


def describe(device: torch.device) -> dict[str, Any]:
    """Hardware and versions, for provenance."""
    import torch

    facts: dict[str, Any] = {
        "gpu": "cpu",
        "device": device.type,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "cpu": _cpu_model(),
        "torch_threads": torch.get_num_threads(),
        "cache_bytes": cache_bytes(device),
    }
    facts |= {name: _version(name) for name in VERSIONED_PACKAGES}
    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": name_of_gpu(str(p.name)),
            "driver_name": p.name,
            "sms": p.multi_processor_count,
            "memory_bytes": p.total_memory,
            "capability": f"{p.major}.{p.minor}",
        }
        facts["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return facts


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    with suppress(OSError):
        if match := re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text()):
            return match.group(1)
    return platform.processor()
