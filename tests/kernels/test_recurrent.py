"""Recurrent layers as products, cells and launches: added up by hand with products that cost what they compute."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.who_answers import kernel_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import rnn_kernels as recurrent
from pipeline.kernels.estimate import Estimate, Floor
from pipeline.kernels.physics import Physics
from pipeline.kernels.rnn_kernels import LAUNCH_US, recurrent_us

WIDE = {"B": 64, "T": 50, "I": 1024, "H": 1024, "layers": 1}


def calls(*rows, **more):
    """A table of LSTM calls; `directions`, `gates` and `projected` go into the attributes."""
    made = []
    for row in rows or ({},):
        one = {**WIDE, "phase": "forward", "dtype": "fp32", **more, **row}
        said = {key: one.pop(key) for key in ("directions", "gates", "projected") if key in one}
        made.append({**one, "family": "rnn", "op": "lstm", "attributes": json.dumps(said)})
    return pd.DataFrame(made)


def by_work(table: pd.DataFrame):
    """A product takes a microsecond per MFLOP, with an interval of a fifth up and down."""
    kernel = (2e-6 * table["M"] * table["N"] * table["K"]).to_numpy(dtype=float)
    return Estimate.around(kernel, kernel, 1.2, np.zeros(len(table))), np.full(
        len(table), "pack", dtype=object
    )


def free(table: pd.DataFrame):
    """Products that take almost no time."""
    found, kinds = by_work(table)
    return found.scale(1e-9), kinds


def us(table, products=by_work, gpu="V100"):
    return recurrent_us(table, products, Physics.of(load_gpu(gpu)))[0].kernel


def chosen(rule, sizes, dtype, gpu):
    """Whether a rule gives the first layer of a GPU its kernel."""
    return rule(sizes, np.array([dtype], dtype=object), Physics.of(load_gpu(gpu)))[0]


def flops(row):
    """FLOPs of the input's and the recurrent product of every layer, direction and step; twice that in backward."""
    said = json.loads(row["attributes"])
    directions, gates, p = (
        said.get(*of) for of in (("directions", 1), ("gates", 4), ("projected", 0))
    )
    out = p or row["H"]
    inputs = row["I"] + (row["layers"] - 1) * directions * out
    once = row["H"] * (gates * (inputs + row["layers"] * out) + row["layers"] * p)
    return 2 * once * directions * row["T"] * row["B"] * (2 if row["phase"] == "backward" else 1)


