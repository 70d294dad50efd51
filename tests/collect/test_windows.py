"""Device events find the labelled code that launched them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.collect.trace_windows import (
    STEP_LABEL,
    Window,
    attribute,
    counted_kernels,
    load_events,
)
from pipeline.errors import TraceError
from tests.trace.trace_drawing import AUTOGRAD, annotation, api, kernel, launch, trace

#   host      |s0r0: launch 1, 2 (2 on autograd's thread)|   |s1r0: launch 3|      launch 4
#   device           [k1][k2]                                        [k3] [k?]             [k4]


Events = list[dict[str, Any]]


@pytest.fixture
def events() -> Events:
    stray = kernel("kNone", 130, 132, 0)
    del stray["args"]["correlation"]
    return [
        *(annotation("s0r0", 0, 20), annotation("s1r0", 100, 120), annotation("other", 0, 500)),
        *(launch(5, 6, 1), launch(15, 16, 2, AUTOGRAD), launch(110, 111, 3), launch(300, 301, 4)),
        *(kernel("k1", 30, 34, 1), kernel("k2", 34, 40, 2) | {"cat": "gpu_memset"}),
        *(kernel("k3", 125, 128, 3), stray, kernel("k4", 310, 319, 4)),
    ]


def lost(events: Events) -> list[int]:
    """How many kernels each window lost."""
    return [window.lost for window in attribute(events, r"s\d+r\d+").windows.values()]


def test_kernels_belong_to_the_window_of_their_launch_on_any_thread_or_else_of_their_start(
    events: Events,
) -> None:
    found = attribute(events[::-1], r"s\d+r\d+")
    first, second = found.windows["s0r0"], found.windows["s1r0"]
    assert [k["name"] for k in first.kernels] == ["k1", "k2"]
    assert (first.device_us, second.device_us, found.device_events) == (10.0, 5.0, 5)


def test_a_launch_whose_kernel_the_trace_lacks_makes_its_window_incomplete(
    events: Events,
) -> None:
    without = [event for event in events if event["name"] != "k1"]
    assert lost(without) == [1, 0]
    assert attribute(without, "s0r0").windows["s0r0"].only("k2").lost == 1


def test_a_call_within_another_launches_nothing_of_its_own(events: Events) -> None:
    whole = [event for event in events if event["name"] != "kNone"]
    inner = [launch(at + 0.2, at + 0.7, 1000 + at) | {"cat": "cuda_driver"} for at in (5, 110, 300)]
    assert lost([*whole, *inner, api("cudaMemsetAsync", 7, 8, 2000)]) == [0, 0]


def test_launches_of_cuda_13_are_known_by_number_where_the_profiler_has_no_name_for_them(
    tmp_path: Path, events: Events
) -> None:
    """Kineto of torch 2.11 calls them `INVALID`, and what goes before each of them too (cbid 502 and 503)."""
    calls = [*events, launch(4.2, 4.3, 9502), launch(4.4, 4.5, 9503)]
    for event in calls:
        if event["name"] == "cudaLaunchKernel":
            event["name"] = "INVALID"
            number = event["args"]["correlation"]
            event["args"]["cbid"] = number - 9000 if number > 9000 else 505
    path = tmp_path / "trace.json"
    path.write_bytes(trace([e for e in calls if e["name"] not in ("k1", "kNone")]))
    assert lost(load_events(path)) == [1, 0]


def test_ids_that_never_fit_say_nothing_of_what_is_missing(events: Events) -> None:
    """Kernels without a launch and launches without a kernel: the profiler numbers them differently, and none is lost."""
    strange = [
        {**event, "args": {"correlation": 9000 + n}} if event["cat"] == "kernel" else event
        for n, event in enumerate(events)
    ]
    assert lost(strange) == [0, 0]


@pytest.mark.parametrize("name", ["rtx2080ti_linear", "v100_ddp"])
def test_every_launch_of_public_traces_shows_its_kernel(datasets: Path, name: str) -> None:
    found = attribute(load_events(datasets / "traces" / name / "kineto.json.gz"), STEP_LABEL)
    assert not any(window.lost for window in found.windows.values())
    assert found.device_events > 50


def test_a_quote_in_a_name_does_not_spoil_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    event = '{"ph": "X", "cat": "kernel", "name": "k<"x">", "ts": 1, "dur": 2}'
    path.write_text(f'{{"traceEvents": [{event}, {event}]}}')
    assert [e["dur"] for e in load_events(path)] == [2, 2]
    path.write_text('{"traceEvents": [{"ph": "X", ')
    with pytest.raises(TraceError, match="not a profiler trace"):
        load_events(path)


def test_only_counts_the_kernels_that_are_named() -> None:
    window = Window(
        0, 1, [{"name": "sort_keys", "dur": 5}, {"name": "EmbeddingBag_accGrad", "dur": 2}]
    )
    assert window.only("embedding").device_us == 2.0
    assert window.only("nothing of the kind").device_us == 7.0


COUNTED = """
softmax softmax           | softmax_warp_backward<float, 9>       | vectorized_elementwise_kernel<4, MulFunctor>
reduction sum_rows        | reduce_kernel<128, 4, ReduceOp>       | Memset (Device)
loss mse_loss             | elementwise_kernel<4, mse_kernel_cuda> | reduce_kernel<512, 1, MeanOps<float>>
loss nll_loss             | nll_loss_backward_reduce_cuda_kernel_2d | vectorized_elementwise_kernel<4, FillFunctor>
pooling max               | max_pool_backward_nchw<float>         | vectorized_elementwise_kernel<4, FillFunctor>
tril_index_backward index_put | indexing_backward_kernel<float, 4> | DeviceRadixSortSingleTileKernel<long>
index index_put           | indexing_backward_kernel_small_stride | DeviceRadixSortSingleTileKernel<long>
embedding_backward dense  | compute_grad_weight_bags<float>       | DeviceRadixSortSingleTileKernel<long>
embedding_backward fused_sgd | indexFuncLargeIndex<float, ReduceAdd> | Memset (Device)
"""
"""Family and op, the kernel that counts, and one that does not."""


@pytest.mark.parametrize("line", COUNTED.strip().splitlines())
def test_a_sample_holds_the_kernel_that_the_graph_means(line: str) -> None:
    call, *names = map(str.strip, line.split("|"))
    events = [{"name": f"void at::native::{name}", "dur": 2} for name in reversed(names)]
    events[0]["name"] = names[1]
    counted = Window(0, 1, events).only(counted_kernels(*call.split()))
    assert counted.kernels == events[1:]


def test_a_products_reduction_over_its_splits_counts_with_it() -> None:
    events = [
        {"name": "cutlass_80_simt_sgemm", "dur": 9},
        {"name": "void cublasLt::splitKreduce_kernel<32>", "dur": 2},
    ]
    assert Window(0, 1, events).only(counted_kernels("gemm", "mm")).device_us == 11
