"""Errors of PyTorch or of the user's code, while a step is built or run, as one line that names the user's own line."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, InputError, SteptimeError
from pipeline.question.options import NAMED_BY
from pipeline.workloads.user_steps import shown_target

SIZE_ERRORS = (
    ValueError,
    RuntimeError,
    IndexError,
    AssertionError,
    TypeError,
    MemoryError,
    ArithmeticError,
)
"""Exceptions that PyTorch and `transformers` raise if the sizes of a model contradict each other."""

ADVICE = (
    (
        r"with CUDA enabled|requires CUDA|dummy base class|NVIDIA driver|CUDA error",
        (
            "create modules and tensors on the `device` that the function receives, without CUDA"
            " graphs (predict.cuda_graph=true predicts them)"
        ),
    ),
    (
        r"not on the expected device|same device|expected device cpu but got meta|on device meta",
        (
            "a module or tensor was created on the CPU: create modules inside `with"
            " torch.device(device):`, and tensors in a step with device=x.device"
        ),
    ),
    (r"FSDP", "give the module itself, because the step of one GPU is predicted"),
    (
        r"process group|NCCL|environment variable",
        "begin the process group in the step: torch.distributed.init_process_group('nccl')",
    ),
    (r"FlexAttention", "write it as F.scaled_dot_product_attention"),
    (
        r"torch\.nonzero|masked_select|nms:",
        (
            "give the share that is true, model.picked=0.5: it selects elements by a mask, whose"
            " values the meta device does not have"
        ),
    ),
    (
        r"item\(\) cannot be called|Cannot copy out of meta|data-dependent|_local_scalar_dense",
        (
            "it reads values of tensors, which the meta device does not have; docs/workloads.md"
            " lists what may be read"
        ),
    ),
    (r"bincount", "give minlength=, the number of its entries"),
    (r"without output_size", "give output_size=, the number of rows of its result"),
    (r"accelerator device when", "name the device as a text, such as f'cuda:{rank}'"),
    (
        r"_unique|unique_dim|unique_consecutive",
        "the size of its result depends on data, which the meta device does not have",
    ),
    (r"\bmeta\b|Meta(?!\w*Type)", "docs/workloads.md lists what a step may not do"),
)
"""Pattern of an error message -> advice, for messages that give none; the first pattern that matches is used."""

REMEDIES = (
    (
        r"grad can be implicitly created only for scalar outputs|no attribute 'backward'",
        "loss must return one number, such as .mean() or .sum() of what it returns now",
    ),
    (r"does not require grad", "loss must return a tensor that depends on trainable parameters"),
    (
        r"TypeError: .*positional arguments?\b",
        "a Step calls forward(*batch) and loss(output, *batch), with the tensors of one batch",
    ),
)
"""Pattern of an error's type and message -> what to change in the user's code, for errors that CUDA raises as well."""

SIZES_OF_MODELS = (
    "image_size",
    "frames",
    "seq_len",
    "audio_seconds",
    "attention",
    "checkpointing",
    "lora_targets",
)
"""Options of models of libraries which a model may refuse."""

MAX_MESSAGE = 160
"""Maximum length, in characters, of the part of a library's message that is shown (its first sentences)."""


LIBRARY_FOLDERS = ("site-packages", "dist-packages")
"""Folders in which libraries are installed: in an environment, in the user's home, or by Debian."""


