"""What the compiler would launch, as nodes of a graph. Loaded in the compiler's process alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

import pandas as pd

from pipeline.as_on_cuda.compiled_launches import READ, Compiled, Part
from pipeline.as_on_cuda.compiler_gpu import Target
from pipeline.as_on_cuda.scheduled_kernels import Launch
from pipeline.families.tensor_products import padding_pays
from pipeline.graph.compiled_functions import AS_GRAPH, BACKWARD, FORWARD, HOST_READ, TRITON, UPDATE
from pipeline.graph.normalise import normalise
from pipeline.graph.table import BACKWARD_THREAD, FORWARD_THREAD, Graph, Node, Tensor, write_nodes
from pipeline.hardware.find_gpu import list_gpus

NOT_IN_PATHS = ("_modules", "self", "_orig_mod")
"""Parts of the compiler's names of modules that are no names of a user's attributes."""

STACK = "___stack"
"""In the compiler's name of a module that waits on Python's stack across a graph break: which it is, is not known."""

SHOWN_OPERATORS = 4
"""Operators that the name of a fused kernel shows."""


def computes(part: Part) -> bool:
    """Whether a part is compiled code, not a value that the host reads."""
    return all(launch.name != READ for launch in part.launches)


def described(
    found: Compiled, paths: Mapping[Any, str], config: Mapping[str, Any], breaks: int
) -> Graph:
    """Launches as a graph: one node for each pass, with the launches inside.

    Args:
        found: what the compiler would launch.
        paths: of the step's modules.
        config: the configuration of the step.
        breaks: how often the compiler could not follow the code.
    """

    @cache
    def below(root: str) -> dict[str, str]:
        """Paths of the modules in one, by their names from it on."""
        found = [path for path in paths.values() if path.startswith(root)]
        return {path.removeprefix(root).partition(".")[2]: path for path in found}

    nodes: list[Node] = []
    known = not any(STACK in each for part in found.parts for each in part.modules)
    graphed = AS_GRAPH * ("triton.cudagraphs" in found.options)
    ran = [(call, name, part) for call, (name, parts) in enumerate(found.calls) for part in parts]
    updates = [(call, UPDATE, Part(launches=each)) for call, each in enumerate(found.updates)]
    met: set[str] = set()
    covered: set[str] = set()
    for phase, name, thread, calls in (
        ("forward", FORWARD, FORWARD_THREAD, ran),
        ("backward", BACKWARD, BACKWARD_THREAD, ran[::-1]),
        ("optimizer", FORWARD, FORWARD_THREAD, updates),
    ):
        for call, function, part in calls:
            launches = [each for each in part.launches if each.phase == phase]
            if not launches:
                continue
            holder, inside = len(nodes), below(paths.get(part.root, ""))
            has: dict[str, Any] = {"function": function, "call": call}
            for path in filter(None, (_path(each, inside) for each in part.modules)):
                covered.update(accumulate(path.split("."), "{}.{}".format))
            if phase == "backward":
                has["gradients"] = len({*part.weights} - met)
                met |= {*part.weights}
            named = name + graphed if computes(part) else HOST_READ
            nodes.append(Node(holder, named, None, holder, thread, phase, attributes=has))
            for each in launches:
                at, node = len(nodes), _node(each, inside)
                nodes.append(replace(node, node_id=at, order=at, parent_id=holder, thread=thread))
    return Graph(
        write_nodes(normalise(nodes, config)),
        warnings=tuple(_said(found, breaks)),
        computed={
            "graph_breaks": str(breaks),
            "calls": str(len(found.calls)),
            "left": "\n".join({*paths.values()} - covered if covered and breaks and known else ()),
        },
    )


def _said(found: Compiled, breaks: int) -> list[str]:
    """What a user is told about launches."""
    broken = (
        f"model.compile: {breaks} graph break{'s' * (breaks > 1)}: the compiler cannot follow"
        " the whole forward function (TORCH_LOGS=graph_breaks names the lines); between the"
        " compiled parts, waits of the host and modules of their own count as written, and"
        " other code is not counted"
    )
    said = [broken] if breaks else []
    if unread := sorted(found.options - {"triton.cudagraphs"}):
        said.append(f"torch.compile: predicted as without {', '.join(unread)}")
    return said


def padding(target: Target, tf32: bool) -> Callable[..., bool]:
    """Whether padding a product pays (`Target.pads`), on the first GPU of a kind by name; `tf32`: products run in it."""
    gpu = min(
        list_gpus(),
        key=lambda each: (
            abs(each.compute_capability - target.capability),
            abs(each.sms - target.sms),
        ),
    )

    def pays(dtype: Any, *sizes: Any) -> bool:
        plain, padded, transposed, copied = sizes
        table = pd.DataFrame([plain, padded], columns=["B", "M", "N", "K"])
        name = "tf32" if tf32 else _dtype(dtype)
        table = table.assign(dtype=name, trans_a=transposed[0], trans_b=transposed[1])
        return padding_pays(table, gpu, copied)

    return pays


def _node(launch: Launch, paths: Mapping[str, str]) -> Node:
    """A launch as an operator of a graph."""
    module = next(filter(None, (_path(name, paths) for name in launch.module)), None)
    if launch.inputs is None:
        names = launch.name.split("+")
        more = ["..."] * (len(names) > SHOWN_OPERATORS)
        name = TRITON + "_".join([*names[:SHOWN_OPERATORS], *more])
        shown = ("read", "written", "rows", "width", "op")
        attributes = {name: getattr(launch, name) for name in shown}
        attributes["dtype"] = _dtype(launch.dtype)
        return Node(0, name, phase=launch.phase, attributes=attributes, module=module)
    inputs, values = zip(*map(_argument, launch.inputs), strict=True) if launch.inputs else ((), ())
    outputs = tuple(filter(None, (tensor for tensor, _ in map(_argument, launch.outputs))))
    name = "aten::randint" if launch.name == "aten::low_out" else launch.name
    node = Node(0, name, phase=launch.phase, module=module)
    return replace(node, inputs=inputs, values=values, outputs=outputs)


def _argument(value: Any) -> tuple[Any, Any]:
    """An argument of an operator as a tensor of the graph, a list of them, or a plain value."""
    several = isinstance(value, list | tuple)
    tensors = [
        Tensor(tuple(each.shape), _dtype(each.dtype), tuple(each.stride()))
        for each in (value if several else [value])
        if hasattr(each, "untyped_storage")
    ]
    if tensors:
        return (tuple(tensors) if several else tensors[0]), None
    plain = isinstance(value, bool | int | float | str | list | tuple | None)
    return None, value if plain else str(value)


def _dtype(dtype: Any) -> str:
    short = {"float": "fp", "bfloat": "bf", "complex": "complex"}
    name = str(dtype).removeprefix("torch.")
    kind = name.rstrip("0123456789")
    return short.get(kind, kind) + name[len(kind) :]


def _path(name: str, paths: Mapping[str, str]) -> str | None:
    """The path of a module by the compiler's name of it, such as `L['model'].layer1.0.conv1`."""
    parts = name.replace("]", "").replace("[", ".").replace("'", "").split(".")
    parts = [part for part in parts if part not in NOT_IN_PATHS]
    for first in range(1, len(parts) + 1):
        if (path := paths.get(".".join(parts[first:]))) is not None:
            return path
    return None
