"""Look-up of a GPU by name: a file under `config/gpu/`, or the device of this machine."""

from __future__ import annotations

from pipeline.hardware.local_device import LOCAL, local_device
from pipeline.hardware.spec import GpuSpec, load_gpu_file


def load_gpu(name: str) -> GpuSpec:
    """The spec of a GPU by name or alias, ignoring case; `local` is the device of this machine.

    Raises:
        UnknownNameError: no file has that name or alias; the message lists the names.
        ConfigError: a file is damaged or implausible.
    """
    return local_device() if name == LOCAL else load_gpu_file(name)