def explain_error(config: Mapping[str, Any], error: BaseException) -> SteptimeError:
    """Convert an exception, raised while a step was built or run, to an error message for users.

    Args:
        config: the configuration of the workload.
        error: the exception.
    """
    reason = " ".join((str(error).splitlines() or [""])[0].split())
    if isinstance(error, MemoryError) or "can't allocate memory" in reason:
        return ConfigError(
            "batch_size: the inputs of one batch do not fit into this machine's memory, which says"
            " nothing of the GPU's; choose a smaller batch_size"
        )
    if config.get("architecture") in NAMED_BY:
        return _library_error(config, error, reason)
    if config.get("architecture") == "custom":
        said = next(iter(getattr(error, "__notes__", ())), "")
        advice = _advice(reason)
        where = place_in_user_code(error)
        kind = type(error).__name__
        what = f"{kind}: {_short(reason)}{where}"
        if advice:
            what = f"its step cannot be captured without a GPU: {advice} ({what})"
        else:
            remedies = (
                text for pattern, text in REMEDIES if re.search(pattern, f"{kind}: {reason}")
            )
            said = said or next(remedies, "")
            what = f"its code fails: {what}{f' ({said})' if said else ''}"
        return InputError(f"{shown_target(config.get('target'))}: {what}")
    return ConfigError(
        f"model={config.get('name')}: these sizes contradict each other ({type(error).__name__}:"
        f" {reason})"
    )


def _library_error(config: Mapping[str, Any], error: BaseException, reason: str) -> InputError:
    """The message for a model of a library: the options that may be its cause, and the line of the library."""
    model = "config" if config.get("architecture") == "transformers" else "name"
    asked = [f"model.{key}={config[key]}" for key in (model, *SIZES_OF_MODELS) if config.get(key)]
    advice = _advice(reason)
    what = f"{type(error).__name__}: {_short(reason)}{place_in_user_code(error)}"
    what = f"cannot be captured without a GPU: {advice} ({what})" if advice else f"refused: {what}"
    return InputError(f"{' '.join(asked)}: {what}")


def _advice(reason: str) -> str:
    """What to do about an error that only a capture without a GPU raises; empty for others."""
    return next((text for pattern, text in ADVICE if re.search(pattern, reason)), "")


def _short(reason: str) -> str:
    """Shorten a message to whole sentences within `MAX_MESSAGE` characters, or else to whole words of the first one."""
    if len(reason) <= MAX_MESSAGE:
        return reason
    end = reason.rfind(". ", 0, MAX_MESSAGE)
    return reason[: end + 1] if end > 0 else reason[: reason.rfind(" ", 0, MAX_MESSAGE)] + " ..."


def place_in_user_code(error: BaseException) -> str:
    """Text such as ` in my_module.py, line 7`: the innermost line of the user's own code.

    The line of the library that it calls is added, unless that library is PyTorch. Without a line of the user's own code
    (a step from an installed package), only the library's line is given. Empty if there is neither, or if the message
    itself names the line (syntax errors).
    """
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [number for number, each in enumerate(frames) if _is_own(each.filename)]
    below = frames[own[-1] + 1 :] if own else frames
    library = [each for each in below if _in_library(each.filename) not in ("", "torch")]
    deeper = (
        f"{_below_library_folder(library[-1].filename)}, line {library[-1].lineno}"
        if library
        else ""
    )
    if not own:
        return f" in {deeper}" if deeper else ""
    file = frames[own[-1]].filename
    place = (
        f" in {'a notebook cell' if _is_cell(file) else Path(file).name}, line"
        f" {frames[own[-1]].lineno}"
    )
    return f"{place} ({deeper})" if deeper else place


def _is_own(filename: str) -> bool:
    """Whether a file is the user's own code: it is neither installed, nor Python's, nor this project's."""
    others = (str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix, "<")
    return _is_cell(filename) or (not _in_library(filename) and not filename.startswith(others))


def _is_cell(filename: str) -> bool:
    """Whether code comes from a cell of a notebook, or from IPython's prompt."""
    return "ipykernel_" in filename or filename.startswith("<ipython-input")


def _in_library(filename: str) -> str:
    """The installed package that a file belongs to; empty for other files."""
    return (
        Path(_below_library_folder(filename)).parts[0]
        if set(LIBRARY_FOLDERS) & {*Path(filename).parts}
        else ""
    )


def _below_library_folder(filename: str) -> str:
    """The path of a library's file below the folder of all libraries, such as `timm/models/_factory.py`."""
    parts = Path(filename).parts
    below = max((i for i, part in enumerate(parts) if part in LIBRARY_FOLDERS), default=-1) + 1
    return "/".join(parts[below:])
