"""Convolutions over a grid of shapes: half of a dimension takes no longer, and neither does a faster dtype.

"No longer" is meant within intervals: p10 of the first is at most p90 of the second. Exceptions, each with its reason:

- `_rule_changes`: PyTorch gives a depthwise convolution in fp16 and NCHW to cuDNN only above a number of channels. Its
  own kernel for the half number can be many times slower (github.com/pytorch/pytorch/pull/58749 found 15 to 20 times).
- `_uneven`: cuDNN has tensor-core kernels for narrow groups only where their number is a multiple of 32, with four or
  more channels in each (`pipeline/families/tensor_cores.py`). Half of the groups or of their width may have none. In NHWC
  its older versions compute these with slow direct kernels, also where there are no tensor cores.
- `_small_learned`: learned models of products are up to three times too long for some kernels under 0.1 ms (few rows or
  columns, a long reduction). `LARGER` in `pipeline/kernels/derived_calls.py` limits this, and longer kernels have none.
- `_converted`: kernels for fp16 and bf16 exist in NHWC only. Around them cuDNN converts whole images, also pixels that a
  window smaller than its stride skips, and with channels filled up to 32. Convolutions of few channels gain less than that costs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.arrays import Flags
from pipeline.families.convolutions import native, only_direct
from pipeline.families.dims import Dims
from pipeline.families.tensor_cores import evenly_grouped, on_tensor_cores
from pipeline.hardware.find_gpu import load_gpu
from tests.kernels.shipped import CONVOLUTIONS, shipped

GPUS = (
    "V100",
    "A100",
    *(pytest.param(gpu, marks=pytest.mark.nightly) for gpu in ("H100", "T4", "P100")),
)
SHAPES, SEED = 120, 0
MOST_ELEMENTS = 2**28
SHORT_US = 100.0
HALVES = ("batch", "channels", "size", "width")


def shapes() -> pd.DataFrame:
    """Shapes with every option: groups, windows, strides, dilation, 1D, 3D, transposed; one row per shape."""
    draw = np.random.default_rng(SEED)

    def power(low: int, high: int) -> np.ndarray:
        return 2.0 ** draw.integers(low, high, SHAPES)

    kind, form = (
        draw.choice(names, SHAPES)
        for names in (["dense", "depthwise", "grouped"], ["2d", "1d", "row", "turned"])
    )
    depthwise, grouped, dense = (kind == name for name in ("depthwise", "grouped", "dense"))
    channels, window = power(4, 11), draw.choice([1, 2, 3, 4, 5, 6, 7], SHAPES)
    table = pd.DataFrame({"B": power(1, 9), "in_channels": channels, "kernel_size": window})
    table["out_channels"] = np.where(dense, power(4, 11), channels)
    table["groups"] = np.where(
        dense, 1, np.maximum(channels / np.where(grouped, power(1, 5), 1), 2)
    )
    table["input_size"] = draw.choice([7, 14, 28, 56, 112], SHAPES)
    table["stride"], table["dilation"] = (draw.choice([1, 1, n], SHAPES) for n in (2, 2))
    table["padding"] = table["dilation"] * (window // 2)
    line, row = form == "1d", form == "row"
    for name, single in (("kernel_size", 1), ("input_size", 1), ("stride", 1), ("padding", 0)):
        long = table[name] ** np.where(line & (name == "input_size"), 2, 1)
        across = row & (name in ("kernel_size", "padding"))
        table[f"{name}_w"] = np.where(across, single, long)
        table[name] = np.where(line, single, table[name])
    volume = depthwise & (form == "2d") & (window == 3)
    table["in_channels"] = np.where(volume, 3 * channels, channels)
    names = ['"volume":true,"single_channel":true', '"transposed":true']
    said = np.select([volume, (form == "turned") & ~dense], names, "")
    widest = np.maximum(table["out_channels"], channels)
    elements = table["B"] * widest * table["input_size"] * table["input_size_w"]
    return table.astype(float).assign(said=said)[elements < MOST_ELEMENTS].reset_index(drop=True)


def halved(table: pd.DataFrame, what: str) -> tuple[pd.DataFrame, Flags]:
    """The shapes with one dimension halved, and which shapes can be halved."""
    half, several = table.copy(), table["groups"] > 1
    channels = ["in_channels", "out_channels"]
    changed = {"batch": ["B"], "size": ["input_size", "input_size_w"]}.get(what, channels)
    half[changed] = np.maximum(half[changed] // 2, 1)
    if what == "channels":
        half["groups"] = np.where(several, table["groups"] // 2, 1)
    possible = {
        "batch": table["B"] > 0,
        "channels": ~several | (table["groups"] >= 4),
        "size": table["input_size_w"] >= 14,
        "width": several
        & (table["in_channels"] / table["groups"] >= 4)
        & ~table["said"].str.contains("volume"),
    }
    return half, possible[what].to_numpy()


def calls(table: pd.DataFrame, family: str, dtype: str, nhwc: bool) -> pd.DataFrame:
    parts = table["said"] + (',"layout":"nhwc"' if nhwc else "")
    attributes = "{" + parts.str.strip(",") + "}"
    phase = "forward" if family == CONVOLUTIONS[0] else "backward"
    return table.drop(columns="said").assign(
        family=family, op="conv", phase=phase, dtype=dtype, attributes=attributes
    )


def _rule_changes(larger: pd.DataFrame, smaller: pd.DataFrame, gpu: str) -> Flags:
    """Whether PyTorch's own kernels compute the smaller convolution, and cuDNN the larger."""
    capability = load_gpu(gpu).compute_capability
    return np.asarray(native(Dims(smaller), capability) & ~native(Dims(larger), capability))


