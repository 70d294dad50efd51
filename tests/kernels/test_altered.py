"""A GPU with altered figures: the time of each call scales with the figures that limit it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.figures import accuracy_inputs
from pipeline import flow as flows
from pipeline.answers.altered_gpu import AlteredPredictor
from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.predict import predict
from pipeline.answers.who_answers import kernel_predictor
from pipeline.errors import ConfigError
from pipeline.flow import Flow
from pipeline.hardware.find_gpu import composed_gpu, load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.model_files import list_packs
from pipeline.paths import config_dir
from pipeline.question.question import ask
from pipeline.yaml_text import load_yaml

needs_pack = pytest.mark.skipif(
    not {"V100", "A100-PCIE-40GB"} <= set(list_packs()), reason="no packs"
)

MOVED = {
    "copy": "copy", "optimizer": "adam", "index": "gather", "sort": "sort", "memset": "memset",
    "memcpy_d2d": "memcpy", "memcpy_h2d": "pinned", "memcpy_d2h": "pageable", "unheard_of": "",
}  # fmt: skip
_SIZE = {"bytes": 4e8, "bytes_read": 2e8, "bytes_written": 2e8}

_PRODUCT = {"op": "linear", "M": 4096.0, "N": 4096.0, "K": 4096.0}
_CONV = {
    "op": "conv", "B": 32.0, "in_channels": 128.0, "out_channels": 128.0, "kernel_size": 3.0,
    "input_size": 28.0, "stride": 1.0, "padding": 1.0, "groups": 1.0,
}  # fmt: skip
_HEADS = {"B": 256.0, "M": 1024.0, "N": 1024.0, "K": 64.0}
_ROWS = {"B": 65536.0, "H": 4096.0}
_BAG = {"B": 65536.0, "D": 128.0, "E": 4e6, "T": 8.0, "L": 10.0}
CALLS = pd.DataFrame(
    [
        {"family": "elementwise", "op": "add", **_ROWS},
        {"family": "softmax", "op": "softmax", **_ROWS},
        {"family": "layer_norm", "op": "ln", **_ROWS},
        {"family": "dropout", "op": "", **_ROWS},
        {"family": "reduction", "op": "sum", **_ROWS},
        {"family": "batch_norm", "op": "batch_norm", "B": 64.0, "C": 256.0, "HW": 3136.0},
        {"family": "embedding_forward", "op": "fused", **_BAG},
        {"family": "embedding_backward", "op": "fused_sgd", **_BAG},
        *({"family": name, "op": op, **_SIZE} for name, op in MOVED.items()),
        {"family": "gemm", **_PRODUCT},
        {"family": "gemm", **_PRODUCT, "M": 64.0, "phase": "backward"},
        {"family": "gemm", **_PRODUCT, "dtype": "bf16"},
        {"family": "bmm", **_PRODUCT, "op": "bmm", "B": 8.0, "M": 256.0, "K": 256.0},
        {"family": "conv2d_forward", **_CONV},
        {"family": "conv2d_backward_weight", **_CONV, "phase": "backward"},
        {"family": "attention", "op": "flash", "dtype": "bf16", **_HEADS},
        {
            "family": "rnn",
            "op": "lstm",
            "B": 64.0,
            "T": 50.0,
            "I": 512.0,
            "H": 512.0,
            "layers": 1.0,
        },
        {"family": "collective", "op": "all_reduce", "ranks": 8.0, **_SIZE},
    ]
).fillna({"phase": "forward", "dtype": "fp32"})


ON_THE_BUS_OR_BY_ARITHMETIC = {
    "gemm", "bmm", "conv2d_forward", "conv2d_backward_weight", "collective", "memcpy_h2d",
    "memcpy_d2h", "unheard_of", "attention", "rnn",
}  # fmt: skip


def altered(name: str, *overrides: str) -> GpuSpec:
    """The GPU of a configuration with overrides of its figures."""
    return ask([f"gpu={name}", *(f"gpu.{text}" for text in overrides)]).gpu


@lru_cache(maxsize=4)
def stated(name: str) -> KernelPredictor:
    return kernel_predictor(load_gpu(name), "auto", None)


def predictor(name: str, *overrides: str) -> KernelPredictor:
    return kernel_predictor(altered(name, *overrides), "auto", None)


def ratios(name: str, *overrides: str) -> pd.Series:
    """Kernel time over the catalogue's, by family (the first call of each)."""
    new = predictor(name, *overrides).predict(CALLS)["kernel_us"]
    return (new / stated(name).predict(CALLS)["kernel_us"]).groupby(CALLS["family"]).first()


