"""Captures the operator graph of a workload's step without a GPU.

The step runs on the meta device (shapes only, no memory) under PyTorch's execution-trace observer. `normalise` then
converts the recorded nodes to those that CUDA would record. Meta tensors cannot have sparse gradients, so steps with
sparse gradients run on fake CPU tensors instead. A custom step is first tried on the meta device, because its
configuration does not tell whether it has sparse gradients.

Each call of a module writes two marks into the recording: the module that runs from here on, and the one that runs again after it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.as_on_cuda.emulation import create_as_on_cuda, run_as_on_cuda
from pipeline.as_on_cuda.patches import stderr_silenced
from pipeline.errors import (
    InputError,
    SteptimeError,
    TraceError,
    collected_warnings,
    warn,
)
from pipeline.graph.execution_trace import (
    build_nodes,
    hooks_apart,
    import_execution_trace,
    in_compiled_calls,
)
from pipeline.graph.execution_trace_file import read_execution_trace
from pipeline.graph.normalise import normalise, prune, prune_meta
from pipeline.graph.step_modules import (
    AS_WRITTEN,
    held_parameters,
    module_calls_marked,
    module_paths,
)
from pipeline.graph.table import Graph, Memory, Node, write_nodes
from pipeline.hardware import asked_gpu
from pipeline.hardware.rank_layout import Layout
from pipeline.question.options import FREE_OPTIONS
from pipeline.workloads import make_step
from pipeline.workloads.user_errors import SIZE_ERRORS, explain_error
from pipeline.workloads.user_steps import shown_target

if TYPE_CHECKING:
    from pipeline.workloads.training_step import Step

MAX_STEP_BYTES = 1e16
"""Largest memory need of a step that is captured, bytes (10,000 TB). Larger ones are mistakes, and take minutes to map. The
line of a large model over the batch size begins at 1,000 TB."""


def capture(config: Mapping[str, Any], batch_size: int) -> Graph:
    """Capture the graph of one step of a workload, as CUDA would run it.

    Args:
        config: content of `config/model/<name>.yaml` after overrides.
        batch_size: samples per step.

    Raises:
        SteptimeError: the workload cannot be made (see `pipeline.workloads.make_step`).
    """
    asked_gpu.READ.clear()
    with collected_warnings() as said:
        nodes, memory, held, computed = record(config, batch_size)
    table, name, of = write_nodes(nodes), str(config.get("name", "")), "".join(asked_gpu.READ)
    return Graph(table, memory, "cuda", name, batch_size, tuple(said), held, computed, of)


def read_recorded_step(path: str | Path, config: Mapping[str, Any], batch_size: int) -> Graph:
    """Read the graph of a recorded step of a workload and add its memory need.

    A trace does not contain the memory need, so it is taken from a captured step, with the warnings of the capture.

    Args:
        path: the step's execution trace.
        config: as for `capture`.
        batch_size: samples per step.

    Raises:
        TraceError: the file is missing, truncated, or not an execution trace.
        SteptimeError: as `capture`.
    """
    graph = import_execution_trace(path)
    captured = capture(config, batch_size)
    return replace(captured, table=graph.table, device=graph.device, parameters=graph.parameters)


Recorded = tuple[list[Node], Memory, dict[str, int], dict[str, str]]
"""Normalised nodes of a step, its memory need, the number of parameters that each module holds, by its path, and what its code
computes with (`Graph.computed`)."""


def record(config: Mapping[str, Any], batch_size: int) -> Recorded:
    """Record one step."""
    of_others = not _is_shipped(config)
    explained: tuple[type[BaseException], ...] = (
        (Exception, SystemExit) if of_others else SIZE_ERRORS
    )
    try:
        try:
            return _attempt(config, batch_size, needs_fake_tensors(config))
        except NotImplementedError as error:
            if not of_others or "SparseMeta" not in str(error):
                raise
            return _attempt(config, batch_size, True)
    except SteptimeError:
        raise
    except explained as error:
        raise explain_error(config, error) from error


def _attempt(config: Mapping[str, Any], batch_size: int, fake: bool) -> Recorded:
    """`record` on fake CPU tensors or on the meta device."""
    from pipeline.as_on_cuda.host_reads import assuming_true_share
    from pipeline.as_on_cuda.one_gpu import one_gpu
    from pipeline.as_on_cuda.torch_names import fake_tensor_mode
    from pipeline.workloads.custom import ReadOptions, unread_options

    device = "cpu" if fake else "meta"
    with (
        fake_tensor_mode(allow_non_fake_inputs=True) if fake else nullcontext(),
        assuming_true_share(config.get("picked")),
        first_rank(config),
        sharding(config),
    ):
        if _is_shipped(config):
            return observe(make_step(config, batch_size, device), fake, config)
        options = ReadOptions(config) if config.get("architecture", "custom") == "custom" else None
        # what other people's code prints is no part of the answer (--json)
        with redirect_stdout(sys.stderr), one_gpu(device) if options is not None else nullcontext():
            with create_as_on_cuda():
                step = make_step(config if options is None else options, batch_size, device)
            with assuming_true_share(step.picked if config.get("picked") is None else None):
                recorded = observe(step, fake, config)
        if options is not None:
            given = str(config.get("optimizer"))
            unused = ["optimizer", "foreach"] * (
                given not in recorded[3].get("optimizer", given).split(" and ")
            )
            unused += ["dtype"] * step.ignores_half_precision
            unused += ["memory_format"] * all(
                tensor.dim() != 4 for tensor in (*step.pool[0], *step.parameters())
            )
            options.read.difference_update(unused)
            for name in unread_options(options):
                use = (
                    "; use `with step.autocast():` in its procedure"
                    if name == "model.dtype"
                    else ""
                )
                of = shown_target(config.get("target")).removeprefix("model.target=")
                warn(f"{name}: the step of {of} does not use it{use}")
        return recorded


def observe(step: Step, fake: bool, config: Mapping[str, Any], first: bool = False) -> Recorded:
    """Run a step twice and record the second run, or only the first if `first` is set. The next run tells its memory.

    The first run creates the gradients and the optimizer state. A shipped workload goes without: its state is made before.
    """
    from pipeline.as_on_cuda.optimizers import state_tensors, stepping, update_of
    from pipeline.graph.memory import memory_need, with_states

    layout = Layout.of_workload(config)
    parallel = step.training and layout is not None and {"ddp", "fsdp"} & {*config}
    plain = not (fake or first or parallel or step.own_optimizers) and _is_shipped(config)
    prepared = plain and with_states(step, config)
    reads: AbstractContextManager[object] = nullcontext()
    paths = module_paths(step.modules)
    with run_as_on_cuda(), stepping() as stepped:
        if parallel:
            from pipeline.as_on_cuda.data_parallel import exchanging_gradients

            reads = exchanging_gradients(step, config)
        elif step.training and not first and not prepared:
            step.run(0)
    configured = () if step.own_optimizers else step.optimizers
    others = [optimizer for optimizer in stepped if all(optimizer is not one for one in configured)]
    # a step may use its own optimizers, not the one of the configuration
    unused = bool(others) and len(others) == len(stepped)
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        path = Path(folder) / "execution_trace.json"
        own: list[Any] = []
        with _recording(path), reads, module_calls_marked(paths, own.append):
            step.run(0)
        states = (0 if unused else step.optimizer_bytes) + sum(
            state.nbytes for state in state_tensors(others)
        )
        with reads:
            memory = memory_need(step, states, others, paths)
        if memory.peak > MAX_STEP_BYTES:
            raise InputError(
                f"the step needs {memory.peak / 1e12:,.0f} TB of memory, more than any machine has;"
                " check its sizes"
            )
        raw = _read_recording(path)
    if unused:
        config = {**config, "optimizer": update_of(others)}
    config = _with_allowed_tf32(
        {**config, "dtype": "default"} if step.ignores_half_precision else config
    )
    nodes = build_nodes(prune(raw) if fake else prune_meta(raw), sequential=fake)
    nodes = in_compiled_calls(normalise(hooks_apart(nodes), config, fake))
    used = [str(step.config.get("optimizer", "sgd"))] * (len(others) < len(stepped)) + [
        type(one).__name__ for one in others
    ]
    computed = {} if _is_shipped(config) else computed_with(step, nodes, used, config)
    computed |= {"seq_len": str(step.seq_len)} if step.seq_len else {}
    if own:
        computed["compiled"] = AS_WRITTEN
        warn(AS_WRITTEN)
    return nodes, memory, held_parameters(paths), computed


def _read_recording(path: Path) -> Any:
    """The execution trace that this process wrote."""
    try:
        return read_execution_trace(path)
    except TraceError:  # it can only be truncated
        raise SteptimeError(
            f"{tempfile.gettempdir()}: the recording of the step could not be written"
            " completely; free some space, or set $TMPDIR to another folder"
        ) from None


def computed_with(
    step: Step, nodes: Sequence[Node], used: Sequence[str], config: Mapping[str, Any]
) -> dict[str, str]:
    """`Graph.computed` of a step that has run with the optimizers `used`."""
    computed = (
        {"dtype": str(config.get("dtype") or "default")}
        if config.get("architecture") == "custom"
        else {}
    )
    if step.training and (
        used or (step.procedure is not None and step.config.get("optimizer") != "none")
    ):
        computed["optimizer"] = " and ".join(dict.fromkeys(used)) or "the step's own"
    softmax = ("aten::_softmax", "aten::_safe_softmax")
    fused = any(
        node.name.startswith("aten::_scaled_dot") and not node.name.endswith("_math")
        for node in nodes
    )
    eager = any(node.name in softmax and "att" in (node.module or "").lower() for node in nodes)
    if kinds := ["fused"] * fused + ["eager"] * eager:
        computed["attention"] = " and ".join(kinds)
    return computed


def first_rank(config: Mapping[str, Any]) -> AbstractContextManager[None]:
    """The context of a step of several ranks, of which this process plays one."""
    layout = Layout.of_workload(config)
    if layout is None:
        return nullcontext()
    from pipeline.as_on_cuda.recording_group import recording_group

    return recording_group(layout)


def sharding(config: Mapping[str, Any]) -> AbstractContextManager[None]:
    """The context of a step that is sharded as an option says. A user's own `fully_shard` brings its own (`one_gpu`)."""
    if "fsdp" not in config:
        return nullcontext()
    from pipeline.as_on_cuda.fully_sharded import sharded_on_meta

    return sharded_on_meta()


