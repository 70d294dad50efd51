"""What PyTorch's compiler would launch on a GPU: its stages up to the kernels of a graph, without the code of any kernel.

`compiling` is a backend for `torch.compile`. It traces without decompositions on CPU tensors without data, puts the graph of both
passes on the GPU, and runs Inductor's decompositions, rewrites, partition, lowering and fusion there. The scheduler's nodes are
the launches. Instead of compiled code, the traced graph runs without data.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.compiler_gpu import CUDA, Target, gpu_of_compiler
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.scheduled_kernels import Launch, describe
from pipeline.as_on_cuda.torch_names import compiler, storage_id, tree_map

HOST = torch.device("cpu")

READ = "aten::_local_scalar_dense"
"""The operator with which the host reads a value."""


@dataclass(eq=False)
class Part:
    """Code that is compiled alone: a function, or what is between two graph breaks.

    Attributes:
        weights: names of the weights that it trains.
        launches: of its forward pass, and of its backward pass.
        modules: names of the modules whose operators it computes, as the compiler has them: from `root` on.
        root: the module whose code it is; None outside of all.
        moved: bytes that each pass moves by the compiler's own count.
    """

    weights: tuple[str, ...] = ()
    launches: list[Launch] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)
    root: Any = None
    moved: dict[str, int] = field(default_factory=dict)


@dataclass
class Compiled:
    """What was compiled so far.

    Attributes:
        parts: in the order in which they were compiled.
        calls: of compiled functions, in their order: the name of each, and the parts that it ran, with values that it read.
        updates: launches of each compiled step of an optimizer.
        running: not empty while a compiled function runs.
    """

    parts: list[Part] = field(default_factory=list)
    calls: list[tuple[str, list[Part]]] = field(default_factory=list)
    updates: list[list[Launch]] = field(default_factory=list)
    running: list[Any] = field(default_factory=list)

    def called(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose calls are noted under a name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, []))
            self.running.append(function)
            result = function(*args, **kwargs)
            self.running.pop()
            return result

        return call

    def read(self, value: Tensor) -> None:
        """Note that the host waits for a value, if compiled code reads it between its parts."""
        if self.running and self.calls:
            read = Launch(READ, "forward", inputs=[value])
            self.calls[-1][1].append(Part(launches=[read]))

    @property
    def launches(self) -> list[Launch]:
        """All launches."""
        return [launch for part in self.parts for launch in part.launches]


class _ScheduledError(Exception):
    """The launches of a graph are known: nothing further is compiled."""


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """While the body runs, the compiler keeps nothing, starts no process, and is asked anew."""
    with (
        compiler("_inductor.config").patch(force_disable_caches=True, compile_threads=1),
        compiler("_functorch.config").patch(enable_autograd_cache=False),
    ):
        yield


def compiling(
    target: Target, found: Compiled, bucket_bytes: int | None = None
) -> Callable[..., Any]:
    """A backend for `torch.compile`, which appends what a GPU would be given to `found`.

    Args:
        target: the GPU.
        found: what was compiled before.
        bucket_bytes: size of the buckets of `DistributedDataParallel`, at which PyTorch splits what it wraps.
    """
    stages = compiler("compile_fx")
    for room in ("joint_graph", "post_grad", "pre_grad"):
        compiler(room).lazy_init()  # patterns are traced with autograd, on the CPU
    rewrite = getattr(stages, "_recursive_joint_graph_passes")  # noqa: B009

    def rewritten(graph: Any, *args: Any, **kwargs: Any) -> Any:
        mode = _mode_of(node.meta.get("val") for node in graph.graph.nodes)
        with gpu_of_compiler(target):
            _to_gpu(graph, mode)
            return rewrite(_decomposed(graph, mode), *args, **kwargs)

    def backend(graph: Any, inputs: Sequence[Any], **_: Any) -> Any:
        part = Part(_weights(graph), modules=_modules(graph), root=_running_module())
        found.parts.append(part)

        def inner(graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
            return _scheduled(graph, inputs, options, target, part)

        with replaced(stages, _recursive_joint_graph_passes=rewritten):
            run = stages.compile_fx(graph, inputs, inner_compile=inner, decompositions={})

        def noted(*args: Any) -> Any:
            results = run(*args)
            if compiler("TracingContext").try_get() is not None:  # asked for its results' strides
                mode = compiler("detect_fake_mode")(args)
                return tree_map(lambda each: _placed(each, mode, HOST), results)
            if found.calls:
                found.calls[-1][1].append(part)
            return results

        return noted

    if bucket_bytes is None:
        return backend
    split: Callable[..., Any] = compiler("DDPOptimizer")(bucket_bytes, backend).compile_fn
    return split


def _weights(graph: Any) -> tuple[str, ...]:
    """Names of the weights that a graph of the forward pass trains."""
    given = {
        str(node.target): node.meta.get("example_value")
        for node in graph.graph.nodes
        if node.op == "placeholder"
    }
    return tuple(
        name
        for name, value in given.items()
        if isinstance(value, torch.nn.Parameter) and value.requires_grad
    )


def _modules(graph: Any) -> set[str]:
    """Names of the modules of a graph's operators."""
    stacks = (node.meta.get("nn_module_stack") for node in graph.graph.nodes)
    return {str([*stack.values()][-1][0]) for stack in stacks if stack}