def test_figures_that_hang_on_an_altered_one_follow() -> None:
    real, clocked = load_gpu("V100"), altered("V100", "boost_clock_mhz=690")
    faster = replace(real, dram_gb_per_s=3000.0, measured_dram_gb_per_s=817 * 3000 / 900)
    assert altered("V100", "dram_gb_per_s=3000") == faster
    for name in ("base_clock_mhz", "fp32_gflop_per_s", "fp16_gflop_per_s", "measured_l2_gb_per_s"):
        assert getattr(clocked, name) == pytest.approx(0.5 * getattr(real, name)), name
    assert (clocked.dram_gb_per_s, clocked.tdp_w, clocked.measured_dram_gb_per_s) == (900, 250, 817)


def test_a_stated_figure_stays_and_is_checked() -> None:
    stays = altered("V100", "dram_gb_per_s=1000", "measured_dram_gb_per_s=700")
    assert stays.measured_dram_gb_per_s == 700
    for said, *figures in (
        (
            "measured_dram_gb_per_s = 5000 is implaus",
            "dram_gb_per_s=2000",
            "measured_dram_gb_per_s=5000",
        ),
        (r"dram_gb_per_s = 9e\+09 is implausible", "dram_gb_per_s=9e9"),
        ("gpu.boost_clock_mhz=fast: give a number", "boost_clock_mhz=fast"),
    ):
        with pytest.raises(ConfigError, match=said):
            altered("V100", *figures)


@needs_pack
def test_unaltered_figures_and_memory_leave_every_prediction_alone() -> None:
    for overrides in ((), ("memory_gib=16",), ("dram_gb_per_s=900",)):
        found = predictor("V100", *overrides)
        assert not isinstance(found, AlteredPredictor)
        pd.testing.assert_frame_equal(
            found.predict(CALLS), stated("V100").predict(CALLS), check_exact=True
        )


@needs_pack
def test_half_the_bandwidth_makes_memory_bound_calls_twice_as_long_and_arithmetic_hardly() -> None:
    found = ratios("V100", "dram_gb_per_s=450")
    bound = found.drop(list(ON_THE_BUS_OR_BY_ARITHMETIC))
    # a block's softmax waits for its passes too: a V100 reaches 0.7 of its bandwidth in rows of 4096 (public table)
    assert bound.between(1.7, 2.0).all() and bound.idxmin() == "softmax", found
    assert 1.0 <= found["gemm"] < 1.1
    assert found[["memcpy_h2d", "memcpy_d2h"]].eq(1.0).all()


@needs_pack
@pytest.mark.parametrize("figure", ["dram_gb_per_s=901", "fp32_tflop_per_s=14.01", "l2_mib=6.01"])
def test_a_small_change_is_a_small_change(figure: str) -> None:
    assert ratios("V100", figure).to_numpy() == pytest.approx(1.0, rel=0.0012)


@needs_pack
def test_what_rested_on_samples_is_transferred_with_a_wider_interval() -> None:
    old, new = stated("V100").predict(CALLS), predictor("V100", "dram_gb_per_s=1000").predict(CALLS)
    was, now = (table["evidence"].str.removesuffix(" extrapolated") for table in (old, new))
    own = was == "pack"
    assert 8 < own.sum() < len(CALLS)
    assert (now[own] == "transferred").all() and (now[~own] == was[~own]).all()
    for low, high in (("p10_us", "p90_us"), ("latency_p10_us", "latency_p90_us")):
        growth = np.log(new[high] / new[low]) / np.log(old[high] / old[low])
        # the error of another session, which both have, does not grow
        assert growth[own].between(1.2, 1.501).all()
        assert growth[~own].to_numpy() == pytest.approx(1.0)


