"""Compares predicted kernels of convolutional networks with public traces: batch norm, pooling, element-wise, convolution.

    STEPTIME_DATASETS=FOLDER python -m evaluation.checks.image_kernel_times

The traces hold no shapes; shapes come from the models of `rebuilt_models.py`. The V100 trace set two
constants of `pipeline/kernels/physics.py`. The RTX 2080 Ti trace is held out.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from evaluation.workloads.rebuilt_models import SHAPES
from pipeline.answers.who_answers import kernel_predictor
from pipeline.graph.capture import observe
from pipeline.graph.device_calls import map_calls
from pipeline.graph.table import Graph, write_nodes
from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import datasets_dir
from pipeline.trace.kineto_fields import DEVICE_CATEGORIES
from pipeline.trace.load import load_trace

TRACES = {"v100_ddp": "V100-SXM2-32GB", "rtx2080ti_resnet": "RTX2080Ti"}

OPERATORS = {
    "aten::cudnn_batch_norm": "batch norm",
    "aten::cudnn_batch_norm_backward": "batch norm backward",
    "aten::max_pool2d_with_indices": "max pool",
    "aten::max_pool2d_with_indices_backward": "max pool backward", "aten::clamp_min_": "relu",
    "aten::relu_": "relu", "aten::threshold_backward": "relu backward", "aten::add_": "add",
    "aten::add": "add", "aten::cudnn_convolution": "convolution",
    "aten::convolution": "convolution", "aten::convolution_backward": "convolution backward",
    "aten::fill_": "max pool backward",
}  # fmt: skip
"""Common names for operators of traces and of captured graphs. Fills clear the gradient of the pooling."""

ITERATION = 2
"""Iteration of the trace that is compared: one after the warm-up."""


def predicted_calls(trace: str, gpu: str) -> pd.DataFrame:
    """Device calls of the rebuilt model with `kernel_us`, `evidence` and the operator's `name`."""
    nodes, *_ = observe(SHAPES[trace](), False, {"name": trace})
    graph, spec = Graph(write_nodes(nodes)), load_gpu(gpu)
    calls = map_calls(graph, spec)
    predicted = kernel_predictor(spec, "auto", None).predict(calls)
    names = calls["node_id"].map(graph.table.set_index("node_id")["name"])
    return calls.assign(
        kernel_us=predicted["kernel_us"], evidence=predicted["evidence"], name=names
    )


def traced_kernels(trace: str, datasets: Path) -> pd.DataFrame:
    """Device work of one iteration with the `operator` that it ran under, in launch order."""
    events = load_trace(datasets / "traces" / trace / "kineto.json.gz").events
    at = min(ITERATION, int(events["iteration"].max()))
    work = events[
        events["category"].isin(DEVICE_CATEGORIES) & (events["iteration"] == at)
    ].sort_values("ts_ns")
    return work.assign(operator=work["op"].map(events.set_index("event_id")["name"]).astype(str))


def compare(trace: str, gpu: str, datasets: Path) -> pd.DataFrame:
    """Sums by operator: `trace_us`, `predicted_us`, `error_percent`."""
    kernels, calls = traced_kernels(trace, datasets), predicted_calls(trace, gpu)
    measured = kernels.groupby(kernels["operator"].map(OPERATORS))["dur_ns"].sum() / 1e3
    predicted = calls.groupby(calls["name"].map(OPERATORS))["kernel_us"].sum()
    table = (
        pd.DataFrame({"trace_us": measured, "predicted_us": predicted})
        .rename_axis("operator")
        .reset_index()
    )
    return table.assign(
        gpu=gpu, error_percent=100.0 * (table["predicted_us"] / table["trace_us"] - 1.0)
    )


if __name__ == "__main__":
    for trace, gpu in TRACES.items():
        table = compare(trace, gpu, datasets_dir() or Path()).round(1)
        print(f"\n{trace} as {gpu}\n{table.to_string(index=False)}")
