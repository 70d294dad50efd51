"""What PyTorch, or the user's own code, says of a step that cannot be made or run, as one line with what to do."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, InputError, SteptimeError

ADVICE = (
    (r"with CUDA enabled|requires CUDA|dummy base class|NVIDIA driver",
     "make modules and tensors on the `device` that the function is given, and no streams or CUDA graphs"),
    (r"FSDP", "give the module itself: what is predicted is one GPU's step"),
    (r"process group", "leave torch.distributed out: what is predicted is one GPU's step"),
    (r"saved tensor hooks", "torch.func.grad and its like are not captured: give the module and a loss"),
    (r"FlexAttention", "write it as F.scaled_dot_product_attention"),
    (r"torch\.nonzero|masked_select",
     "it picks elements by truth values, which the meta device does not have: say what share of them is true, "
     "model.picked=0.5"),
    (r"item\(\) cannot be called|Cannot copy out of meta|data-dependent|_local_scalar_dense",
     "it reads values of tensors, which the meta device does not have: docs/workloads.md says which it may"),
    (r"_unique|unique_dim|bincount|unique_consecutive",
     "the size of its result is data, which the meta device does not have"),
)  # fmt: skip
"""What to do about errors whose own words do not say it: the first whose pattern they match."""

DOCUMENTED = "docs/workloads.md says what a step may not do"

LONGEST = 160
"""Characters of a library's message that are shown: the first sentences."""


def explained(config: Mapping[str, Any], error: BaseException) -> SteptimeError:
    """The error for users that stands for what went wrong while a step was made or run.

    Args:
        config: the workload's.
        error: what was raised.
    """
    reason = " ".join((str(error).splitlines() or [""])[0].split())
    if isinstance(error, MemoryError) or "can't allocate memory" in reason:
        return ConfigError(
            "batch_size: one batch's inputs are more than this machine's memory holds; take a smaller one"
        )
    if config.get("architecture") == "custom":
        advice = next((text for pattern, text in ADVICE if re.search(pattern, reason)), DOCUMENTED)
        return InputError(
            f"model.target={config.get('target')}: its step fails on the meta device with {type(error).__name__}: "
            f"{_short(reason)}{_place(error)} ({advice})"
        )
    return ConfigError(
        f"model={config.get('name')}: these sizes do not fit together ({type(error).__name__}: {reason})"
    )


def _short(reason: str) -> str:
    """Whole sentences of a message up to `LONGEST` characters, or as many words of its first."""
    if len(reason) <= LONGEST:
        return reason
    end = reason.rfind(". ", 0, LONGEST)
    return reason[: end + 1] if end > 0 else reason[: reason.rfind(" ", 0, LONGEST)] + " ..."


def _place(error: BaseException) -> str:
    """` in my_module.py, line 7`: the innermost line of the user's own code, and that of the library which it calls, unless
    it is PyTorch; empty where there is none.
    """
    ours = (str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix, "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith(ours)]
    if not own:
        return ""
    below = frames[max(i for i, each in enumerate(frames) if each is own[-1]) + 1 :]
    library = [each for each in below if "site-packages" in each.filename and not _of_torch(each.filename)]
    deeper = f" ({Path(library[-1].filename).name}, line {library[-1].lineno})" if library else ""
    return f" in {Path(own[-1].filename).name}, line {own[-1].lineno}{deeper}"


def _of_torch(filename: str) -> bool:
    return f"{Path('site-packages', 'torch')}{Path('/')}" in filename
