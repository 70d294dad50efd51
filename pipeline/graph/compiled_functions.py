"""Compiled functions in the graph of a step: launches of the compiler's kernels in place of the operators that it has compiled.

A backward pass gives its gradients when it ends. So with `DistributedDataParallel`, each part that the compiler makes of a model is
a function of its own, and the exchange of its gradients begins behind it. With `fully_shard`, each repeated block is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.errors import InputError
from pipeline.graph.device_calls import PRODUCTS, map_calls
from pipeline.graph.execution_trace import AUTOGRAD
from pipeline.graph.normalise import renumber
from pipeline.graph.step_modules import AS_WRITTEN
from pipeline.graph.table import Graph, Node, Tensor, write_nodes
from pipeline.hardware.rank_layout import is_wrapper

TRITON = "triton::"
"""Beginning of the names of fused kernels in a graph."""

FORWARD, BACKWARD = "CompiledFunction", f"{AUTOGRAD}: CompiledFunctionBackward"
"""Nodes under which a trace records the launches of compiled code."""

AS_GRAPH = ", one CUDA graph"
"""End of the names of these nodes where the user asked for CUDA graphs (`mode="reduce-overhead"`)."""

UPDATE = "optimizer"
"""Name of the compiled steps of optimizers, among compiled functions."""

HOST_READ = "aten::item"
"""Name of a node between compiled parts: the host waits for a value."""

ADDS_UP = "AccumulateGrad"
"""Node of autograd that takes over or adds a gradient; it stays beside compiled code, with the exchange that it starts."""

HOOK = "RegisterPostBackwardFunction"
"""Node of FSDP2 behind whose backward pass it scatters the gradients of a block."""

EXCHANGES = ("nccl:", "c10d::")
"""Beginnings of the names of collectives and of waits for them."""

MOST_LOST = 0.1
"""Largest share of a step's arithmetic that may be between compiled parts, where it is not counted."""


def spliced(graph: Graph, launches: Graph) -> Graph:
    """A step's graph with launches of compiled code in place of its forward function and of that function's backward pass.

    With gradients of several parts of a batch, each part runs the same launches.

    Raises:
        InputError: much of the step is between the parts that the compiler can follow, or the forward function exchanges.
    """
    nodes, inside = graph.nodes(), launches.nodes()
    step = replace(graph, table=write_nodes(renumber(_replaced(nodes, launches))))
    holders = {node.node_id: node for node in inside if node.parent_id is None}
    counts = Counter(
        (holders[node.parent_id].phase == UPDATE, node.name.startswith(TRITON))
        for node in inside
        if node.parent_id is not None and holders[node.parent_id].name != HOST_READ
    )
    called = sum(each.phase == "forward" and each.name != HOST_READ for each in holders.values())
    breaks = launches.computed["graph_breaks"]
    both = any(node.phase == "backward" for node in inside)
    said = (
        f"{counts[False, True]} Triton kernels and {counts[False, False]} library calls of the"
        f" forward{' and backward' * both} pass, {breaks} graph break{'s' * (breaks != '1')}"
    )
    if called > 1 + int(breaks):
        said += f", in {called} functions"
    if any(node.name.endswith(AS_GRAPH) for node in holders.values()):
        said += AS_GRAPH
    if updates := counts[True, True]:
        said += f"; {updates} Triton kernel{'s' * (updates > 1)} of the optimizer"
    kept, written = _arithmetic(step), _arithmetic(graph)
    if breaks != "0" and written - kept > MOST_LOST * written:
        raise InputError(
            f"model.compile=true: the compiler cannot follow the whole forward function, and"
            f" {1 - kept / written:.0%} of the arithmetic is outside the parts that it can; leave"
            " it out"
        )
    return replace(
        step,
        warnings=(
            *(text for text in graph.warnings if text != AS_WRITTEN),
            *launches.warnings,
            "model.compile: the memory is that of the step that is not compiled",
        ),
        computed={**graph.computed, "compiled": said},
    )


def _replaced(nodes: Sequence[Node], launches: Graph) -> list[Node]:
    """Nodes of a step with compiled functions in place of what they compute."""
    functions = _Functions(launches, nodes)
    compiled = {node.node_id: of for node in nodes if (of := functions.of(node)) is not None}
    passes = [
        ((node.phase, functions.named(node)), node.node_id)
        for node in nodes
        if node.node_id in compiled or _adds_up(node)
    ]
    ends = {
        node_id
        for (of, node_id), (later, _) in zip(passes, [*passes[1:], (None, 0)], strict=True)
        if of != later
    }
    hooks = functions.hooks(nodes, compiled)
    kept: list[Node] = []
    gone: set[int] = {node.node_id for inside in hooks.values() for node in inside}
    running = None
    for node in nodes:
        if node.node_id in compiled:
            gone.add(node.node_id)
            kept += hooks.get(node.node_id, ())
            if running != (running := (node.phase, compiled[node.node_id])):
                kept += functions.begin(*running)
        elif node.node_id in gone:
            continue
        elif node.parent_id in gone:
            gone.add(node.node_id)
            if node.name.startswith(EXCHANGES):
                raise InputError(
                    f"model.compile=true: the forward function exchanges between GPUs"
                    f" ({node.name} in {node.module}), which is not compiled; leave it out"
                )
            continue
        elif _adds_up(node):
            kept += functions.taken_over()
        if node.node_id in ends:
            kept += functions.rest()
        kept += [] if node.node_id in compiled else [node]
    functions.check_calls()
    return kept


