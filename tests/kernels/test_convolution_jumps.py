"""Convolutions over a grid of shapes: half of a dimension takes no longer, and neither does a faster dtype.

"No longer" is meant within intervals: p10 of the first is at most p90 of the second. Exceptions, each with its reason:

- `_rule_changes`: PyTorch gives a depthwise convolution in fp16 and NCHW to cuDNN only above a number of channels. Its
  own kernel for the half number can be many times slower (github.com/pytorch/pytorch/pull/58749 found 15 to 20 times).
- `_uneven`: cuDNN has tensor-core kernels for narrow groups only where their number is a multiple of 32, with four or
  more channels in each (`pipeline/families/tensor_cores.py`). Half of the groups or of their width may have none.
- `_small_learned`: learned models of products are up to three times too long for some kernels under 0.1 ms (few rows or
  columns, a long reduction). `LARGER` in `pipeline/kernels/derived_calls.py` limits this, and longer kernels have none.
- `_converted`: kernels for fp16 and bf16 exist in NHWC only. Around them cuDNN converts whole images, also pixels that a
  window smaller than its stride skips, and with channels filled up to 32. Convolutions of few channels gain less than that costs.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.arrays import Flags
from pipeline.families.convolutions import native
from pipeline.families.dims import Dims
from pipeline.families.tensor_cores import evenly_grouped, on_tensor_cores
from pipeline.hardware.find_gpu import load_gpu
from tests.kernels.shipped import CONVOLUTIONS, shipped

GPUS = (
    "V100",
    "A100",
    *(pytest.param(gpu, marks=pytest.mark.nightly) for gpu in ("H100", "T4", "P100")),
)
SHAPES, SEED = 200, 0
MOST_ELEMENTS = 2**28
SHORT_US = 100.0
HALVES = ("batch", "channels", "size", "width")


def shapes() -> pd.DataFrame:
    """Shapes with every option: groups, windows, strides, dilation, 1D, 3D, transposed; one row per shape."""
    draw = np.random.default_rng(SEED)
    table = pd.DataFrame(
        {
            "B": 2 ** draw.integers(1, 9, SHAPES),
            "in_channels": 2 ** draw.integers(4, 11, SHAPES),
            "kernel_size": draw.choice([1, 2, 3, 4, 5, 6, 7], SHAPES),
            "input_size": draw.choice([7, 14, 28, 56, 112], SHAPES),
            "stride": draw.choice([1, 1, 2, 3], SHAPES),
            "dilation": draw.choice([1, 1, 2], SHAPES),
        }
    ).astype(float)
    kind, form = (
        draw.choice(["dense", "depthwise", "grouped"], SHAPES),
        draw.choice(["2d", "1d", "row", "turned"], SHAPES),
    )
    channels = table["in_channels"]
    width = 2.0 ** draw.integers(1, 5, SHAPES)
    table["groups"] = np.select(
        [kind == "depthwise", kind == "grouped"], [channels, np.maximum(channels / width, 2)], 1
    )
    wider = 2.0 ** draw.integers(4, 11, SHAPES)
    table["out_channels"] = np.select(
        [kind == "depthwise", kind == "grouped"],
        [channels * draw.choice([1, 1, 2], SHAPES), channels],
        wider,
    )
    table["padding"] = table["dilation"] * (table["kernel_size"] // 2)
    line, row = form == "1d", form == "row"
    for name, single in (("kernel_size", 1), ("input_size", 1), ("stride", 1), ("padding", 0)):
        table[f"{name}_w"] = (
            table[name] if name != "input_size" else table[name] ** np.where(line, 2, 1)
        )
        table[name] = np.where(line, single, table[name])
    table["kernel_size_w"] = np.where(row, 1, table["kernel_size_w"])
    table["padding_w"] = np.where(row, 0, table["padding_w"])
    volume = (kind == "depthwise") & (form == "2d") & (table["kernel_size"] == 3)
    table["in_channels"] = np.where(volume, 3 * channels, channels)
    said = np.select(
        [volume, (form == "turned") & (kind != "dense")],
        ['"volume":true,"single_channel":true', '"transposed":true'],
        "",
    )
    elements = (
        table["B"]
        * np.maximum(table["out_channels"], channels)
        * table["input_size"]
        * table["input_size_w"]
    )
    return table.assign(said=said)[elements < MOST_ELEMENTS].reset_index(drop=True)


def halved(table: pd.DataFrame, what: str) -> tuple[pd.DataFrame, Flags]:
    """The shapes with one dimension halved, and which shapes can be halved."""
    half, volume, several = table.copy(), table["said"].str.contains("volume"), table["groups"] > 1
    changed = {
        "batch": ["B"],
        "channels": ["in_channels", "out_channels"],
        "size": ["input_size", "input_size_w"],
        "width": ["in_channels", "out_channels"],
    }[what]
    half[changed] = np.maximum(half[changed] // 2, 1)
    possible = pd.Series(True, table.index)
    if what == "channels":
        half["groups"] = np.where(several, table["groups"] // 2, 1)
        possible = ~several | (table["groups"] >= 4)
    if what == "size":
        possible = table["input_size_w"] >= 14
    if what == "width":
        possible = several & (table["in_channels"] / table["groups"] >= 4) & ~volume
    return half, possible.to_numpy()


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
    """Whether tensor cores compute the larger grouped convolution, and not the smaller."""
    lost = evenly_grouped(Dims(larger)) & ~evenly_grouped(Dims(smaller))
    return np.asarray(lost & on_tensor_cores(Dims(larger), load_gpu(gpu)))


def _small_learned(found: pd.DataFrame) -> Flags:
    learned = (found["evidence"] != "roofline").to_numpy()
    return np.asarray(learned & (found["kernel_us"].to_numpy() < SHORT_US))


def _converted(table: pd.DataFrame, dtype: str, nhwc: bool) -> Flags:
    skips = (table["kernel_size"] < table["stride"]) | (table["kernel_size_w"] < table["stride_w"])
    narrow = table[["in_channels", "out_channels"]].min(axis=1) < 32
    return np.asarray((skips | narrow) & (dtype in ("fp16", "bf16")) & (not nhwc))


def _longer(first: pd.DataFrame, second: pd.DataFrame) -> Flags:
    return first["p10_us"].to_numpy() > second["p90_us"].to_numpy()


def _say(table: pd.DataFrame, rows: Flags, *times: pd.DataFrame) -> str:
    found = [
        f"{row.dropna().to_dict()}: {[float(time['kernel_us'].iloc[i]) for time in times]}"
        for i, row in table[rows].iterrows()
    ]
    return "\n".join(found)


@pytest.mark.parametrize("family", CONVOLUTIONS)
@pytest.mark.parametrize("gpu", GPUS)
def test_half_of_a_dimension_takes_no_longer(gpu: str, family: str) -> None:
    predictor, table = shipped(gpu), shapes()
    for dtype, nhwc in (
        ("fp32", False),
        ("tf32", False),
        ("fp16", False),
        ("fp16", True),
        ("bf16", False),
    ):
        whole = predictor.predict(calls(table, family, dtype, nhwc))
        for what in HALVES:
            half, possible = halved(table, what)
            found = predictor.predict(calls(half, family, dtype, nhwc))
            both = calls(table, family, dtype, nhwc), calls(half, family, dtype, nhwc)
            changes = _rule_changes(*both, gpu) | _uneven(*both, gpu)
            bad = possible & ~changes & _longer(found, whole) & ~_small_learned(found)
            assert not bad.any(), f"{what}, {dtype}, NHWC {nhwc}\n{_say(table, bad, whole, found)}"
            # formulas of grouped convolutions have no noise: they never grow at all
            grown = found["kernel_us"].to_numpy() > 1.001 * whole["kernel_us"].to_numpy()
            bad = possible & ~changes & grown & (table["groups"] > 1).to_numpy()
            assert not bad.any(), f"{what}, {dtype}, NHWC {nhwc}\n{_say(table, bad, whole, found)}"


@pytest.mark.parametrize("family", CONVOLUTIONS)
@pytest.mark.parametrize("gpu", GPUS)
def test_a_faster_dtype_takes_no_longer(gpu: str, family: str) -> None:
    predictor, table = shipped(gpu), shapes()
    for nhwc in (False, True):
        found = {
            dtype: predictor.predict(calls(table, family, dtype, nhwc))
            for dtype in ("fp32", "tf32", "fp16", "bf16")
        }
        for slow, fast in (("fp32", "tf32"), ("tf32", "fp16"), ("fp32", "fp16"), ("fp32", "bf16")):
            bad = _longer(found[fast], found[slow]) & ~_converted(table, fast, nhwc)
            assert not bad.any(), (
                f"{fast} after {slow}, NHWC {nhwc}\n{_say(table, bad, found[slow], found[fast])}"
            )
