"""Autocast of CPU tensors by the rules of CUDA: the compiler traces CPU tensors, and casts what it finds in them.

PyTorch's lists for the CPU differ from those for CUDA: there, layer norm runs in half precision, and `cat` is cast. The
operators of both lists get CUDA's rules. This changes PyTorch for the whole process.
"""

from __future__ import annotations

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


@cache
def cast_as_on_cuda() -> Any:
    """Give autocast of CPU tensors CUDA's lists; once in a process. The result keeps them."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for schema in compiler("_dispatch_get_all_op_names")():
        if not schema.startswith("aten::"):
            continue
        name = schema.removeprefix("aten::")
        here, there = has_kernel(schema, ON_HOST), has_kernel(schema, ON_CUDA)
        if there and (rule := _rule(name.partition(".")[0], here)):
            library.impl(name, _casting(name, rule), ON_HOST, allow_override=True)
        elif here and not there and not _is_lowered_inside(name):
            fallthrough = torch.library.fallthrough_kernel
            library.impl(name, fallthrough, ON_HOST, allow_override=True)
    return library


def _is_lowered_inside(name: str) -> bool:
    """Whether CUDA has no rule for an overload (`conv2d.padding`) because it casts what this calls."""
    return name.partition(".")[0] in LOWER_NAMES.split()


def _rule(name: str, here: bool) -> Callable[[list[Tensor]], torch.dtype] | None:
    """The dtype to which an operator's arguments are cast; None where the CPU's own rule is the same."""
    if name in UPPER_NAMES.split():
        return lambda _: torch.float32
    if name in WIDEST_NAMES.split():
        return lambda tensors: max((t.dtype for t in tensors), key=lambda of: of.itemsize)
    if name in LOWER_NAMES.split() and not here:
        return lambda _: torch.get_autocast_dtype("cpu")
    return None


def _casting(name: str, rule: Callable[[list[Tensor]], torch.dtype]) -> Callable[..., Any]:
    """An operator whose arguments are cast."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    keys = torch.DispatchKeySet(torch.DispatchKey.AutocastCPU)

    def cast(*args: Any, **kwargs: Any) -> Any:
        floating = [
            each
            for each in tree_leaves((args, kwargs))
            if isinstance(each, Tensor) and each.dtype in (*HALF, torch.float32)
        ]
        wanted = rule(floating) if floating else None

        def converted(value: Any) -> Any:
            apart = isinstance(value, Tensor) and value.dtype in (*HALF, torch.float32)
            return value.to(wanted) if apart and value.dtype != wanted else value

        with compiler("_ExcludeDispatchKeyGuard")(keys):
            if wanted is not None:
                args, kwargs = tree_map(converted, (args, kwargs))
            return operator(*args, **kwargs)

    return cast


def cuda_means_host() -> Any:
    """While the body runs, a step's own `torch.autocast("cuda")` casts CPU tensors."""
    kind: Any = torch.amp.autocast_mode.autocast
    begin = kind.__init__

    def start(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return replaced(kind, __init__=start)
