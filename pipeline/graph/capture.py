"""Captures the operator graph of a workload's step without a GPU.

The step runs on the meta device (shapes only, no memory) under PyTorch's execution-trace observer; `normalise` then
turns what a meta device records into what CUDA would. Steps with sparse gradients, which meta tensors cannot have, run
on fake CPU tensors instead; a custom one shows only when it is tried.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import SteptimeError, TraceError
from pipeline.graph.cuda_emulation import as_on_cuda, made_as_on_cuda
from pipeline.graph.execution_trace import build_nodes, import_execution_trace
from pipeline.graph.normalise import normalise, prune, prune_meta
from pipeline.graph.pytorch_errors import explained
from pipeline.graph.table import Graph, Memory, Node, write_nodes
from pipeline.graph.trace_reader import read_chosen
from pipeline.workloads import make_step

if TYPE_CHECKING:
    from pipeline.workloads.training_step import Step

SIZES_DO_NOT_FIT = (ValueError, RuntimeError, IndexError, AssertionError, TypeError, MemoryError, ArithmeticError)
"""What PyTorch and `transformers` raise for a model whose sizes contradict each other."""


def capture(config: Mapping[str, Any], batch_size: int) -> Graph:
    """The graph of one step of a workload, as CUDA would run it.

    Args:
        config: content of `config/model/<name>.yaml` after overrides.
        batch_size: samples per step.

    Raises:
        SteptimeError: the workload cannot be made (see `pipeline.workloads.make_step`).
    """
    with without_collection():
        nodes, memory = record(config, batch_size)
        return Graph(write_nodes(nodes), memory, "cuda", str(config.get("name", "")), batch_size)


def traced(path: str | Path, config: Mapping[str, Any], batch_size: int) -> Graph:
    """The graph of a recorded step of a workload, with the memory need of a captured one, which a trace does not say.

    Args:
        path: the step's execution trace.
        config: as for `capture`.
        batch_size: samples per step.

    Raises:
        TraceError: the trace is missing, cut off, or no execution trace.
        SteptimeError: as `capture`.
    """
    graph, model = import_execution_trace(path), str(config.get("name", ""))
    return replace(graph, memory=capture(config, batch_size).memory, model=model, batch_size=batch_size)


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage collection while the body runs: importing PyTorch and `transformers` and recording a step make a
    million objects at once, of which next to none is garbage, and looking for it takes a fifth of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def record(config: Mapping[str, Any], batch_size: int) -> tuple[list[Node], Memory]:
    """Normalised nodes of one step and its memory need."""
    own = config.get("architecture") == "custom"
    known: tuple[type[BaseException], ...] = (Exception, SystemExit) if own else SIZES_DO_NOT_FIT
    try:
        try:
            return _attempt(config, batch_size, _needs_fake(config))
        except NotImplementedError as error:
            if not own or "SparseMeta" not in str(error):
                raise
            return _attempt(config, batch_size, True)
    except SteptimeError:
        raise
    except known as error:
        raise explained(config, error) from error


def _attempt(config: Mapping[str, Any], batch_size: int, fake: bool) -> tuple[list[Node], Memory]:
    """`record` on fake CPU tensors or on the meta device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from pipeline.workloads.data_dependent_shapes import picking

    own = config.get("architecture") == "custom"
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext(), picking(config.get("picked")):
        with made_as_on_cuda() if own else nullcontext():
            step = make_step(config, batch_size, "cpu" if fake else "meta")
        return observe(step, fake, config)


def observe(step: Step, fake: bool, config: Mapping[str, Any], first: bool = False) -> tuple[list[Node], Memory]:
    """Run a step twice (the first makes gradients and optimizer state) and record the second, or the first if asked."""
    from torch.profiler import ExecutionTraceObserver

    from pipeline.graph.peak_memory import WorkingSet, saved_activations
    from pipeline.workloads.own_optimizers import state_bytes, stepping, update_of

    with as_on_cuda(), saved_activations(step) as saved, stepping() as stepped:
        if not step.training:
            with WorkingSet() as working:
                step.run(0)
            activations = max(working.bytes - step.input_bytes, 0)
        else:
            if not first:
                step.run(0)
            activations = saved.bytes
    made = [each for each in stepped if all(each is not one for one in step.optimizers)]
    unused = bool(made) and len(made) == len(stepped)  # a step's own optimizer leaves what the step is given alone
    memory = Memory(
        step.parameters_bytes + step.buffers_bytes,
        step.gradient_bytes,
        (0 if unused else step.optimizer_bytes) + state_bytes(made),
        activations,
        step.input_bytes,
    )
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder, _quiet():
        path = Path(folder) / "execution_trace.json"
        observer = ExecutionTraceObserver()
        observer.register_callback(str(path))
        observer.start()
        try:
            with as_on_cuda():
                step.run(0)
        finally:
            observer.stop()
            observer.unregister_callback()
        try:
            raw = read_chosen(path, prune if fake else prune_meta)
        except TraceError:  # of our own making: it can only be cut off
            place = tempfile.gettempdir()
            raise SteptimeError(
                f"{place}: what the captured step ran could not be written whole; make room there, or name another "
                "folder in $TMPDIR"
            ) from None
    if unused:
        config = {**config, "optimizer": update_of(made)}
    return normalise(build_nodes(raw, sequential=fake), _as_allowed(config), fake), memory


def _as_allowed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of a step of the user's, who may have allowed TF32 in products (and with it where cuDNN has it)."""
    import torch

    if config.get("architecture") != "custom" or config.get("dtype") not in (None, "fp32"):
        return config
    matmul: Any = torch.backends.cuda.matmul
    try:
        allowed = bool(matmul.allow_tf32)
    except RuntimeError:  # set by PyTorch's newer names, of which the older ones want to know nothing
        allowed = matmul.fp32_precision == "tf32"
    return {**config, "dtype": "tf32"} if allowed else config


def _needs_fake(config: Mapping[str, Any]) -> bool:
    return (
        config.get("embedding") in ("sparse", "joint_sparse", "joint_rows") and config.get("mode", "train") == "train"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the observer's notes off the terminal (they go straight to file descriptor 2)."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
