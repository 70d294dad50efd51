"""Device events find the labelled code that launched them."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.collect.windows import Window, attribute

#   host      |s0r0: launch 1, 2 (2 on autograd's thread)|   |s1r0: launch 3|      launch 4
#   device           [k1][k2]                                        [k3] [k?]             [k4]


def _label(name: str, start: float, length: float) -> dict[str, Any]:
    return {"cat": "user_annotation", "name": name, "ts": start, "dur": length}


def _launch(correlation: int, at: float, thread: int = 1) -> dict[str, Any]:
    return {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 1, "tid": thread,
            "args": {"correlation": correlation}}  # fmt: skip


def _kernel(correlation: int | None, at: float, length: float, category: str = "kernel") -> dict[str, Any]:
    arguments = {} if correlation is None else {"correlation": correlation}
    return {"cat": category, "name": f"k{correlation}", "ts": at, "dur": length, "args": arguments}


@pytest.fixture
def events() -> list[dict[str, Any]]:
    labels = [_label("s0r0", 0, 20), _label("s1r0", 100, 20), _label("other", 0, 500)]
    launches = [_launch(1, 5), _launch(2, 15, thread=7), _launch(3, 110), _launch(4, 300)]
    kernels = [_kernel(1, 30, 4.0), _kernel(2, 34, 6.0, "gpu_memset"), _kernel(3, 125, 3.0), _kernel(None, 130, 2.0)]
    return [*labels, *launches, *kernels, _kernel(4, 310, 9.0)]


def test_kernels_belong_to_the_window_of_their_launch_on_any_thread(events: list[dict[str, Any]]) -> None:
    found = attribute(events, r"s\d+r\d+")
    assert [k["name"] for k in found.windows["s0r0"].kernels] == ["k1", "k2"]
    assert found.windows["s0r0"].device_us == 10.0


def test_a_kernel_without_a_launch_is_placed_by_its_start(events: list[dict[str, Any]]) -> None:
    found = attribute(events, r"s\d+r\d+")
    assert found.windows["s1r0"].device_us == 5.0
    assert (found.device_events, found.without_launch, found.outside) == (5, 1, 1)


def test_the_order_of_events_in_the_file_does_not_matter(events: list[dict[str, Any]]) -> None:
    assert attribute(events[::-1], r"s\d+r\d+").windows["s0r0"].device_us == 10.0


def test_only_counts_the_kernels_that_are_named() -> None:
    window = Window(0, 1, [{"name": "sort_keys", "dur": 5}, {"name": "EmbeddingBag_accGrad", "dur": 2}])
    assert window.only("embedding").device_us == 2.0
    assert window.only("nothing of the kind").device_us == 7.0
