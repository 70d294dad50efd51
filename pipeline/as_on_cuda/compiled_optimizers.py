"""Steps of optimizers that `torch.compile` has compiled, in closed form: what the compiler would find in minutes for a large model.

All updates of a parameter are one pass over the parameter, its gradient and its states. One kernel updates several parameters.
`tests/graph/test_compiled_step.py` compares with what the compiler lowers.
"""

from __future__ import annotations

from typing import Any

from pipeline.as_on_cuda.scheduled_kernels import Launch

UPDATES = {
    "SGD": (0, 4),
    "SGD with momentum": (1, 8),
    "Adam": (2, 12),
    "AdamW": (2, 13),
    "Adagrad": (1, 7),
    "RMSprop": (1, 8),
}
"""Optimizers -> tensors of a parameter's size that each keeps, and reads and writes that the compiler counts for each parameter."""

MOST_COUNTED = 250
"""Reads and writes of one kernel (`torch._inductor.config.combo_kernel_max_num_args` of PyTorch 2.13)."""

OTHERWISE = ("amsgrad", "centered", "fused")
"""Options of optimizers with other updates; `fused` calls the same kernel as without compiling."""


def update_of(optimizer: Any) -> list[Launch]:
    """The launches of an optimizer's compiled step; none where it is not known, which then counts as written.

    The host counts the steps. Parameters are those that the optimizer holds.
    """
    launches = []
    for group in optimizer.param_groups:
        kind = type(optimizer).__name__ + " with momentum" * bool(group.get("momentum"))
        if kind not in UPDATES or any(group.get(option) for option in OTHERWISE):
            return []
        states, counted = UPDATES[kind]
        trained = [weight for weight in group["params"] if weight.requires_grad]
        for first in range(0, len(trained), most := MOST_COUNTED // counted):
            weights = trained[first : first + most]
            size = sum(weight.nbytes for weight in weights)
            launches.append(
                Launch(
                    kind.replace(" ", "_"),
                    "optimizer",
                    read=(2 + states) * size,
                    written=(1 + states) * size,
                    rows=sum(weight.numel() for weight in weights),
                    dtype=weights[0].dtype,
                )
            )
    return launches