@contextmanager
def _recording(path: Path) -> Iterator[None]:
    """Record the operators that the body runs as on CUDA, as an execution trace."""
    from torch.profiler import ExecutionTraceObserver

    with stderr_silenced():
        observer = ExecutionTraceObserver()
        observer.register_callback(str(path))
        observer.start()
        try:
            with run_as_on_cuda():
                yield
        finally:
            observer.stop()
            observer.unregister_callback()


def _is_shipped(config: Mapping[str, Any]) -> bool:
    """Whether a step is that of a shipped workload, not the user's or a library's. It runs on both kinds of tensors."""
    return config.get("architecture", "custom") not in FREE_OPTIONS


def _with_allowed_tf32(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with the dtype that a custom step has set through PyTorch's switches, where none was asked for.

    - It allowed TF32 in matrix products: `tf32`, which is then also assumed for the operators of cuDNN.
    - It forbade TF32 in cuDNN: `fp32`.
    """
    import torch

    if config.get("architecture") != "custom" or config.get("dtype") not in (None, "default"):
        return config
    matmul: Any = torch.backends.cuda.matmul
    try:
        allowed = bool(matmul.allow_tf32)
    except (
        RuntimeError
    ):  # TF32 was set through PyTorch's newer names: reading the older name then raises
        allowed = matmul.fp32_precision == "tf32"
    if allowed:
        return {**config, "dtype": "tf32"}
    try:
        forbidden = not torch.backends.cudnn.allow_tf32
    except RuntimeError:
        forbidden = torch.backends.cudnn.fp32_precision == "ieee"
    return {**config, "dtype": "fp32" if forbidden else "default"}


def needs_fake_tensors(config: Mapping[str, Any]) -> bool:
    """Whether a step has sparse gradients, which tensors on the meta device cannot have."""
    return (
        config.get("embedding") in ("sparse", "joint_sparse", "joint_rows")
        and config.get("mode", "train") == "train"
    )
