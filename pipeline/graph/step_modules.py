"""The modules of a step: their paths and parameters, marks of their calls in a recording, and which the user has compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from pipeline.as_on_cuda.patches import replaced

if TYPE_CHECKING:
    from torch import nn

AS_WRITTEN = "torch.compile: predicted is the code as it is written"
"""What a captured step computes with (`Graph.computed`) whose modules the user has compiled, until the compiler was asked."""


@contextmanager
def module_calls_marked(
    paths: Mapping[nn.Module, str], note: Callable[[Any], object] = id
) -> Iterator[Sequence[str]]:
    """While the body runs, calls of modules write their marks (`pipeline.graph.execution_trace.MODULE_MARK`).

    Args:
        paths: of the known modules; another one is named by its class, below the module that calls it.
        note: is told what the user has compiled, call by call (`compiled_calls`); marks inside of such calls have their number.

    Yields:
        The paths of the modules that run now, the innermost last, after an empty one.
    """
    from torch import nn
    from torch.profiler import record_function

    from pipeline.as_on_cuda.wrappers import compiled_calls, updated_by

    usual = nn.Module.__call__
    running, number = [""], [""]

    def mark() -> None:
        with record_function(f"## module {running[-1]}{number[-1]} ##"):
            pass

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        running.append(paths.get(self) or f"{running[-1]}.{type(self).__name__}".removeprefix("."))
        mark()
        try:
            return usual(self, *args, **kwargs)
        finally:
            running.pop()
            mark()

    def begin(owner: Any, options: Any) -> None:
        note(owner)
        if updated_by(owner)[1]:
            number.append(f"@{next(numbers)}")
            mark()

    def end() -> None:
        number[1:] = []
        mark()

    numbers = count()
    with replaced(nn.Module, __call__=call), compiled_calls(begin, [], end):
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
