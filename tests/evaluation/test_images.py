"""Batch norm and pooling: passes over the images, and how near their kernels are to those of public traces."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from evaluation.checks.image_kernel_times import compare
from pipeline.answers.kernel_predictor import load_predictor
from pipeline.graph.device_calls import map_calls
from pipeline.graph.table import Graph, Node, Tensor, write_nodes
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.physics import Physics

IMAGES = {"B": 128.0, "C": 256.0, "HW": 784.0}


def kernel_us(
    family: str,
    op: str,
    phase: str,
    attributes: str | None = None,
    gpu: str = "V100",
    images: dict[str, float] = IMAGES,
) -> float:
    """Time of a kernel on 128 images of 28 x 28 pixels and 256 channels (102.8 MB), without its start."""
    physics = Physics.of(load_gpu(gpu))
    call = {"op": op, "phase": phase, "dtype": "fp32", "attributes": attributes, **images}
    calls = pd.DataFrame([{"family": family, **call}])
    return float(physics.kernel_us(family, calls)[0]) - physics.start_us(family)


@pytest.mark.parametrize(("phase", "expected_us"), [("forward", 438.8), ("backward", 731.3)])
def test_batch_norm_reads_its_images_twice(phase: str, expected_us: float) -> None:
    """Forward x, x and y; backward the gradient and x, both again, and the gradient of x.

    One pass over 102.8 MB at 86 % of 817 GB/s takes 146.3 us: three and five of them.
    """
    assert kernel_us("batch_norm", "batch_norm", phase) == pytest.approx(expected_us, abs=0.1)


@pytest.mark.parametrize(
    ("gpu", "peak"),
    [
        ("V100-SXM2-32GB", 0.90 * 900),
        ("H200", 0.90 * 4800),
        ("RTX2080Ti", 0.80 * 616),
        ("V100", 817),
    ],
)
def test_cards_without_samples_stream_at_what_their_architecture_does(
    gpu: str, peak: float
) -> None:
    physics = load_predictor(load_gpu(gpu)).physics
    assert physics.memory.peak_gb_per_s == pytest.approx(peak)


def test_captured_batch_norms_move_as_many_bytes() -> None:
    x, c = Tensor((8, 16, 4, 4), "fp32"), Tensor((16,), "fp32")
    nodes = [
        Node(i, name, order=i, inputs=inputs, values=(None,) * len(inputs), outputs=(x, c, c))
        for i, (name, inputs) in enumerate(
            (
                ("aten::cudnn_batch_norm", (x, *[c] * 4)),
                ("aten::cudnn_batch_norm_backward", (x, x, *[c] * 5)),
            )
        )
    ]
    calls = map_calls(Graph(write_nodes(nodes)))
    moved = (calls["bytes_read"] + calls["bytes_written"]).to_list()
    assert moved == pytest.approx([3 * x.bytes, 5 * x.bytes], abs=16 * c.bytes)


def test_the_gradient_of_max_pooling_asks_every_pixel_in_nchw_alone() -> None:
    """The V100's trace shows 1,113 us for 32 images of 112 x 112 pixels and 64 channels; other kernels only move bytes."""
    images = {"B": 32.0, "C": 64.0, "HW": 112.0 * 112.0}
    gradient = ("pooling", "max_pool2d", "backward")
    assert kernel_us(*gradient, gpu="V100-SXM2-32GB", images=images) == pytest.approx(
        1113.0, rel=0.01
    )
    innermost = kernel_us(*gradient, '{"layout":"nhwc"}')
    assert innermost == pytest.approx(
        157.2, abs=0.1
    )  # 102.8 MB of gradient and a quarter of it, at 817 GB/s
    assert kernel_us("pooling", "adaptive_avg_pool2d", "backward") == pytest.approx(innermost)


@pytest.mark.parametrize(
    ("trace", "gpu", "bar"),
    [("v100_ddp", "V100-SXM2-32GB", 0.05), ("rtx2080ti_resnet", "RTX2080Ti", 0.15)],
)
def test_batch_norms_and_gradients_of_resnets_are_near_those_of_public_traces(
    datasets: Path, trace: str, gpu: str, bar: float
) -> None:
    """The V100's times set `BATCH_NORM_SHARE` and a constant of strided gradients; the RTX 2080 Ti is a held-out GPU."""
    found = compare(trace, gpu, datasets)
    rows = found[found["operator"].str.startswith("batch norm")]
    assert abs(rows["predicted_us"].sum() / rows["trace_us"].sum() - 1.0) < bar
    (gradients,) = found.loc[found["operator"] == "convolution backward", "error_percent"]
    assert abs(gradients) < 5.0
