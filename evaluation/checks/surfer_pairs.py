"""The Surfer experiment at model level: whole models over all ordered pairs of GPUs, from public measurements.

The public data has two measurements of each model on each GPU: its pass end to end, and its ops (NeuSight's
`model_op_latency`: one layer of the stack, with the ops before and after it). A prediction has three steps:

1. Each op measured on the origin is scaled to the destination.
2. The ops of each GPU are summed; ops of the layer are multiplied by the model's number of layers.
3. The ratio of the two sums scales the pass measured on the origin.

The utilisation models are trained without the destination.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluation.checks.method_names import TRACKER_METHOD
from evaluation.training.left_out_gpu import folds, shortened
from evaluation.training.recipes import RECIPES
from pipeline.datasets.neusight import read_samples
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import sustained_dram_gb_per_s
from pipeline.schemas import read_frame
from pipeline.transfer import wave_scaling as wave
from pipeline.transfer.scaling_methods import step_calls_us
from pipeline.transfer.shipped_models import covered
from pipeline.transfer.utilisation import UtilisationModel

CASE_COLUMNS = ["model", "mode", "seq_len", "batch_size", "option"]
"""Columns that name one measured pass."""

PASS_COLUMNS = ("gpu", *CASE_COLUMNS, "fw_latency_us", "num_layer")
OPERATOR_COLUMNS = (
    "gpu",
    *CASE_COLUMNS,
    "fw_latency_us",
    "op",
    "target",
    "input_shapes",
    "output_shape",
)
"""Columns that are read: those of a pass, and those of an op in it."""

MAX_IGNORED_US = 20.0
"""Longest op, in µs, that is left out of both sums: such ops of the op table are host work (views, sizes)."""

MODELLED_FAMILIES = ("gemm", "bmm", "elementwise", "softmax", "layer_norm")
"""Kernel families of the public language models."""

_ELEMENTWISE = {
    "add": "add", "sub": "add", "mul": "mul", "truediv": "divu", "pow": "powu", "gelu": "gelu",
    "relu": "relu", "tanh": "tanh", "where": "add", "to": "addu", "contiguous": "addu",
}  # fmt: skip


def model_calls(ops: pd.DataFrame) -> pd.DataFrame:
    """Ops of measured passes as a table of calls: `family`, `op`, dims, `in_layer`, and the op's forward latency.

    Args:
        ops: rows of `model_op_latency`, of any GPUs.
    """
    layered = ops.assign(in_layer=in_layer(ops))
    kept = layered[layered["fw_latency_us"] > MAX_IGNORED_US].reset_index(drop=True)
    texts = zip(
        kept["target"].astype(str),
        kept["input_shapes"].astype(str),
        kept["output_shape"].astype(str),
        strict=True,
    )
    calls = pd.DataFrame([_call(*row) for row in texts], index=kept.index)
    return pd.concat(
        [kept[["gpu", *CASE_COLUMNS, "in_layer"]].astype({"gpu": str}), calls], axis=1
    ).assign(latency_us=kept["fw_latency_us"].astype(float))


def in_layer(ops: pd.DataFrame) -> pd.Series:
    """Mark of the ops that belong to the layer that a model stacks.

    In each pass, in the table's order, these are the ops from the first module of layer 0 up to the next module after
    its last one.
    """
    target = ops["target"].astype(str)
    inside = target.str.contains(_LAYER)
    module = ops["op"].astype(str).eq("call_module") & ~inside
    # ops after the layer's last module, such as the residual's sum, belong to the layer until another module begins
    run = [ops[name].astype(str) for name in ("gpu", *CASE_COLUMNS)]
    begun = inside.groupby(run).cummax()
    ended = (module & begun).groupby(run).cummax()
    return begun & ~ended


_LAYER = r"(?:layers?|h)\.0\."


def _call(target: str, inputs: str, output: str) -> dict[str, Any]:
    """Family and dims of one op from its target and shapes."""
    try:
        shapes = [s for s in ast.literal_eval(inputs) if len(s) > 1]
        out = ast.literal_eval(output)
    except (ValueError, SyntaxError, TypeError):
        return {"family": "other", "op": "unknown"}
    name = (
        target.removeprefix("<built-in ")
        .split(" of ")[0]
        .split(" at 0x")[0]
        .split()[-1]
        .strip("<>")
        .lower()
    )
    last = name.rsplit(".", 1)[-1]
    if not shapes or len(out) < 2:
        return {"family": "other", "op": last}
    rows, width = int(np.prod(out[:-1])), int(out[-1])
    if last in ("addmm", "linear") and len(shapes) >= 2:
        left, right = shapes[-2:]
        return {
            "family": "gemm",
            "op": "linear",
            "B": 1,
            "M": int(np.prod(left[:-1])),
            "N": left[-1],
            "K": right[-1],
        }
    if last in ("matmul", "bmm", "baddbmm") and len(shapes) >= 2:
        left, right = shapes[-2:]
        return {
            "family": "bmm",
            "op": "bmm",
            "B": int(np.prod(left[:-2])),
            "M": left[-2],
            "N": left[-1],
            "K": right[-1],
        }
    if "softmax" in last:
        return {"family": "softmax", "op": "softmax", "B": rows, "H": width}
    if "norm" in last or last.startswith("ln_"):
        return {"family": "layer_norm", "op": "ln", "B": rows, "H": width}
    if last in _ELEMENTWISE:
        return {"family": "elementwise", "op": _ELEMENTWISE[last], "B": rows, "H": width}
    if ("." in name or name.endswith("head")) and not any(
        word in last for word in ("drop", "embed", "wte", "wpe", "act")
    ):
        # a module that is none of these is a linear layer: query, dense, fc1, lm_head
        return {"family": "gemm", "op": "linear", "B": 1, "M": rows, "N": shapes[0][-1], "K": width}
    return {"family": "elementwise", "op": "addu", "B": rows, "H": width}


def scale_models(
    passes: pd.DataFrame,
    calls: pd.DataFrame,
    destination: GpuSpec,
    models: Mapping[str, UtilisationModel],
) -> pd.DataFrame:
    """Passes measured on other GPUs, scaled to one destination.

    Args:
        passes: rows of `model_latency` (`gpu`, `CASE_COLUMNS`, `num_layer`, `fw_latency_us`).
        calls: what `model_calls` returns.
        destination: GPU to predict.
        models: utilisation models trained without the destination.

    Returns:
        Columns `CASE, origin, destination, method, measured_us, predicted_us, error`, one row per pass, origin and
        method; only passes that were measured on both.
    """
    truth = passes[passes["gpu"].astype(str) == destination.name].set_index(CASE_COLUMNS)[
        "fw_latency_us"
    ]
    layers = passes.drop_duplicates(CASE_COLUMNS).set_index(CASE_COLUMNS)["num_layer"].astype(float)
    rows: list[dict[str, Any]] = []
    for (gpu, *case), part in calls.groupby(["gpu", *CASE_COLUMNS], observed=True, sort=True):
        origin = load_gpu(str(gpu))
        measured = passes[(passes["gpu"].astype(str) == gpu)].set_index(CASE_COLUMNS)[
            "fw_latency_us"
        ]
        key: Any = tuple(case)
        if origin == destination or key not in truth.index or key not in measured.index:
            continue
        part = part.assign(times=np.where(part["in_layer"], layers.loc[key], 1))
        for method, ratio in _ratios(part, origin, destination, models).items():
            scaled = float(measured.loc[key]) * ratio
            actual = float(truth.loc[key])
            rows.append(
                {
                    **dict(zip(CASE_COLUMNS, case, strict=True)),
                    "origin": origin.name,
                    "destination": destination.name,
                    "method": method,
                    "measured_us": actual,
                    "predicted_us": scaled,
                    "error": scaled / actual - 1.0,
                }
            )
    return pd.DataFrame(rows)


def _ratios(
    part: pd.DataFrame,
    origin: GpuSpec,
    destination: GpuSpec,
    models: Mapping[str, UtilisationModel],
) -> dict[str, float]:
    """Ratio of the time of a pass's calls on the destination to their time on the origin, by method."""
    measured, times = (part[name].to_numpy(dtype=np.float64) for name in ("latency_us", "times"))
    g = wave.gamma(wave.intensity_of(part), destination)
    waves = wave.scale(measured, wave.Launches.of(part), origin, destination, g)
    both = waves.copy()
    there = here = 0.0
    usable, family = covered(part), part["family"].astype(str).to_numpy()
    for name, model in models.items():
        at = np.flatnonzero(usable & (family == name))
        if len(at):
            calls = part.iloc[at]
            both[at] = step_calls_us(model, calls, waves[at], origin, destination)
            there += float(times[at] @ model.kernel_and_latency(calls, destination)[0])
            here += float(
                times[at]
                @ model.kernel_and_latency(
                    calls, origin, correction=model.own_correction(origin.name)
                )[0]
            )
    return {
        TRACKER_METHOD: float(times @ both / (times @ measured)),
        "utilisation": there / here,
        "wave": float(times @ waves / (times @ measured)),
        "bandwidth ratio": sustained_dram_gb_per_s(origin) / sustained_dram_gb_per_s(destination),
        "FLOP/s ratio": origin.fp32_gflop_per_s / destination.fp32_gflop_per_s,
    }


