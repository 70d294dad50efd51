"""Autocast of CPU tensors by the rules of CUDA: the compiler traces CPU tensors, and casts what it finds in them.

PyTorch's lists for the CPU differ from those for CUDA: there, layer norm runs in half precision, and `cat` is cast. The
operators of both lists get CUDA's rules. This changes PyTorch for the whole process.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.mixed_precision import LOWER_NAMES, UPPER_NAMES, WIDEST_NAMES
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.torch_names import compiler, has_kernel, tree_leaves, tree_map

HALF = (torch.float16, torch.bfloat16)

ON_HOST, ON_CUDA = "AutocastCPU", "AutocastCUDA"


RULES: dict[str, Callable[[list[Tensor]], torch.dtype]] = {
    **dict.fromkeys(UPPER_NAMES.split(), lambda _: torch.float32),
    **dict.fromkeys(
        WIDEST_NAMES.split(),
        lambda found: max((t.dtype for t in found), key=lambda of: of.itemsize),
    ),
    **dict.fromkeys(LOWER_NAMES.split(), lambda _: torch.get_autocast_dtype("cpu")),
}
"""Operators -> the dtype to which CUDA's autocast casts their tensors."""


@cache
def cast_as_on_cuda() -> Any:
    """Give autocast of CPU tensors CUDA's lists, and contexts for CUDA the host; once in a process. The result keeps the lists."""
    for each in gc.get_objects():
        if issubclass(type(each), torch.autocast) and hasattr(each, "entered"):  # in a capture
            each.device, each._enabled = "cpu", getattr(each, "lower", True) is not None
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for schema in compiler("_dispatch_get_all_op_names")():
        if not schema.startswith("aten::"):
            continue
        name = schema.removeprefix("aten::")
        operator = name.partition(".")[0]
        here, there = has_kernel(schema, ON_HOST), has_kernel(schema, ON_CUDA)
        lowered = operator in LOWER_NAMES.split()
        if there and operator in RULES and not (here and lowered):
            library.impl(name, _casting(name, RULES[operator]), ON_HOST, allow_override=True)
        elif here and not there and not lowered:  # overloads of those (`conv2d.padding`) call them
            library.impl(name, torch.library.fallthrough_kernel, ON_HOST, allow_override=True)
    return library


def _casting(name: str, rule: Callable[[list[Tensor]], torch.dtype]) -> Callable[..., Any]:
    """An operator whose arguments are cast."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    keys = torch.DispatchKeySet(torch.DispatchKey.AutocastCPU)

    def casts(value: Any) -> bool:
        return isinstance(value, Tensor) and value.dtype in (*HALF, torch.float32)

    def cast(*args: Any, **kwargs: Any) -> Any:
        found = [*filter(casts, tree_leaves((args, kwargs)))]
        with compiler("_ExcludeDispatchKeyGuard")(keys):
            if found:
                to = rule(found)
                args, kwargs = tree_map(lambda x: x.to(to) if casts(x) else x, (args, kwargs))
            return operator(*args, **kwargs)

    return cast


def cuda_means_host() -> Any:
    """While the body runs, a step's own `torch.autocast("cuda")` casts CPU tensors."""
    kind: Any = torch.amp.autocast_mode.autocast
    begin = kind.__init__

    def start(  # the compiler binds these names
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        begin(self, device_type, dtype, enabled, cache_enabled)

    return replaced(kind, __init__=start)
