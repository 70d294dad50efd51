"""What PyTorch's compiler would launch on a GPU: its stages up to the kernels of a graph, without the code of any kernel.

`compiling` is a backend for `torch.compile`. It traces without decompositions on CPU tensors without data, puts the graph of both
passes on the GPU, and runs Inductor's decompositions, rewrites, partition, lowering and fusion there. The scheduler's nodes are
the launches. Instead of compiled code, the traced graph runs without data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.compiler_gpu import CUDA, Target, gpu_of_compiler
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.scheduled_kernels import Launch, describe, module_names
from pipeline.as_on_cuda.torch_names import compiler, tree_map

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
    """

    weights: tuple[str, ...] = ()
    launches: list[Launch] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)
    root: Any = None


@dataclass
class Compiled:
    """What was compiled so far.

    Attributes:
        parts: in the order in which they were compiled.
        calls: of compiled functions, in their order: the name of each, and the parts that it ran, with values that it read.
        updates: launches of each compiled step of an optimizer.
        options: names of the compiler's options that the user has set, and steps of optimizers whose launches are not known.
        running: not empty while a compiled function runs.
    """

    parts: list[Part] = field(default_factory=list)
    calls: list[tuple[str, list[Part]]] = field(default_factory=list)
    updates: list[list[Launch]] = field(default_factory=list)
    options: set[str] = field(default_factory=set)
    running: list[Any] = field(default_factory=list)

    def read(self, value: Tensor) -> None:
        """Note that the host waits for a value, if compiled code reads it between its parts."""
        if self.running and self.calls:
            read = Launch(READ, "forward", inputs=[value])
            self.calls[-1][1].append(Part(launches=[read]))


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """While the body runs, the compiler keeps nothing, starts no process, and is asked anew."""
    with (
        compiler("_inductor.config").patch(force_disable_caches=True, compile_threads=1),
        compiler("_functorch.config").patch(enable_autograd_cache=False),
        compiler("_dynamo.config").patch(
            automatic_dynamic_shapes=False, run_gc_after_compile=False
        ),
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
        mode = _mode_of(node.meta.get("val") for node in _inputs(graph))
        with gpu_of_compiler(target):
            return rewrite(_decomposed(graph, mode), *args, **kwargs)

    def backend(graph: Any, inputs: Sequence[Any], **_: Any) -> Any:
        part = Part(
            _weights(graph), modules={*module_names(graph.graph.nodes)}, root=_running_module()
        )
        found.parts.append(part)

        def inner(graph: Any, inputs: Sequence[Any], **options: Any) -> Any:
            return _scheduled(graph, inputs, options, target, part)

        with replaced(stages, _recursive_joint_graph_passes=rewritten):
            run = stages.compile_fx(graph, inputs, inner_compile=inner, decompositions={})

        def noted(*args: Any) -> Any:
            results = run(*args)
            if compiler("TracingContext").try_get() is not None:  # asked for its results' strides
                return tree_map(lambda each: _placed(each, _mode_of(args), HOST), results)
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
    given = {str(node.target): node.meta.get("example_value") for node in _inputs(graph)}
    return tuple(
        name
        for name, value in given.items()
        if isinstance(value, torch.nn.Parameter) and value.requires_grad
    )


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
    mode = _mode_of(inputs) or compiler("V").fake_mode
    phase = "backward" if options.get("is_backward") else "forward"
    results = torch.fx.node.map_arg(
        graph.graph.output_node().args[0], lambda node: node.meta.get("val")
    )

    def run(*args: Any) -> list[Any]:
        return [_placed(each, _mode_of(args), HOST) for each in results]

    def stop(lowered: Any) -> Any:
        """In place of the code: note the kernels, and let the results be computed without data."""
        lowered.init_wrapper_code()
        lowered._update_scheduler()
        with compiler("V").set_graph_handler(lowered):
            for node in lowered.scheduler.nodes:
                part.launches += describe(node, phase)
        return SimpleNamespace(call=run)

    with gpu_of_compiler(target), replaced(lowering, compile_to_module=stop):
        stages.compile_fx_inner(graph, [_placed(each, mode, CUDA) for each in inputs], **options)
    return compiler("make_boxed_func")(run)


def _decomposed(graph: Any, mode: Any) -> Any:
    """A graph of both passes on the GPU, with Inductor's decompositions, some of which ask for the device."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    def rename(value: Any) -> Any:
        return CUDA if isinstance(value, torch.device) else value

    for node in graph.graph.nodes:
        if of_forward := node.meta.get("fwd_nn_module_stack"):  # a new trace keeps this name alone
            node.meta["nn_module_stack"] = of_forward
        node.args, node.kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), rename)
        if node.op == "get_attr":
            setattr(graph, node.target, _placed(getattr(graph, node.target), mode, CUDA))
    places = _inputs(graph)
    table = {**compiler("select_decomp_table")(), torch.ops.aten.bernoulli.p: _drawn}
    with preserve_node_meta(), torch.no_grad(), mode:
        traced: Any = make_fx(
            torch.fx.Interpreter(graph).run, decomposition_table=table, _allow_non_fake_inputs=True
        )(*[_placed(node.meta["val"], mode, CUDA) for node in places])
    for node, old in zip(_inputs(traced), places, strict=True):
        node.name = node.target = old.target
        node.meta = {**old.meta, **node.meta}
    traced.graph.output_node().meta.update(graph.graph.output_node().meta)
    traced.recompile()
    traced.meta = graph.meta
    return traced


def _inputs(graph: Any) -> list[Any]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _drawn(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    """Zeros and ones in the dtype of a tensor: Inductor decomposes the operator in place, which this trace has not."""
    return (torch.rand_like(x, dtype=torch.float32) < p).to(x.dtype)


def _mode_of(values: Iterable[Any]) -> Any:
    return compiler("detect_fake_mode")([each for each in values if isinstance(each, Tensor)])


def _placed(value: Any, mode: Any, device: torch.device) -> Any:
    """A tensor without data on another device; other values as they are."""
    if not isinstance(value, Tensor) or value.device == device:
        return value
    with torch.no_grad(), compiler("_disable_current_modes")():
        bare = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        return compiler("FakeTensor")(mode, bare, device)
