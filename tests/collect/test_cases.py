"""Every family that a campaign measures can be built and run by itself."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import pandas as pd
import pytest
import torch

from pipeline.collect.benchmark_calls import distinct, interleaved, seeds, sizes_around, vary
from pipeline.collect.campaign_kernels import shrink_for_trial
from pipeline.collect.cases import BUILDERS, Case, Maker, Spec, UnsupportedCallError, build_case
from pipeline.collect.cases.case import spec_from_row
from pipeline.families import FAMILIES

CPU = torch.device("cpu")
SEEDS = list({(s.family, s.op, s.phase, s.dtype): shrink_for_trial(s) for s in seeds()}.values())


def built(spec: Spec) -> Case:
    return build_case(spec, Maker(CPU))


@pytest.mark.parametrize("spec", SEEDS, ids=lambda s: f"{s.family}-{s.op}-{s.phase}-{s.dtype}")
def test_a_seed_runs_and_runs_again(spec: Spec) -> None:
    with torch.no_grad():
        case = built(spec)
        for _ in range(2):
            if case.prepare is not None:
                case.prepare()
            case.run()


def test_seeds_cover_every_family_that_one_device_can_run() -> None:
    elsewhere = {
        "collective",
        "fused",
        "interaction",
        "jagged_attention",
        "other",
    }  # several devices, compiled code, NVIDIA's example, Triton's of HSTU, and what nobody models
    assert {spec.family for spec in SEEDS} == set(BUILDERS) == set(FAMILIES) - elsewhere


def test_a_product_has_the_size_and_layout_that_its_dims_say() -> None:
    made = Maker(CPU)
    dims = {"B": 1, "M": 5, "N": 7, "K": 3, "trans_a": 1, "trans_b": 0}
    spec = Spec("gemm", "mm", "backward", "fp32", dims)
    case = build_case(spec, made)
    assert case.run().shape == (5, 3)
    assert case.produced[0].stride() == (1, 5)
    assert made.bytes == 4 * (5 * 7 + 7 * 3)


@pytest.mark.parametrize(
    ("said", "columns", "weights"),
    [
        ({"directions": 2, "gates": 3}, 16, 2 * 3 * 8 * (3 + 8)),
        ({"gates": 1}, 8, 8 * (3 + 8)),
        ({"directions": 2, "gates": 4, "projected": 5}, 10, 2 * (4 * 8 * (3 + 5) + 8 * 5)),
    ],
)
def test_a_recurrent_layer_is_the_one_that_the_call_says(
    said: dict[str, int], columns: int, weights: int
) -> None:
    """Regression: one direction of an LSTM was measured instead of all; calls name `directions` and `gates`."""
    dims = {"B": 2, "T": 4, "I": 3, "H": 8, "layers": 1}
    spec = Spec("rnn", "lstm", "forward", "fp32", dims, said)
    assert built(spec).run().shape == (2, 4, columns)
    back = built(replace(spec, phase="backward"))
    assert back.prepare is not None
    back.prepare()
    matrices = [each for each in back.run() if each.dim() == 2]
    assert sum(each.numel() for each in matrices) == weights


@pytest.mark.parametrize(
    ("family", "op", "phase"),
    [
        ("rnn", "lstm", "forward"),
        ("rnn", "lstm", "backward"),
        ("loss", "mse_loss", "forward"),
        ("loss", "binary_cross_entropy_backward", "backward"),
        ("optimizer", "foreach_sqrt", "optimizer"),
    ],
)
def test_a_call_is_measured_in_its_dtype(family: str, op: str, phase: str) -> None:
    """Regression: calls of mixed precision were measured in fp32 and stored as bf16."""
    dims = {"B": 2, "T": 4, "I": 3, "H": 8, "bytes": 64, "tensors": 2}
    case = built(Spec(family, op, phase, "bf16", dims))
    if case.prepare is not None:
        case.prepare()
    out = case.run()
    outs = [out] if isinstance(out, torch.Tensor) else out
    assert {each.dtype for each in outs} == {torch.bfloat16}
    if family == "optimizer":
        assert [each.numel() for each in outs] == [16, 16]


@pytest.mark.parametrize("second", [64, 8])
def test_a_broadcast_operand_is_a_row_or_a_column_as_its_bytes_say(second: int) -> None:
    """Regression: with more rows than columns, one number a row was taken for a whole row."""
    made = Maker(CPU)
    dims = {"B": 64, "H": 8, "inputs": 4 * (64 * 8 + second)}
    build_case(Spec("elementwise", "mul", "forward", "fp32", dims), made)
    assert made.bytes == dims["inputs"]


def test_attention_with_a_mask_is_not_measured_without_one() -> None:
    dims = {"B": 2, "M": 4, "N": 4, "K": 8}
    with pytest.raises(UnsupportedCallError, match="mask"):
        built(Spec("attention", "efficient", "forward", "fp32", dims, {"mask": 64}))


def test_an_unknown_op_says_which_are_known() -> None:
    with pytest.raises(UnsupportedCallError, match="known are"):
        built(Spec("reduction", "median", "forward", "fp32", {"B": 2, "H": 2}))
    with pytest.raises(UnsupportedCallError, match="dimension M"):
        built(Spec("gemm", "mm", "forward", "fp32", {"N": 2, "K": 2}))


def test_zipf_indices_repeat_rows_and_stay_in_the_table() -> None:
    make = Maker(CPU)
    uniform, zipf = make.indices(10_000, 20_000), make.indices(10_000, 20_000, "zipf:1.05")
    assert int(zipf.min()) >= 0
    assert int(zipf.max()) < 10_000
    assert len(zipf.unique()) < 0.7 * len(uniform.unique())


def test_sampled_sizes_stay_within_a_quarter_and_four_times() -> None:
    dims = {"B": 1, "M": 1024, "N": 512, "K": 256, "trans_a": 0, "trans_b": 1}
    spec, rng = Spec("gemm", "linear", "forward", "fp32", dims), random.Random(0)
    for _ in range(200):
        varied = vary(spec, rng)
        assert all(
            spec[d] / 6 <= varied[d] <= 6 * spec[d] for d in ("M", "N", "K")
        )  # powers of two round further
        assert (varied["B"], varied["trans_b"]) == (1, 1)


def test_operand_bytes_follow_a_scaled_size() -> None:
    dims = {"B": 64, "H": 32, "inputs": 4 * 64 * 32 + 4 * 32, "outputs": 4 * 64 * 32}
    bias = Spec("elementwise", "add", "forward", "fp32", dims)
    for varied in islice(sizes_around([bias], 1), 20):
        b, h = varied["B"], varied["H"]
        assert (varied["inputs"], varied["outputs"]) == (4 * b * h + 4 * h, 4 * b * h)


def test_operands_of_a_copy_follow_its_bytes() -> None:
    size = 4 * 8 * 512 * 64
    dims = {"B": 4096, "H": 64, "bytes": size, "inputs": size, "outputs": size}
    layout = {"shape": [8, 512, 64], "strides": [64, 512, 1]}
    copy = Spec("copy", "transpose", "forward", "fp32", dims, layout)
    varied = list(islice(sizes_around([copy], 1), 20))
    assert all(
        one.dims == dict.fromkeys(("bytes", "inputs", "outputs"), one["bytes"]) for one in varied
    )
    assert len({one["bytes"] for one in varied}) > 10
    rows = vary(
        Spec("index", "gather", "forward", "fp32", {"bytes": size, "H": 128}), random.Random(0)
    )
    assert rows["H"] == 128 and rows["bytes"] != size


def test_any_prefix_of_a_round_is_balanced_over_families() -> None:
    order = interleaved([*SEEDS])
    first = order[: len(BUILDERS)]
    assert {spec.family for spec in first} == set(BUILDERS)
    assert len(distinct([*order, *order])) == len(distinct(order))


def test_a_row_with_missing_dims_becomes_a_spec_without_them() -> None:
    row = dict.fromkeys(("family", "op", "phase", "dtype"), "x") | {"attributes": None}
    dims = {"B": 2, "M": pd.NA, "N": float("nan"), "K": None}
    assert spec_from_row({**row, **dims}).dims == {"B": 2}
