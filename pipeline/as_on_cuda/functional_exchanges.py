"""Functional collectives: by them tensors that ranks share (DTensor, `parallelize_module`) exchange their parts.

Their operators return new tensors, and the first use of one waits for it (torch/distributed/_functional_collectives.py). On the
meta device PyTorch leaves out both: here a recording group records each collective, and the wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.recording_group import GROUPS
from pipeline.as_on_cuda.torch_names import FUNCTIONAL_COLLECTIVES, WRAP_RESULT, storage_id

OPERATORS = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
"""Functional operator -> the collective. The first two copy what they send (csrc/distributed/c10d/Functional.cpp)."""


@contextmanager
def functional_collectives_recorded() -> Iterator[None]:
    """While the body runs, functional collectives of recording groups are recorded, and the waits for their results."""
    functional = import_module(FUNCTIONAL_COLLECTIVES)
    operators: Any = torch.ops._c10d_functional
    started: dict[int, Any] = {}

    def recorded(name: str, op: str) -> Any:
        usual = getattr(operators, name).default

        def call(sent: Tensor, *options: Any) -> Tensor:
            sent = sent.trigger_wait() if hasattr(sent, "trigger_wait") else sent
            result: Tensor = usual(sent, *options)
            if group := GROUPS.get(options[-1]):
                started[storage_id(result)] = group.start(op, result, sent)
            return result

        return call

    def wait(result: Tensor) -> Tensor:
        if work := started.pop(storage_id(result), None):
            work.wait()
        return result

    def wrapped(result: Tensor) -> Any:
        if result.requires_grad:  # the wrapper would cut it off from autograd
            return wait(result)
        return functional.AsyncCollectiveTensor(result)

    calls = {name: recorded(name, op) for name, op in OPERATORS.items()} | {"wait_tensor": wait}
    for name, call in calls.items():  # dispatch modes look for the overload
        call.default = getattr(operators, name).default
    with (
        replaced(operators, **calls),
        replaced(functional, **{WRAP_RESULT: wrapped}),
    ):
        yield