def _running_module() -> Any:
    """The innermost module that is being called."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_wrapped_call_impl":
        frame = frame.f_back
    return frame and frame.f_locals["self"]


def _scheduled(
    graph: Any, inputs: Sequence[Any], options: dict[str, Any], target: Target, part: Part
) -> Any:
    """Lower one pass, note its launches, and return what runs in its place."""
    stages, lowering = compiler("compile_fx"), compiler("GraphLowering")
    mode = compiler("detect_fake_mode")(inputs) or compiler("V").fake_mode
    phase = "backward" if options.get("is_backward") else "forward"
    run = _on_host(graph)
    stages.view_to_reshape(run)
    _propagate(run, graph, inputs, mode)

    def stop(lowered: Any) -> None:
        lowered.init_wrapper_code()
        lowered._update_scheduler()
        with compiler("V").set_graph_handler(lowered):
            for node in lowered.scheduler.nodes:
                part.launches += describe(node, phase)
            sizes = [node.get_read_write_buffers_sizes() for node in lowered.scheduler.nodes]
            part.moved[phase] = sum(sizes)
        _tell_strides(lowered)
        raise _ScheduledError

    with (
        gpu_of_compiler(target),
        replaced(stages, fake_tensor_prop=lambda *_, **__: mode),
        replaced(lowering, compile_to_module=stop),
    ):
        _to_gpu(graph, mode)
        moved = [_placed(each, mode, CUDA) for each in inputs]
        try:
            stages.compile_fx_inner(graph, moved, **options)
        except Exception:  # the compiler wraps what stops it
            if phase not in part.moved:
                raise
    return compiler("make_boxed_func")(run.forward)


def _propagate(run: Any, graph: Any, inputs: Sequence[Any], mode: Any) -> None:
    """Write into a graph the strides that its tensors have; those of a backward pass are known only when it is lowered."""
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    here = [_placed(each, mode, HOST) for each in inputs]
    FakeTensorProp(run, mode=mode).propagate_dont_convert_inputs(*here)
    for node, other in zip(graph.graph.nodes, run.graph.nodes, strict=True):
        if "val" in other.meta:
            node.meta["val"] = other.meta["val"]


def _tell_strides(lowered: Any) -> None:
    """Tell the backward pass the strides that the results of the forward pass really have."""
    context = compiler("TracingContext").try_get()
    if context is None or context.output_strides is None or context.output_strides:
        return
    for result in lowered.graph_outputs or ():
        tensor = isinstance(result, compiler("ir").IRNode) and result.has_tensor_output()
        strides = tuple(map(int, result.get_layout().stride)) if tensor else None
        context.output_strides.append(strides)


def _decomposed(graph: Any, mode: Any) -> Any:
    """Inductor's decompositions of a graph of both passes; some of them ask for the device."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    for node in graph.graph.nodes:  # a new trace keeps this name alone
        if of_forward := node.meta.get("fwd_nn_module_stack"):
            node.meta["nn_module_stack"] = of_forward
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    table = {**compiler("select_decomp_table")(), torch.ops.aten.bernoulli.p: _drawn}
    with preserve_node_meta(), torch.no_grad(), mode:
        traced: Any = make_fx(
            torch.fx.Interpreter(graph).run, decomposition_table=table, _allow_non_fake_inputs=True
        )(*[node.meta["val"] for node in places])
    new = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, old in zip(new, places, strict=True):
        node.name = node.target = old.target
        node.meta.update(old.meta)
    traced.graph.output_node().meta.update(graph.graph.output_node().meta)
    traced.recompile()
    traced.meta = graph.meta
    return traced


def _drawn(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    """Zeros and ones in the dtype of a tensor: Inductor decomposes the operator in place, which this trace has not."""
    return (torch.rand_like(x, dtype=torch.float32) < p).to(x.dtype)


def _mode_of(values: Iterable[Any]) -> Any:
    return compiler("detect_fake_mode")([each for each in values if isinstance(each, Tensor)])


def _placed(value: Any, mode: Any, device: torch.device) -> Any:
    """A tensor without data on another device; other values as they are."""
    if not isinstance(value, compiler("FakeTensor")) or value.device == device:
        return value
    with torch.no_grad(), _no_modes():
        bare = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        return compiler("FakeTensor")(mode, bare, device)


def _no_modes() -> Any:
    return compiler("_disable_current_modes")()


def _renamed(graph: Any, device: torch.device) -> None:
    """Name another device in the arguments of a graph's operators."""

    def rename(value: Any) -> Any:
        return device if isinstance(value, torch.device) else value

    for node in graph.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, rename)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, rename)


def _to_gpu(graph: Any, mode: Any) -> None:
    """Put a graph on the GPU, in place; tensors that share memory still do."""
    storages: dict[int, Any] = {}

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device.type != "cpu":
            return value
        size, key = int(value.untyped_storage().nbytes()), storage_id(value)
        with torch.no_grad(), _no_modes():
            if key not in storages:
                storages[key] = torch.empty(size, dtype=torch.uint8, device="meta")
            bare = torch.empty(0, dtype=value.dtype, device="meta").set_(
                storages[key].untyped_storage(),
                value.storage_offset(),
                value.size(),
                value.stride(),
            )
            return compiler("FakeTensor")(mode, bare, CUDA)

    _renamed(graph, CUDA)
    for node in graph.graph.nodes:
        for key in ("val", "example_value"):
            if key in node.meta:
                node.meta[key] = tree_map(move, node.meta[key])
        if node.op == "get_attr" and isinstance(getattr(graph, node.target, None), Tensor):
            setattr(graph, node.target, move(getattr(graph, node.target)))
    graph.recompile()


def _on_host(graph: Any) -> Any:
    """A copy of a graph that runs on CPU tensors."""
    run = copy.deepcopy(graph)
    _renamed(run, HOST)
    for node in run.graph.nodes:
        held = getattr(run, node.target, None) if node.op == "get_attr" else None
        if isinstance(held, compiler("FakeTensor")):
            setattr(run, node.target, torch.empty_like(held, device="cpu"))
    run.recompile()
    return run
