"""The user's own workload: `model=custom model.target=my_module:make_step`.

The options that its step reads are recorded, so that unread ones can be reported.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.as_on_cuda.torchvision_operators import declare_torchvision_operators
from pipeline.errors import (
    ConfigError,
    InputError,
    SteptimeWarning,
    collected_warnings,
    did_you_mean,
)
from pipeline.question.options import workload_values
from pipeline.workloads.training_step import Step
from pipeline.workloads.user_errors import place_in_user_code
from pipeline.workloads.user_steps import maker_of, shown_target

MAX_NAMED = 20
"""Largest number of functions of a module that a message names."""

OWN = ("options", "seq_len")
"""Keys of `model=custom` that only the user's function reads."""

OF_STEP = (
    "optimizer",
    "dtype",
    "precision",
    "memory_format",
    "foreach",
    "set_to_none",
    "copies",
    "read_loss",
    "mode",
)
"""Keys that `Step` reads, if the user's function gives it the configuration."""

HOW = "docs/workloads.md#a-step-in-a-file shows such a function"
"""Where the function of a step is explained."""

TORCHREC = (
    "torchrec needs fbgemm_gpu, whose CPU build 1.9 does not load with PyTorch 2.13: write its"
    " exchanges as all_to_all_single, or take model=dlrm_dcnv2 parallel=hybrid with your tables"
)
"""What to do where TorchRec cannot be imported."""

_SAID_AT_IMPORT: dict[str, list[str]] = {}
"""Warnings of the import of each module, which are repeated whenever one of its functions is used."""