@needs_pack
def test_the_link_moves_pinned_host_copies_alone() -> None:
    found = ratios("V100", "pcie_generation=4")
    assert 0.5 <= found["memcpy_h2d"] <= 0.51
    # a pageable copy waits for the CPU
    assert found.drop(["memcpy_h2d", "collective"]).eq(1.0).all()


def test_half_precision_packs_and_collectives_move_too() -> None:
    clocked, linked = (
        ratios("H100", figure)
        for figure in ("boost_clock_mhz=1782", "nvlink_bidirectional_gb_per_s=450")
    )
    calls = CALLS[(CALLS["dtype"] == "bf16") & (CALLS["family"] == "gemm")]
    half, was = (
        each.predict(calls).iloc[0]
        for each in (predictor("H100", "boost_clock_mhz=1782"), stated("H100"))
    )
    assert (was["evidence"], half["evidence"]) == ("pack", "transferred")
    # tensor cores of an H100 are limited by power: a lower clock costs less than its share
    assert 1.02 < half["kernel_us"] / was["kernel_us"] < 1 / 0.9
    assert clocked["collective"] == 1.0 == linked["gemm"] and 1.9 < linked["collective"] <= 2.0


@needs_pack
@settings(max_examples=3)
@given(
    gpu=st.sampled_from(["V100", "A100-PCIE-40GB", "H100"]),
    what=st.sampled_from(["dram_gb_per_s", "boost_clock_mhz", "tdp_w", "l2_mib", "sms"]),
    steps=st.tuples(st.floats(1.0, 1.6), st.floats(1.0, 1.6)),
    exponent=st.floats(-8, 0),
)
def test_more_of_a_figure_never_predicts_slower(
    gpu: str, what: str, steps: tuple[float, float], exponent: float
) -> None:
    values = load_yaml((config_dir() / "gpu" / f"{gpu}.yaml").read_text())
    sized = CALLS.copy()
    sized[["B", "M", *_SIZE]] = np.ceil(sized[["B", "M", *_SIZE]] * 2**exponent)
    figures = values[what] * np.cumprod(steps)
    figures = figures.round().astype(int) if what == "sms" else figures
    own = stated(gpu)
    real = own.predict(sized)
    first, second = (
        AlteredPredictor.of(composed_gpu({**values, what: figure.item()})[0], own).predict(sized)
        for figure in figures
    )
    for name in ("kernel_us", "predicted_us"):
        assert (first[name] <= real[name] * (1 + 1e-9)).all()
        if what not in ("l2_mib", "sms"):
            assert (second[name] <= first[name] * (1 + 1e-9)).all()


@needs_pack
def test_a_step_moves_with_the_bandwidth_and_only_fits_with_the_memory() -> None:
    real, small, fast = (
        predict(gpu="V100", model="dlrm_default", batch_size=2048, **figures)
        for figures in ({}, {"gpu__memory_gib": 1}, {"gpu__dram_gb_per_s": 1800})
    )
    assert real.fits and not small.fits
    assert (small.predicted_us, small.p90_us, small.evidence) == (
        real.predicted_us,
        real.p90_us,
        real.evidence,
    )
    assert fast.predicted_us < 0.9 * real.predicted_us
    assert (
        "pack" in real.evidence and "pack" not in fast.evidence and "transferred" in fast.evidence
    )


def test_fits_of_a_pipeline_run_are_the_catalogue_s(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"gpu": "V100", "host": "v100-traces", "model": "dlrm_default"}
    real = Flow.from_config(asked)
    what = Flow.from_config(asked | {"overrides": "gpu.dram_gb_per_s=2000"})
    points = [flow.points[0] for flow in (what, real)]
    assert what.folder(points[0]) != real.folder(points[1])
    altered_step, step = (
        SimpleNamespace(
            gpu=p.gpu.name, model=p.model, variant=p.variant, batch=p.batch_size, kernels="auto"
        )
        for p in points
    )
    assert what.models_of_point(altered_step) == real.models_of_point(step)
    # a step that a campaign measured is the real card's, and no error of a what-if can be had from it
    monkeypatch.setattr(flows, "kernel_source", lambda gpu: flows.Source.MEASUREMENTS)
    assert what.steps_of_point(altered_step) == [] and len(real.steps_of_point(step)) == 1
    assert accuracy_inputs.error_parts(what) == [] and len(accuracy_inputs.error_parts(real)) == 1
