"""The tracker: run a step on this machine, and predict its time on other GPUs.

    with track(device="cuda") as tracked:
        step()
    tracked.to("T4").predicted_us
    tracked.to_all()

A saved profiler trace works as well: `load_trace(path).to("A100")`, or `TrackedTrace(load_trace(path))`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.answers.advice import Advice
from pipeline.answers.traced_step import TrackedTrace, check_batch_size
from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.prediction import Prediction
from pipeline.trace.linked_trace import Trace
from pipeline.trace.load import load_trace as read_trace


@dataclass(repr=False)
class MovableTrace(Trace):
    """A linked trace that also predicts its step on other GPUs; `pipeline.load_trace` returns it.

    Attributes:
        batch_size: samples per step; with 1, throughput and cost are per step.
        model: name of the workload; empty for the name from the path.
        gpu: the GPU that was traced; empty for the one that the trace names.
    """

    batch_size: int = 1
    model: str = ""
    gpu: str = ""

    def to(self, gpu: str) -> Prediction:
        """The traced step on another GPU, from its measured kernels; see `TrackedTrace.to`.

        Raises:
            InputError: nothing ran on a GPU, or one of the two GPUs has no specification.
        """
        return self._tracked.to(gpu)

    @property
    def measured(self) -> Prediction:
        """The step on the GPU that was traced, as it was measured; see `TrackedTrace.measured`."""
        return self._tracked.measured

    def diff(self, other: Prediction) -> Any:
        """What a prediction has shorter or longer than the trace (`Prediction.diff`)."""
        return self.measured.diff(other)

    def advise(self, same_results: bool = False) -> Advice:
        """What would make the traced step faster; see `TrackedTrace.advise`."""
        return self._tracked.advise(same_results)

    def to_all(self, gpus: Sequence[str] = (), prices: str | Path | None = None) -> pd.DataFrame:
        """Every GPU side by side, fastest first; see `TrackedTrace.to_all`."""
        return self._tracked.to_all(gpus, prices)

    @cached_property
    def _tracked(self) -> TrackedTrace:
        return TrackedTrace(self, self.batch_size, self.model, self.gpu)


def load_trace(
    path: str | Path, batch_size: int = 1, model: str = "", gpu: str = ""
) -> MovableTrace:
    """Read and link a profiler trace; the public function of `pipeline`.

    Args:
        path: the file.
        batch_size: samples per step, for throughput and cost; with 1, both are per step.
        model: name of the workload for reports; by default from the path (`workload_name`).
        gpu: the GPU that was traced, where the trace does not name it (PyTorch 1.8 did not), or by an unknown name.

    Raises:
        UnknownNameError: no such GPU.
        TraceError: the file is missing, damaged, or no profiler trace.
        InputError: the batch size is no whole number of at least 1.
    """
    check_batch_size(batch_size)
    if gpu:
        load_gpu(gpu)  # an unknown name is refused before the file is read
    trace = read_trace(path)
    linked = {each.name: getattr(trace, each.name) for each in fields(trace)}
    return MovableTrace(**linked, batch_size=batch_size, model=model, gpu=gpu)


class Tracker(TrackedTrace):
    """The object that `track` yields. After the block it holds the trace and predicts other GPUs."""

    def __init__(self, batch_size: int = 1, model: str = "step") -> None:
        self.batch_size, self.model, self.gpu = batch_size, model, ""

    def __getattr__(self, name: str) -> Any:
        if name != "trace":
            raise AttributeError(name)
        raise InputError(
            "nothing was tracked yet; use the result after the `with track(...)` block"
        )


@contextmanager
def track(device: str = "cuda", batch_size: int = 1, model: str = "step") -> Iterator[Tracker]:
    """Profile the code in the block, to predict it on other GPUs.

    Warm up before the block: first calls compile and allocate.

    Raises:
        InputError: there is no such device here, or the batch size is not a whole number of at least 1.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    check_batch_size(batch_size)
    on_cuda = str(device).startswith("cuda")
    if not on_cuda and str(device) != "cpu":
        raise InputError(
            f"track(device={device!r}): give 'cuda' or 'cpu', the device that the block runs on"
        )
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # hides its log messages
    if on_cuda and not torch.cuda.is_available():
        raise InputError(
            "track(device='cuda'): this machine has no CUDA device; use load_trace(path).to(gpu)"
        )
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_cuda else [])
    tracker = Tracker(batch_size, model)
    with profile(activities=activities, record_shapes=True) as profiler:
        yield tracker
        if on_cuda:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tracked.json"
        profiler.export_chrome_trace(str(path))
        tracker.trace = read_trace(path)
    tracker.trace.path = Path("the tracked step")  # for error messages: the file was deleted
