"""A step whose forward function is compiled by `torch.compile`: a change of the captured graph, by what the compiler would launch.

The compiler runs in a process of its own, because what it is told of the GPU changes PyTorch for the whole process
(`pipeline.as_on_cuda.compiler_gpu`). In the graph of the step as it is written, its launches take the place of the operators of
the forward function and of their backward pass. Loss, optimizer, copies and memory are those of the step as it is written.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline.as_on_cuda.emulation import create_as_on_cuda
from pipeline.errors import InputError, SteptimeError, first_line
from pipeline.graph.compiled_functions import spliced
from pipeline.graph.graph_file import read_graph, write_graph
from pipeline.graph.step_modules import module_paths
from pipeline.graph.table import Graph
from pipeline.question.compiled_target import as_written
from pipeline.workloads import make_step

if TYPE_CHECKING:
    from pipeline.as_on_cuda.compiled_launches import Compiled
    from pipeline.workloads.training_step import Step

VERSION = "2.13"
"""The version of PyTorch whose compiler is known: what it is asked has private names, which change with each."""

EXCHANGE = ("layout", "ddp", "fsdp")
"""Options of a workload that say how several GPUs exchange."""

OWN = "own"
"""Value of the option `compile` of a step that is compiled as the user's code says."""


def compiled(graph: Graph, config: Mapping[str, Any], batch_size: int) -> Graph:
    """The graph of a step with its forward function compiled.

    Args:
        graph: the step as it is written.
        config: its configuration, with the GPU for which it is compiled (`compiled_for`).
        batch_size: samples per step.

    Raises:
        InputError: this machine, this PyTorch or this step cannot be compiled; the message says why.
    """
    check_machine()
    with TemporaryDirectory(prefix="steptime-compile-") as folder:
        found = launches_of(config, batch_size, Path(folder))
    return spliced(graph, found)


def check_machine() -> None:
    """Refuse machines on which the compiler cannot be asked.

    Raises:
        InputError: the system or the version of PyTorch is another one.
    """
    if not sys.platform.startswith("linux"):
        raise InputError(
            f"model.compile=true: compiled steps are predicted on Linux alone, not on"
            f" {sys.platform}; leave it out"
        )
    installed = version("torch")
    if installed.split(".")[:2] != VERSION.split("."):
        raise InputError(
            f"model.compile=true: needs PyTorch {VERSION}, whose compiler is known, and here is"
            f" {installed}: pip install 'torch=={VERSION}.*', or leave it out"
        )


def launches_of(config: Mapping[str, Any], batch_size: int, folder: Path) -> Graph:
    """What the compiler would launch, from a process of its own: the launches of a forward pass, then of its backward pass."""
    if sys.stderr.isatty():
        print(
            f"steptime: compiling {config.get('name')}, which takes 5 to 150 s of CPU time",
            file=sys.stderr,
        )
    process = multiprocessing.get_context("fork").Process(
        target=_write, args=(config, batch_size, folder)
    )
    try:
        process.start()
    except OSError as refused:
        raise SteptimeError(
            f"model.compile=true: the process of the compiler cannot start: {refused}"
        ) from refused
    process.join()
    error, made = folder / "error.txt", folder / "graph.parquet"
    if error.exists():
        raise InputError(error.read_text(encoding="utf-8"))
    if not made.exists():
        raise SteptimeError(
            f"model.compile=true: the process of the compiler ended with code {process.exitcode};"
            " is there enough memory?"
        )
    return read_graph(made)