def paper_surfer(data: Path, steps: int | None = None, cache: Path | None = None) -> pd.DataFrame:
    """Errors of whole models over all ordered pairs of the public GPUs; training leaves out the destination.

    Args:
        data: the datasets folder.
        steps: optimizer steps of one network per family; the shipped recipes by default.
        cache: folder of left-out models (`evaluate.folds`).

    Raises:
        TableError: a public table is missing, unreadable, or lacks columns.
    """
    passes, ops = (
        read_frame(
            data / "neusight" / name, "download the public data", "download it again", columns
        )
        for name, columns in (
            ("model_latency.parquet", PASS_COLUMNS),
            ("model_op_latency.parquet", OPERATOR_COLUMNS),
        )
    )
    calls = model_calls(ops)
    samples = read_samples(data)
    models: dict[str, dict[str, UtilisationModel]] = {}
    for family in MODELLED_FAMILIES:
        recipe = RECIPES[family] if steps is None else shortened(RECIPES[family], steps)
        for fold in folds(samples, family, recipe, cache, baseline=False, probes=False):
            models.setdefault(fold.destination.name, {})[family] = fold.utilisation
    gpus = sorted(passes["gpu"].astype(str).unique())
    return pd.concat(
        [scale_models(passes, calls, load_gpu(gpu), models[gpu]) for gpu in gpus], ignore_index=True
    )