def _uneven(larger: pd.DataFrame, smaller: pd.DataFrame, gpu: str) -> Flags:
    """Whether the library has fast kernels for the larger grouped convolution, and not for the smaller."""
    spec, whole, half = load_gpu(gpu), Dims(larger), Dims(smaller)
    lost = evenly_grouped(whole) & ~evenly_grouped(half)
    return np.asarray(lost & (on_tensor_cores(whole, spec) | only_direct(half, spec)))


def _small_learned(found: pd.DataFrame) -> Flags:
    learned = (found["evidence"] != "roofline").to_numpy()
    return np.asarray(learned & (found["kernel_us"].to_numpy() < SHORT_US))


def _converted(table: pd.DataFrame, dtype: str, nhwc: bool) -> Flags:
    skips = (table["kernel_size"] < table["stride"]) | (table["kernel_size_w"] < table["stride_w"])
    narrow = table[["in_channels", "out_channels"]].min(axis=1) < 32
    return np.asarray((skips | narrow) & (dtype in ("fp16", "bf16")) & (not nhwc))


def predicted(
    predictor: KernelPredictor, parts: dict[Any, pd.DataFrame]
) -> dict[Any, pd.DataFrame]:
    """Times of several tables of one length, asked for at once."""
    found = predictor.predict(pd.concat(parts.values(), ignore_index=True))
    rows = len(found) // len(parts)
    return {
        key: found[place * rows :][:rows].reset_index(drop=True) for place, key in enumerate(parts)
    }


@pytest.mark.parametrize("family", CONVOLUTIONS)
@pytest.mark.parametrize("gpu", GPUS)
def test_half_of_a_dimension_and_a_faster_dtype_take_no_longer(gpu: str, family: str) -> None:
    predictor, table = shipped(gpu), shapes()
    kinds = [(dtype, nhwc) for nhwc in (False, True) for dtype in ("fp32", "tf32", "fp16", "bf16")]
    every = {kind: calls(table, family, *kind) for kind in kinds}
    times = predicted(predictor, every)

    def longer(first: pd.DataFrame, second: pd.DataFrame) -> Flags:
        return (first["p10_us"] > second["p90_us"]).to_numpy()

    def none(bad: Flags, *said: object) -> None:
        assert not bad.any(), f"{said}\n{table[bad].to_string()}"

    for slow, fast in (("fp32", "tf32"), ("tf32", "fp16"), ("fp32", "fp16"), ("fp32", "bf16")):
        for nhwc in (False, True):
            bad = longer(times[fast, nhwc], times[slow, nhwc])
            none(bad & ~_converted(table, fast, nhwc), fast, slow, nhwc)
    halves = {
        (kind, what): calls(halved(table, what)[0], family, *kind)
        for kind in (*kinds[:4], ("fp16", True))
        for what in HALVES
    }
    for (kind, what), found in predicted(predictor, halves).items():
        both, before = (every[kind], halves[kind, what]), times[kind]
        same = halved(table, what)[1] & ~_rule_changes(*both, gpu) & ~_uneven(*both, gpu)
        none(same & longer(found, before) & ~_small_learned(found), what, kind)
        # formulas of grouped convolutions have no noise: they never grow at all
        grown = (found["kernel_us"] > 1.001 * before["kernel_us"]) & (table["groups"] > 1)
        none(same & grown.to_numpy(), what, kind)