def _write(config: Mapping[str, Any], batch_size: int, folder: Path) -> None:
    """Write what the compiler would launch, or why it cannot compile the step. Its own files go into the folder."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    gc.disable()  # a twentieth of the time; the process ends before much is freed
    warnings.simplefilter("ignore")
    try:
        with redirect_stdout(sys.stderr):
            graph = traced(config, batch_size)
        write_graph(graph, folder / "graph.parquet")
    except SteptimeError as error:
        (folder / "error.txt").write_text(str(error), encoding="utf-8")
    except Exception as error:
        (folder / "error.txt").write_text(explained(error), encoding="utf-8")


def explained(error: BaseException) -> str:
    """One line about a step that the compiler refuses, with the operator where its message names one."""
    said = str(error)
    inner = re.search(r"got (\w+\(.+\))$", said, re.MULTILINE) or re.search(r"raised:\n(.+)", said)
    text = inner[1] if inner else first_line(error)
    target = re.search(r"target: (\S+)", said)
    operator = f" ({target[1]})" if target else ""
    named = re.search("device mismatch|cuda devices", said)
    remedy = "make tensors with device=x.device in compiled code" if named else "leave it out"
    return (
        f"model.compile=true: PyTorch's compiler cannot compile the step{operator}:"
        f" {type(error).__name__}: {text}; {remedy}"
    )


def traced(config: Mapping[str, Any], batch_size: int) -> Graph:
    """What the compiler would launch for a step, in this process, which is changed by it."""
    import torch

    from pipeline.as_on_cuda.compiled_launches import Compiled, compiling, quiet_compiler
    from pipeline.as_on_cuda.compiler_gpu import Target
    from pipeline.as_on_cuda.fully_sharded import HALVES
    from pipeline.as_on_cuda.host_autocast import cast_as_on_cuda, cuda_means_host
    from pipeline.as_on_cuda.mixed_precision import DTYPES
    from pipeline.as_on_cuda.one_gpu import one_gpu
    from pipeline.as_on_cuda.torch_names import compiler, fake_tensor_mode
    from pipeline.as_on_cuda.traced_functions import (
        fused_attention_of,
        leave_data,
        reads_noted,
        without_data,
    )
    from pipeline.as_on_cuda.wrappers import compiled_calls, unwrapped
    from pipeline.graph.launched_nodes import computes, described, padding

    torch.set_num_threads(1)  # the threads of the process before the fork are gone
    target, found = Target.of(str(config["compiled_for"])), Compiled()
    target = replace(target, pads=padding(target, config.get("dtype") == "tf32"))
    alone = {key: value for key, value in as_written(config).items() if key not in EXCHANGE}
    plain = {**alone, "read_loss": "never", "accumulation": 1}
    device = one_gpu("meta") if config.get("architecture") == "custom" else nullcontext()
    host = cuda_means_host()  # made before the emulation, it calls PyTorch's own `__init__`
    with create_as_on_cuda(), host, device:
        step = make_step(plain, batch_size // int(config.get("accumulation") or 1), "meta")
    own = config["compile"] == OWN
    _check_step(step, own)
    places = module_paths(step.modules)
    logging.getLogger("torch").setLevel(logging.ERROR)
    cast_as_on_cuda()
    with (
        fake_tensor_mode(allow_non_fake_inputs=True) as mode,
        quiet_compiler(),
        unwrapped(),
        fused_attention_of(target, None if step.pure else DTYPES.get(step.dtype)),
        cuda_means_host(),
        reads_noted(found.read),
    ):
        half = HALVES.get(config["fsdp"]["mixed_precision"]) if "fsdp" in config else None
        leave_data(step.modules, mode, half)
        step.pool = [tuple(without_data(each, mode, half) for each in step.pool[0])]
        step.device = "cpu"
        buckets = config["ddp"]["bucket_cap_mb"] << 20 if "ddp" in config else None
        backend = compiling(target, found, buckets)
        asked = {} if own else _compiled_parts(step, places, "fsdp" in config)
        with compiled_calls(_begin(asked, backend, found), found.running):
            step.run(0)
    split = len(compiler("counters")["graph_break"])
    parts = max((sum(map(computes, ran)) for _, ran in found.calls), default=0)
    breaks = split if buckets else max(parts - 1, min(1, split))
    return described(found, places, config, breaks)


def _check_step(step: Step, own: bool) -> None:
    """Refuse steps that cannot be compiled; `own`: the user's code says what is compiled."""
    if step.procedure is not None and not own:
        raise InputError(
            "model.compile=true: the step has a procedure of its own, which is not compiled;"
            " compile its modules (torch.compile(model)), or leave it out"
        )
    if step.in_kernel:
        raise InputError(
            "model.compile=true: lookups that update their tables in the backward pass are not"
            " compiled; take model.embedding=dense, or leave it out"
        )


def _begin(asked: Mapping[Any, str], backend: Any, found: Compiled) -> Callable[[Any, Any], Any]:
    """What begins compiled code (`compiled_calls`): by our backend; optimizers in closed form. `asked`: this alone, if any."""
    import torch

    from pipeline.as_on_cuda.compiled_optimizers import update_of
    from pipeline.as_on_cuda.torch_names import compiler
    from pipeline.as_on_cuda.wrappers import updated_by

    compiling_frames = compiler("_create_wrapped_callback")(backend)

    def begin(owner: Any, options: Any) -> Any:
        found.options |= {*options}
        compiler("_dynamo.config").assume_static_by_default = True  # also with `dynamic=True`
        optimizers, computes = updated_by(owner)
        updates = {one: update_of(one) for one in optimizers}
        launches = [each for update in updates.values() for each in update]
        found.updates += [launches] * bool(launches)
        found.options |= {
            f"the compiled step of {type(one).__name__}"
            for one, update in updates.items()
            if not (update or one.defaults.get("fused"))
        }
        if not computes or (asked and owner not in asked):
            return None
        for one in optimizers:
            vars(one)["step"] = torch.compiler.disable(one.step)  # type: ignore[no-untyped-call]
        found.calls.append((asked[owner] if asked else str(len(found.calls)), []))
        return compiling_frames

    return begin


def _compiled_parts(step: Step, places: Mapping[Any, str], by_block: bool) -> dict[Any, str]:
    """Compile the forward function of a step, or of its blocks, and nothing else. The result: what is compiled, and its path.

    Raises:
        InputError: blocks are compiled, and the model has none.
    """
    import torch

    from pipeline.as_on_cuda.fully_sharded import units
    from pipeline.as_on_cuda.wrappers import owner_of

    step.optimizers, whole = [], {*step.modules}
    blocks = [unit for part in step.modules for unit in units(part) if unit not in whole]
    if by_block and not blocks:
        raise InputError(
            "model.compile=true: with parallel=fsdp each repeated block of a model is compiled, and"
            " this one has none; take parallel=ddp, or leave it out"
        )
    asked = {}
    for part in blocks if by_block else [step]:
        part.forward = function = torch.compile(part.forward)
        asked[owner_of(vars(function)["_torchdynamo_orig_callable"])] = (
            places[part] if by_block else ""
        )
    return asked