class _Functions:
    """The compiled functions of a step, which are begun one after the other.

    A function has parts, which the compiler made of it; in a forward pass nothing waits between them.

    Attributes:
        gradients: gradients that the last begun part gives and that nobody has taken over.
    """

    def __init__(self, launches: Graph, step: Sequence[Node]) -> None:
        nodes = launches.nodes()
        self._count = int(launches.computed.get("calls", 1)) or 1
        self._left = launches.computed.get("left", "").split("\n")
        self._fresh, self._size = 1 + max((node.node_id for node in step), default=0), len(nodes)
        in_loss, in_forward = (
            {node.module for node in step if node.phase == phase} for phase in ("loss", "forward")
        )
        self._of_loss = in_loss - in_forward
        self._calls: dict[tuple[str, str], dict[int, list[list[Node]]]] = {}
        for node in nodes:
            if node.parent_id is None:
                has = node.attributes or {}
                key = node.phase, str(has.get("function", ""))
                parts = self._calls.setdefault(key, {}).setdefault(has.get("call", 0), [])
                parts.append([])
            parts[-1].append(node)
        self._names = {name for _, name in self._calls}
        self._phase = ""
        self._begun: Counter[tuple[str, str]] = Counter()
        self._waiting: list[list[Node]] = []
        self._gradients = 0

    def named(self, node: Node) -> str | None:
        """The compiled function of an operator, by the number of its call, or by its module; that of a whole step has no name."""
        path = node.module or ""
        number = str(node.attributes.get("compiled", -1) % self._count)
        if "compiled" in node.attributes and number in self._names and node.phase != UPDATE:
            path = number
        while path and path not in self._names:
            path = path.rpartition(".")[0]
        return path if path in self._names else None

    def of(self, node: Node) -> str | None:
        """The compiled function that an outermost operator is a part of; None where it stays."""
        name = self.named(node)
        if node.parent_id is not None or name is None or _exchanges(node, name):
            return None
        if node.phase == UPDATE:
            return name if name == UPDATE else None
        if node.module in self._left:
            return None
        if node.phase == "forward" or (name and node.phase == "loss"):
            return name
        computes = node.phase == "backward" and node.name.startswith(AUTOGRAD)
        inside = computes and (name or node.module not in self._of_loss)
        return name if inside and not _adds_up(node) else None

    def hooks(self, nodes: Sequence[Node], compiled: Mapping[int, str]) -> dict[int, list[Node]]:
        """What hooks do before a compiled block's backward pass begins, by the node of autograd that calls them.

        They gather the weights of this block or of the next; the recorder places them in the block before.
        """
        found: dict[int, list[Node]] = {}
        caller: dict[int, int] = {}
        for node in nodes:
            if (parent := node.parent_id) is None:
                continue
            if parent in compiled and self.named(node) != compiled[parent]:
                caller[node.node_id] = parent
                found.setdefault(parent, []).append(replace(node, parent_id=None))
            elif parent in caller:
                caller[node.node_id] = caller[parent]
                found[caller[parent]].append(node)
        return found

    def begin(self, phase: str, name: str) -> list[Node]:
        """The launches with which a pass of a function begins."""
        key = "forward" if phase == "loss" else phase, name
        self._phase = phase
        calls = [*self._calls.get(key, {0: []}).values()]
        self._waiting = list(calls[self._begun[key] % len(calls)])
        self._begun[key] += 1
        self._fresh += self._size
        return self._next() if phase == "backward" else self.rest()

    def taken_over(self) -> list[Node]:
        """Before a gradient is taken over: the part that gives it, if it has not begun."""
        found = [] if self._gradients else self._next()
        self._gradients -= 1
        return found

    def rest(self) -> list[Node]:
        """All parts of the pass that are left."""
        found: list[Node] = []
        while self._waiting:
            found += self._next()
        return found

    def check_calls(self) -> None:
        """Refuse a step that calls a function more or less often than the compiler saw."""
        for (phase, name), count in self._begun.items():
            if count % len(self._calls.get((phase, name), [0])):
                raise InputError(
                    f"model.compile=true: the {phase} pass of {name or 'the model'} is spread over"
                    f" {count} places of the step, which is not predicted; leave it out"
                )

    def _next(self) -> list[Node]:
        if not self._waiting:
            return []
        part = self._waiting.pop(0)
        self._gradients = (part[0].attributes or {}).get("gradients", 0)
        return [replace(_shifted(node, self._fresh), phase=self._phase) for node in part]


def _arithmetic(graph: Graph) -> float:
    """FLOPs of the products of a step."""
    calls = map_calls(graph)
    return float(calls.loc[calls["family"].isin(PRODUCTS), "flops"].sum())


def _exchanges(node: Node, name: str) -> bool:
    """Whether an operator of a module sends, gathers or waits for weights and buffers, which is not compiled with the module."""
    of_wrapper = is_wrapper(node.module)
    if of_wrapper or name == "":
        return of_wrapper
    flat = (
        bool(node.inputs) and isinstance(node.inputs[0], Tensor) and len(node.inputs[0].shape) == 1
    )
    return (
        (flat and node.name == "aten::view")
        or node.name.startswith((*EXCHANGES, "fsdp::"))
        or HOOK in node.name
        or "stream" in (node.attributes or {})
    )


def _adds_up(node: Node) -> bool:
    return node.parent_id is None and node.phase == "backward" and ADDS_UP in node.name


def _shifted(node: Node, by: int) -> Node:
    parent = None if node.parent_id is None else node.parent_id + by
    return replace(node, node_id=node.node_id + by, parent_id=parent)
