"""Converts errors of PyTorch or of the user's code, for a step that cannot be built or run, to one line with advice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError, InputError, SteptimeError
from pipeline.workloads.user_code import place_in_user_code

ADVICE = (
    (r"with CUDA enabled|requires CUDA|dummy base class|NVIDIA driver",
     "create modules and tensors on the `device` that the function receives, without streams or CUDA graphs"),
    (r"not on the expected device|same device|expected device cpu but got meta|on device meta",
     "a module or tensor was created on the CPU: create modules inside `with torch.device(device):`, and tensors in a "
     "step with device=x.device"),
    (r"FSDP", "give the module itself, because the step of one GPU is predicted"),
    (r"process group", "remove torch.distributed, because the step of one GPU is predicted"),
    (r"saved tensor hooks", "torch.func.grad and similar functions cannot be captured; give the module and a loss"),
    (r"FlexAttention", "write it as F.scaled_dot_product_attention"),
    (r"torch\.nonzero|masked_select",
     "it selects elements by a mask, whose values the meta device does not have; give the share that is true, "
     "model.picked=0.5"),
    (r"item\(\) cannot be called|Cannot copy out of meta|data-dependent|_local_scalar_dense",
     "it reads values of tensors, which the meta device does not have; docs/workloads.md lists what may be read"),
    (r"_unique|unique_dim|bincount|unique_consecutive",
     "the size of its result depends on data, which the meta device does not have"),
    (r"\bmeta\b|Meta", "docs/workloads.md lists what a step may not do"),
)  # fmt: skip
"""Pattern of an error message -> advice, for messages that give none; the first pattern that matches is used."""

REMEDIES = (
    (r"grad can be implicitly created only for scalar outputs",
     "loss must return one number, such as .mean() or .sum() of what it returns now"),
    (r"does not require grad", "loss must return a tensor that depends on trainable parameters"),
    (r"TypeError: .*positional arguments?\b",
     "a Step calls forward(*batch) and loss(output, *batch), with the tensors of one batch"),
)  # fmt: skip
"""Pattern of an error's type and message -> what to change in the user's code, for errors that CUDA raises as well."""

MAX_MESSAGE = 160
"""Maximum length, in characters, of the part of a library's message that is shown (its first sentences)."""


def explain_error(config: Mapping[str, Any], error: BaseException) -> SteptimeError:
    """Convert an exception, raised while a step was built or run, to an error message for users.

    Args:
        config: the configuration of the workload.
        error: the exception.
    """
    reason = " ".join((str(error).splitlines() or [""])[0].split())
    if isinstance(error, MemoryError) or "can't allocate memory" in reason:
        return ConfigError(
            "batch_size: the inputs of one batch do not fit into this machine's memory; choose a smaller batch_size"
        )
    if config.get("architecture") == "custom":
        advice = next((text for pattern, text in ADVICE if re.search(pattern, reason)), "")
        where, kind = place_in_user_code(error), type(error).__name__
        what = "its step cannot be captured without a GPU" if advice else "its code fails"
        advice = advice or next((text for pattern, text in REMEDIES if re.search(pattern, f"{kind}: {reason}")), "")
        return InputError(
            f"model.target={config.get('target')}: {what}: {kind}: {_short(reason)}{where}"
            f"{f' ({advice})' if advice else ''}"
        )
    return ConfigError(
        f"model={config.get('name')}: these sizes contradict each other ({type(error).__name__}: {reason})"
    )


def _short(reason: str) -> str:
    """Shorten a message to whole sentences within `MAX_MESSAGE` characters, or else to whole words of the first one."""
    if len(reason) <= MAX_MESSAGE:
        return reason
    end = reason.rfind(". ", 0, MAX_MESSAGE)
    return reason[: end + 1] if end > 0 else reason[: reason.rfind(" ", 0, MAX_MESSAGE)] + " ..."
