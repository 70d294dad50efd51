"""The modules of a step: their paths and parameters, marks of their calls in a recording, and which the user has compiled."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.as_on_cuda.patches import replaced
from pipeline.errors import SteptimeWarning, name_of

if TYPE_CHECKING:
    from torch import nn

    from pipeline.workloads.training_step import Step

AS_WRITTEN = "torch.compile: predicted is the code as it is written"
"""What a captured step computes with (`Graph.computed`) whose modules the user has compiled, until the compiler was asked."""


@contextmanager
def module_calls_marked(paths: Mapping[nn.Module, str]) -> Iterator[Sequence[str]]:
    """While the body runs, calls of modules write their marks (`pipeline.graph.execution_trace.MODULE_MARK`).

    Args:
        paths: of the known modules; another one is named by its class, below the module that calls it.

    Yields:
        The paths of the modules that run now, the innermost last, after an empty one.
    """
    from torch import nn
    from torch.profiler import record_function

    usual = nn.Module.__call__
    running = [""]

    def mark() -> None:
        with record_function(f"## module {running[-1]} ##"):
            pass

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        running.append(paths.get(self) or f"{running[-1]}.{type(self).__name__}".removeprefix("."))
        mark()
        try:
            return usual(self, *args, **kwargs)
        finally:
            running.pop()
            mark()

    with replaced(nn.Module, __call__=call):
        yield running


def module_paths(models: Sequence[nn.Module]) -> dict[nn.Module, str]:
    """Path of every module of a step's models: the model's class, then the names of attributes (`ResNet.layer1.0.conv1`).

    A second model of a class has its number behind the class. A module with several names has the first, and a module that is
    compiled has the path of what it was.
    """
    paths: dict[nn.Module, str] = {}
    roots: dict[str, int] = {}
    for model in models:
        kind = type(getattr(model, "_orig_mod", model)).__name__
        roots[kind] = roots.get(kind, 0) + 1
        root = kind if roots[kind] == 1 else f"{kind}{roots[kind]}"
        for name, module in model.named_modules():
            parts = [root, *(part for part in name.split(".") if part not in ("", "_orig_mod"))]
            paths.setdefault(module, ".".join(parts))
    return paths


def held_parameters(paths: Mapping[nn.Module, str]) -> dict[str, int]:
    """Number of parameters of each module by path, without those of the modules in it; a shared one counts once."""
    seen: set[int] = set()
    held = {}
    for module, path in paths.items():
        mine = {id(weight): weight.numel() for weight in module.parameters(recurse=False)}
        held[path] = sum(size for weight, size in mine.items() if weight not in seen)
        seen |= set(mine)
    return held


def place_of(owner: Any, step: Step, paths: Mapping[nn.Module, str]) -> str | None:
    """The module that the user has compiled, by its path; empty for the step's own forward function, None for another function.

    Args:
        owner: as `pipeline.as_on_cuda.wrappers.compiled_calls` has it.
        step: the step that runs.
        paths: of its modules.
    """
    whole = getattr(step.forward, "_torchdynamo_orig_callable", None)
    return "" if owner is whole else paths.get(owner)


def compiled_by_user(owners: Sequence[Any], step: Step, paths: Mapping[nn.Module, str]) -> bool:
    """Whether the user has compiled modules, the forward function or optimizers of a step. Other functions are reported."""
    from pipeline.as_on_cuda.wrappers import updated_by

    known = [place_of(each, step, paths) is not None or bool(updated_by(each)) for each in owners]
    others = {
        name_of(each)
        for each, found in zip(owners, known, strict=True)
        if not found
        and "site-packages" not in inspect.getfile(getattr(each, "__code__", type(each)))
    }
    for name in sorted(others):
        warnings.warn(
            f"torch.compile({name}): predicted is the function as it is written; compile the module"
            " that calls it",
            SteptimeWarning,
            stacklevel=2,
        )
    if any(known):
        warnings.warn(AS_WRITTEN, SteptimeWarning, stacklevel=2)
    return any(known)