def build(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step with the function named by `target`, called with (config, batch_size, device).

    The module is searched in the current folder, then on Python's path. Its own imports are searched on the path first:
    a file in the current folder must not replace a library of the same name.

    Raises:
        ConfigError: `target` is missing or does not have the form module:function.
        InputError: the module or function cannot be loaded, or the function takes other arguments, or it returns no
            `Step`, or its step does not use `device` or `batch_size`.
    """
    target = config.get("target")
    declare_torchvision_operators()
    function = maker_of(target) or _function(target)
    if isinstance(config, ReadOptions):
        config.read.clear()  # what was read before this was read to check it
    step = _made(function, target, config, batch_size, device)
    _check_device(step, target, device)
    if not _has_size(step, batch_size):
        other = _made(function, target, config, 2 * batch_size, device)
        if _shapes(other) != _shapes(step):
            return _made(
                function, target, config, batch_size, device
            )  # a given module is in one step at a time
        raise InputError(
            f"{shown_target(target)}: batch_size={batch_size} changes nothing: its batches hold"
            f" tensors of shape {', '.join(map(str, _shapes(step)))}; make them of batch_size"
            " samples, or give the size that they have"
        )
    return step


def _function(target: object) -> Callable[..., Any]:
    module_name, _, function_name = str(target or "").partition(":")
    if not module_name or not function_name:
        raise ConfigError(
            f"model.target={target}: give module:function, such as my_module:make_step"
        )
    if module_name.endswith(".py") or "/" in module_name:
        raise ConfigError(
            f"model.target={target}: give the module's name as in an import, not its file:"
            f" {Path(module_name).stem}:{function_name}, from its folder or with that folder on"
            " PYTHONPATH"
        )
    module = _module(module_name, target)
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if function is None or not callable(function):
        own = [
            name
            for name, each in vars(module).items()
            if inspect.isfunction(each) and each.__module__ == module.__name__
        ]
        what = "has no" if function is None else "defines no function"
        choices = (
            f": {did_you_mean(function_name, own)}it defines {', '.join(own[:MAX_NAMED])}"
            if own
            else ""
        )
        raise InputError(f"model.target={target}: {module_name} {what} {function_name}{choices}")
    return function


def _module(name: str, target: object) -> ModuleType:
    here = str(Path.cwd())
    try:
        with collected_warnings() as said:
            module = _imported(name, here)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"model.target={target}: no module {error.name!r} on the path or in {here}"
            ) from None
        of_torchrec = error.name in ("torchrec", "fbgemm_gpu")
        advice = TORCHREC if of_torchrec else "install it, or put its folder on PYTHONPATH"
        raise InputError(
            f"model.target={target}: no module {error.name!r}, which it"
            f" imports{place_in_user_code(error)}: {advice}"
        ) from None
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        what += place_in_user_code(error) + (f"; {TORCHREC}" if "fbgemm" in what else "")
        raise InputError(f"model.target={target}: {name} cannot be imported: {what}") from error
    for text in _SAID_AT_IMPORT.setdefault(name, said):
        warnings.warn(text, SteptimeWarning, stacklevel=2)
    return module


def _made(
    function: Callable[..., Any],
    target: object,
    config: Mapping[str, Any],
    batch_size: int,
    device: str,
) -> Step:
    """Call the user's function."""
    try:
        inspect.signature(function).bind(config, batch_size, device)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(
            f"{shown_target(target)}: it is called as {name}(config, batch_size, device), and is"
            f" defined as {name}{inspect.signature(function)} ({error}); {HOW}"
        ) from None
    except ValueError:  # a function of a compiled module has no signature
        pass
    step = function(config, batch_size, device)
    if not isinstance(step, Step):
        raise InputError(
            f"{shown_target(target)}: returned {type(step).__name__}, not a steptime.Step; {HOW}"
        )
    return step


def _check_device(step: Step, target: object, device: str) -> None:
    """Check that the modules of a captured step are on the device that the function was given."""
    places = {parameter.device.type for parameter in step.parameters()}
    if device == "meta" and places == {"cpu"}:
        raise InputError(
            f"{shown_target(target)}: all modules are on the CPU: create them inside `with"
            " torch.device(device):`"
        )


def _has_size(step: Step, batch_size: int) -> bool:
    """Whether a tensor of the batch has `batch_size` as its leading size, or the batch holds no tensors with a size."""
    sized = [shape for shape in _shapes(step) if shape]
    return not sized or any(shape[0] == batch_size for shape in sized)


def _shapes(step: Step) -> list[tuple[int, ...]]:
    """Shapes of the tensors of the first batch."""
    return [tuple(tensor.shape) for tensor in step.pool[0]]


def _imported(name: str, folder: str) -> ModuleType:
    """Import the user's module from a folder, or else from Python's path; the folder stays at the end of the path."""
    declare_torchvision_operators()
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


class MissingOptionError(KeyError):
    """The user's step reads an option that was not given; the message says how to give it."""

    def __str__(self) -> str:
        return str(self.args[0])


class ReadOptions(dict[str, Any]):
    """A dict that remembers which of its keys were read; nested mappings remember theirs.

    Iteration (`**options`, `items()`, a copy) counts as reading every key.

    Args:
        values: the configuration.
        name: what comes before a key in an override.
    """

    def __init__(self, values: Mapping[str, Any], name: str = "model") -> None:
        super().__init__(
            {
                key: ReadOptions(each, f"{name}.{key}") if isinstance(each, Mapping) else each
                for key, each in values.items()
            }
        )
        self.name = name
        self.read: set[str] = set()

    def __missing__(self, key: str) -> Any:
        close = did_you_mean(key, map(str, super().keys()))
        if self.name == "model":
            raise MissingOptionError(
                f"there is no {self.name}.{key}: {close}a step's own options are in"
                " config['options']"
            )
        given = f"{close}give {self.name}.{key}=..., or read it with .get({key!r}, default)"
        raise MissingOptionError(f"no option {key!r} was given: {given}")

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, which counts as read."""
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key, which counts as read."""
        self.read.add(key)
        return super().pop(key, *default)

    def __iter__(self) -> Iterator[str]:
        self.read.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        """All keys, which count as read."""
        self.read.update(super().keys())
        return super().keys()

    def values(self) -> Any:
        """All values, which count as read."""
        self.read.update(super().keys())
        return super().values()

    def items(self) -> Any:
        """All keys and values, which count as read."""
        self.read.update(super().keys())
        return super().items()

    def unread(self, prefix: str = "") -> list[str]:
        """Dotted names of the keys that nothing has read; a nested mapping is one name if nothing read it."""
        found: list[str] = []
        for key, value in dict.items(self):
            if key not in self.read:
                found.append(prefix + key)
            elif isinstance(value, ReadOptions):
                found += value.unread(f"{prefix}{key}.")
        return found


@lru_cache(maxsize=1)
def usual_values() -> Mapping[str, Any]:
    """The values of `config/model/custom.yaml`; an option with such a value was not given."""
    return workload_values("custom")


def unread_options(config: ReadOptions) -> list[str]:
    """Names, as in an override, of the options that were given for the user's step and that it never read."""
    usual = usual_values()
    given = [key for key in OWN if dict.get(config, key) not in (None, {})]
    given += [key for key in OF_STEP if dict.get(config, key) not in (None, usual.get(key))]
    return [f"model.{key}" for key in config.unread() if key.partition(".")[0] in given]
