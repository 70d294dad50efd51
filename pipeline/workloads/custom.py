"""The user's own workload: `model=custom model.target=my_module:make_step`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, InputError
from pipeline.workloads.training_step import Step


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """What the function named by `target` returns for (config, batch_size, device).

    The module is looked for on Python's path and in the current folder.

    Raises:
        ConfigError: `target` is missing or not of the form module:function.
        InputError: the module or function cannot be loaded, or returns no `Step`.
    """
    target = config.get("target")
    module_name, _, function_name = str(target or "").partition(":")
    if not module_name or not function_name:
        raise ConfigError(f"model.target={target}: give module:function, such as my_module:make_step")
    if module_name.endswith(".py") or "/" in module_name:
        raise ConfigError(
            f"model.target={target}: give the module's name as in an import, not its file: "
            f"{Path(module_name).stem}:{function_name}, from its folder or with that folder on PYTHONPATH"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        raise InputError(f"model.target={target}: no module {error.name!r} on the path or in {here}") from None
    except AttributeError:
        raise InputError(f"model.target={target}: {module_name} has no {function_name}") from None
    step = function(config, batch_size, device)
    if not isinstance(step, Step):
        raise InputError(
            f"model.target={target}: returned {type(step).__name__}, not pipeline.workloads.training_step.Step"
        )
    return step
