"""Device events find the labelled code that launched them."""

from __future__ import annotations

import json
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

#   host      |s0r0: launch 1, 2 (2 on autograd's thread)|   |s1r0: launch 3|      launch 4
#   device           [k1][k2]                                        [k3] [k?]             [k4]


def _label(name: str, start: float, length: float) -> dict[str, Any]:
    return {"cat": "user_annotation", "name": name, "ts": start, "dur": length}


def _launch(correlation: int, at: float, thread: int = 1) -> dict[str, Any]:
    return {
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "ts": at,
        "dur": 1,
        "tid": thread,
        "args": {"correlation": correlation},
    }


def _kernel(
    correlation: int | None, at: float, length: float, category: str = "kernel"
) -> dict[str, Any]:
    arguments = {} if correlation is None else {"correlation": correlation}
    return {"cat": category, "name": f"k{correlation}", "ts": at, "dur": length, "args": arguments}


@pytest.fixture
def events() -> list[dict[str, Any]]:
    labels = [_label("s0r0", 0, 20), _label("s1r0", 100, 20), _label("other", 0, 500)]
    launches = [_launch(1, 5), _launch(2, 15, thread=7), _launch(3, 110), _launch(4, 300)]
    kernels = [
        _kernel(1, 30, 4.0),
        _kernel(2, 34, 6.0, "gpu_memset"),
        _kernel(3, 125, 3.0),
        _kernel(None, 130, 2.0),
    ]
    return [*labels, *launches, *kernels, _kernel(4, 310, 9.0)]


def test_kernels_belong_to_the_window_of_their_launch_on_any_thread(
    events: list[dict[str, Any]],
) -> None:
    found = attribute(events, r"s\d+r\d+")
    assert [k["name"] for k in found.windows["s0r0"].kernels] == ["k1", "k2"]
    assert found.windows["s0r0"].device_us == 10.0


def test_a_kernel_without_a_launch_is_placed_by_its_start(events: list[dict[str, Any]]) -> None:
    found = attribute(events, r"s\d+r\d+")
    assert found.windows["s1r0"].device_us == 5.0
    assert found.device_events == 5


def test_the_order_of_events_in_the_file_does_not_matter(events: list[dict[str, Any]]) -> None:
    assert attribute(events[::-1], r"s\d+r\d+").windows["s0r0"].device_us == 10.0


def test_a_launch_whose_kernel_the_trace_lacks_makes_its_window_incomplete(
    events: list[dict[str, Any]],
) -> None:
    without = [event for event in events if event["name"] != "k1"]
    windows = attribute(without, r"s\d+r\d+").windows
    assert {label: window.lost for label, window in windows.items()} == {"s0r0": 1, "s1r0": 0}
    assert windows["s0r0"].only("k2").lost == 1


def test_a_call_within_another_launches_nothing_of_its_own(events: list[dict[str, Any]]) -> None:
    whole = [event for event in events if event["name"] != "kNone"]
    inner = [
        {**_launch(1000 + n, at + 0.2), "cat": "cuda_driver", "dur": 0.5}
        for n, at in enumerate((5, 110, 300))
    ]
    nothing = {**_launch(2000, 7), "name": "cudaMemsetAsync"}
    assert not any(
        window.lost for window in attribute([*whole, *inner, nothing], r"s\d+r\d+").windows.values()
    )


