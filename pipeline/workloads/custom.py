"""The user's own workload: `model=custom model.target=my_module:make_step`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.errors import ConfigError, InputError
from pipeline.workloads.training_step import Step


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step with the function named by `target`, called with (config, batch_size, device).

    The module is searched in the current folder, then on Python's path. Its own imports are searched on the path first:
    a file in the current folder must not replace a library of the same name.

    Raises:
        ConfigError: `target` is missing or does not have the form module:function.
        InputError: the module or function cannot be loaded, or the function does not return a `Step`.
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
    try:
        function = getattr(_imported(module_name, here), function_name)
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


def _imported(name: str, folder: str) -> ModuleType:
    """Import the user's module from a folder, or else from Python's path; the folder stays at the end of the path."""
    if folder not in sys.path:
        sys.path.append(folder)
    top = name.partition(".")[0]
    spec = None if top in sys.modules else PathFinder.find_spec(top, [folder])
    if spec is not None and spec.loader is not None:
        module = sys.modules[top] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[top]
            raise
    return importlib.import_module(name)
