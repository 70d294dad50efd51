"""The tracker: run a step on this machine, and predict its time on other GPUs.

    with track(device="cuda") as tracked:
        step()
    tracked.to("T4").predicted_us
    tracked.to_all()

A saved profiler trace works as well: `load_trace(path).to("A100")`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.answers.traced_step import TrackedTrace, check_batch_size
from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.trace.load import load_trace as read_trace


def load_trace(
    path: str | Path, batch_size: int = 1, model: str = "", gpu: str = ""
) -> TrackedTrace:
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
    return TrackedTrace.of(read_trace(path), batch_size, model, gpu)


class Tracker:
    """The object that `track` yields. After the block it answers as the `TrackedTrace` of the step."""

    traced: TrackedTrace | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self.traced is None:
            raise InputError(
                "nothing was tracked yet; use the result after the `with track(...)` block"
            )
        return getattr(self.traced, name)


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
    tracker = Tracker()
    with profile(activities=activities, record_shapes=True) as profiler:
        yield tracker
        if on_cuda:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tracked.json"
        profiler.export_chrome_trace(str(path))
        tracker.traced = TrackedTrace.of(read_trace(path), batch_size, model)
    tracker.traced.path = Path("the tracked step")  # for error messages: the file was deleted