SHAPES = (
    {"gates": 3, "I": 256}, {"layers": 3, "directions": 2}, {"layers": 2, "T": 1},
    {"phase": "backward", "directions": 2, "layers": 2},
    {"projected": 256, "layers": 2, "directions": 2},
    {"projected": 256, "layers": 2, "directions": 2, "phase": "backward"},
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_products_do_the_arithmetic_of_the_layer(shape):
    table = calls(shape)
    (row,) = table.to_dict("records")
    layers = recurrent.Layers.of(table)
    parts, _, times, _ = recurrent._products(layers, np.array(["fp32"], dtype=object))
    done = 2.0 * (times * parts["M"] * parts["N"] * parts["K"]).sum()
    assert done == pytest.approx(flops(row)) and us(table)[0] > 1e-6 * done
    assert set(parts["phase"]) == {row["phase"]}


@pytest.mark.parametrize("phase, launches", [("forward", 2), ("backward", 3)])
def test_a_step_of_negligible_work_takes_its_launches(phase, launches):
    few = calls({"B": 1, "H": 512, "I": 8, "T": 1000, "layers": 4, "phase": phase})
    assert us(few, free)[0] == pytest.approx(4 * 1000 * launches * LAUNCH_US, rel=0.01)


def test_layers_of_a_stack_overlap_and_bidirectional_ones_do_not():
    stacks = ({}, {"layers": 4}, {"layers": 4, "directions": 2})
    one, four, both = us(calls(*stacks, B=1, H=512, I=512, T=500))
    assert four < 4.0 * one < both


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_more_work_takes_longer(phase):
    for name, values in (
        ("B", (1, 8, 64, 500)),
        ("T", (1, 2, 50, 700)),
        ("I", (8, 100, 4000)),
        ("H", (256, 300, 1024, 3000)),
        ("layers", (1, 2, 6)),
        ("gates", (1, 3, 4)),
    ):
        found = us(calls(*({name: value} for value in values), phase=phase))
        assert (np.diff(found) > 0).all(), name


@pytest.mark.parametrize(
    "hidden, phase, gates, kept",
    [
        (192, "forward", 4, True),
        (200, "forward", 4, False),
        (128, "backward", 4, True),
        (384, "forward", 1, True),
        (264, "backward", 1, False),
    ],
)
def test_small_layers_get_the_kernel_that_pytorch_chooses(hidden, phase, gates, kept):
    table = calls({"H": hidden, "I": 64, "phase": phase, "gates": gates, "B": 1, "T": 1000})
    sizes = recurrent.Layers.of(table)
    assert chosen(recurrent._uses_small_persistent, sizes, "fp32", "V100") == kept
    assert not chosen(recurrent._uses_small_persistent, sizes, "fp64", "V100")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_projected_layer_multiplies_less_and_launches_more(phase):
    """Regression: it counted as an LSTM without a projection."""
    wide, narrow = us(calls({}, {"projected": 128}, phase=phase))
    assert narrow < 0.75 * wide
    plain, projected = us(calls({}, {"projected": 64}, B=1, H=512, I=8, T=1000, phase=phase), free)
    assert projected - plain == pytest.approx(1000 * LAUNCH_US, rel=0.02)
    for rule, dims, dtype, gpu in (
        (recurrent._uses_small_persistent, {"H": 128}, "fp32", "V100"),
        (recurrent._uses_large_persistent, {"B": 64}, "fp16", "A100"),
    ):
        sizes = [recurrent.Layers.of(calls({**dims, **more})) for more in ({}, {"projected": 64})]
        assert [bool(chosen(rule, each, dtype, gpu)) for each in sizes] == [True, False]


def test_a_resident_layer_takes_far_less_than_its_launches():
    [found] = us(calls({"H": 64, "I": 64, "B": 4, "T": 1000}), free)
    assert found < 0.3 * 1000 * 2 * LAUNCH_US


@pytest.mark.parametrize(
    "gpu, batch, tokens, expected",
    [
        ("V100", 128, 40, True),
        ("V100", 128, 39, False),
        ("V100", 256, 50, False),
        ("A100", 128, 5, True),
        ("A100", 136, 50, False),
        ("H100", 64, 50, True),
        ("RTX3090", 64, 50, False),
        ("RTX4090", 64, 50, True),
    ],
)
def test_the_large_persistent_kernel_is_taken_where_pytorch_takes_it(gpu, batch, tokens, expected):
    table = calls({"B": batch, "T": tokens})
    sizes = recurrent.Layers.of(table)
    assert chosen(recurrent._uses_large_persistent, sizes, "fp16", gpu) == expected
    assert not chosen(recurrent._uses_large_persistent, sizes, "fp32", gpu)


def test_intervals_hold_the_products_own_and_evidence_is_theirs():
    table = calls({}, {"H": None})
    found, evidence = recurrent_us(table, by_work, Physics.of(load_gpu("V100")))
    assert list(evidence) == ["pack", "roofline"]
    assert found.p10[0] < found.kernel[0] / 1.2 and found.p90[0] > found.kernel[0] * 1.2
    assert np.isnan(found.kernel[1]), "a call without its sizes has no time"


def test_a_latency_is_the_kernel_and_what_timing_adds():
    floor, table = Floor(10.0, 500.0, {}), calls({}, {"H": 8, "T": 1})
    found, _ = recurrent_us(table, by_work, Physics.of(load_gpu("V100")), floor)
    assert found.latency == pytest.approx([found.kernel[0] + 10.0, 500.0])
    assert (found.latency_p10 < found.latency).all() and (found.latency < found.latency_p90).all()


@pytest.mark.parametrize(
    "gpu, dtype, kind", [("V100", "fp32", "pack"), ("V100", "fp16", "transferred")]
)
def test_predictions_rest_on_the_models_of_products(gpu, dtype, kind):
    predictor = kernel_predictor(load_gpu(gpu), "auto", None)
    found = predictor.predict(calls({}, {"phase": "backward"}, dtype=dtype))
    assert list(found["evidence"]) == [kind, kind] and found["modelled"].all()
    assert found["kernel_us"][1] > found["kernel_us"][0]
    assert (np.diff(found[["p10_us", "kernel_us", "p90_us"]].to_numpy()) > 0).all()