def test_launches_of_cuda_13_are_known_by_number_where_the_profiler_has_no_name_for_them(
    tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    """Kineto of torch 2.11 calls them `INVALID`, and what goes before each of them too (cbid 502 and 503)."""
    unnamed = [
        (
            {**e, "name": "INVALID", "args": {**e["args"], "cbid": 505}}
            if e["name"] == "cudaLaunchKernel"
            else e
        )
        for e in events
    ]
    before = [{**_launch(9000 + cbid, 4 + cbid / 1000), "name": "INVALID"} for cbid in (502, 503)]
    for event, cbid in zip(before, (502, 503), strict=True):
        event["args"]["cbid"] = cbid
    path = tmp_path / "trace.json"
    whole = [{"ph": "X", **event} for event in (*unnamed, *before)]
    for missing, lost in ((None, 0), ("k1", 1)):
        path.write_text(
            json.dumps({"traceEvents": [e for e in whole if e["name"] not in (missing, "kNone")]})
        )
        windows = attribute(load_events(path), r"s\d+r\d+").windows
        assert {label: window.lost for label, window in windows.items()} == {
            "s0r0": lost,
            "s1r0": 0,
        }


def test_a_trace_without_any_kernel_lost_all_of_them(events: list[dict[str, Any]]) -> None:
    host = [event for event in events if event["cat"] != "kernel" and event["cat"] != "gpu_memset"]
    assert [window.lost for window in attribute(host, r"s\d+r\d+").windows.values()] == [2, 1]


def test_ids_that_never_fit_say_nothing_of_what_is_missing(events: list[dict[str, Any]]) -> None:
    """Kernels without a launch and launches without a kernel: the profiler numbers them differently, and none is lost."""
    strange = [
        {**event, "args": {"correlation": 9000 + n}} if event["cat"] == "kernel" else event
        for n, event in enumerate(events)
    ]
    assert not any(window.lost for window in attribute(strange, r"s\d+r\d+").windows.values())


@pytest.mark.parametrize("name", ["a100_alexnet", "rtx2080ti_linear", "v100_ddp"])
def test_every_launch_of_public_traces_shows_its_kernel(datasets: Path, name: str) -> None:
    found = attribute(load_events(datasets / "traces" / name / "kineto.json.gz"), STEP_LABEL)
    assert not any(window.lost for window in found.windows.values())
    assert found.device_events > 50


def test_a_quote_in_a_name_does_not_spoil_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    event = (
        '{"ph": "X", "cat": "kernel", "name": "k<"x">", "pid": 0, "tid": 7, "ts": 1, "dur": 2,'
        ' "args": {}}'
    )
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


NATIVE = "void at::native::"
ELEMENTWISE = NATIVE + "vectorized_elementwise_kernel<4, at::native::"
SORTED = (
    "void at_cuda_detail::cub::DeviceRadixSortSingleTileKernel<"
    "at_cuda_detail::cub::DeviceRadixSortPolicy<long>>"
)


@pytest.mark.parametrize(
    ("family", "op", "kernels", "own"),
    [
        (
            "softmax",
            "softmax",
            [
                ELEMENTWISE + "BinaryFunctor<float, MulFunctor>>",
                "void (anonymous namespace)::softmax_warp_backward<float, 9>",
            ],
            1,
        ),
        (
            "softmax",
            "log_softmax",
            [NATIVE + "(anonymous namespace)::cunn_SoftMaxForward<4, float>"],
            0,
        ),
        (
            "reduction",
            "sum_rows",
            ["Memset (Device)", NATIVE + "reduce_kernel<128, 4, ReduceOp<float>>"],
            1,
        ),
        (
            "loss",
            "mse_loss",
            [ELEMENTWISE + "mse_kernel_cuda>", NATIVE + "reduce_kernel<512, 1, MeanOps<float>>"],
            0,
        ),
        (
            "loss",
            "nll_loss",
            [
                ELEMENTWISE + "FillFunctor<float>>",
                NATIVE + "nll_loss_backward_reduce_cuda_kernel_2d",
            ],
            1,
        ),
        (
            "pooling",
            "max",
            [ELEMENTWISE + "FillFunctor<float>>", NATIVE + "max_pool_backward_nchw<float>"],
            1,
        ),
        (
            "tril_index_backward",
            "index_put",
            [SORTED, NATIVE + "indexing_backward_kernel<float, 4>"],
            1,
        ),
        (
            "index",
            "index_put",
            [SORTED, NATIVE + "indexing_backward_kernel_small_stride<float>"],
            1,
        ),
        (
            "embedding_backward",
            "dense",
            [SORTED, NATIVE + "(anonymous namespace)::compute_grad_weight_bags<float>"],
            1,
        ),
        (
            "embedding_backward",
            "fused_sgd",
            ["Memset (Device)", NATIVE + "indexFuncLargeIndex<float, long, ReduceAdd>"],
            1,
        ),
        ("gemm", "linear", ["ampere_sgemm_128x64_tn"], 0),
    ],
)
def test_a_sample_holds_the_kernel_that_the_graph_means(
    family: str, op: str, kernels: list[str], own: int
) -> None:
    events = [{"name": name, "dur": 1 + i} for i, name in enumerate(kernels)]
    assert Window(0, 1, events).only(counted_kernels(family, op)).kernels == [events[own]]


def test_a_products_reduction_over_its_splits_counts_with_it() -> None:
    events = [
        {"name": "cutlass_80_simt_sgemm", "dur": 9},
        {"name": "void cublasLt::splitKreduce_kernel<32>", "dur": 2},
    ]
    assert Window(0, 1, events).only(counted_kernels("gemm", "mm")).device_us == 11
