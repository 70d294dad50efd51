"""Recognise operators that the device cannot run in the requested dtype, and report them in one line.

They are recognised by PyTorch's error message. The dtypes of an operator depend on the processor and on the build of
PyTorch: a fused LSTM in bf16 needs AVX-512, for example. PyTorch has no function to check this before, so the first run
of a step or of a kernel shows it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.errors import MeasurementError

if TYPE_CHECKING:
    import torch

UNSUPPORTED_MESSAGES = re.compile(
    r"not implemented for|could not create a primitive|could not run '|not supported|unsupported|"
    r"does(n't| not) support|only supports|no kernel image is available",
    re.IGNORECASE,
)
"""Messages of PyTorch and its libraries about an operator that the device does not have in this dtype. For example,
`not implemented for` comes from PyTorch's own kernels, `could not create a primitive` from oneDNN, and
`could not run '` from the dispatcher."""

CUDA_STATUS = re.compile(r"CUDA error|CU[A-Z]+_STATUS")
"""Error states of CUDA and its libraries. Their cause can be the dtype, the sizes or the device, so they are not taken
as an unsupported dtype."""


class UnsupportedByDeviceError(MeasurementError):
    """The device lacks an operator that the step or the kernel needs in its dtype."""


def is_unsupported(error: BaseException) -> bool:
    """Whether an error of PyTorch says that the device cannot run an operator in this dtype at all."""
    text = first_line(error)
    return isinstance(error, RuntimeError) and not CUDA_STATUS.search(text) and (
        isinstance(error, NotImplementedError) or UNSUPPORTED_MESSAGES.search(text) is not None
    )  # fmt: skip


def unsupported(what: str, dtype: str, device: torch.device, error: BaseException) -> UnsupportedByDeviceError:
    """The error in one line, with a remedy.

    Args:
        what: workload or kernel that did not run.
        dtype: requested number format.
        device: device on which it did not run.
        error: error that PyTorch raised.
    """
    remedy = "use another model or device" if dtype == "fp32" else "use model.dtype=fp32, another model or device"
    return UnsupportedByDeviceError(
        f"{what}: {device_name(device)} cannot run it in {dtype} ({first_line(error)}); {remedy}"
    )


@contextmanager
def reporting_unsupported(what: str, dtype: str, device: torch.device) -> Iterator[None]:
    """While the body runs `what`, report an operator that the device lacks in one line.

    Raises:
        UnsupportedByDeviceError: PyTorch says that the device cannot run an operator in this dtype.
    """
    try:
        yield
    except RuntimeError as error:
        if is_unsupported(error):
            raise unsupported(what, dtype, device, error) from error
        raise


def device_name(device: torch.device) -> str:
    """The device for a message: `this CPU (x86_64, AVX2)`, or the name of the GPU."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"this CPU ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"


def first_line(error: BaseException) -> str:
    """The first sentence of an error's first line, without PyTorch's advice on debugging."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.split(r"\.\s+(?=[A-Z])", line.strip(), maxsplit=1)[0].rstrip(".")
