"""Products on tensor cores on a GPU without samples: the law, its bounds, and how far off a chip is that nobody measured."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.published import aiconfigurator
from evaluation.training.build_tensor_core import chips, error_summary, residuals, train_without
from evaluation.training.recipes import TENSOR_CORE_RECIPE
from pipeline.answers.gap_models import tensor_core_gemm_model, tensor_core_transfer_models
from pipeline.families.tensor_products import misaligned
from pipeline.families.tensor_products import on_tensor_cores_with_dims as covered
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import peak_gflop_per_s, sustained_gflop_per_s
from pipeline.transfer.output_tiles import FAMILY
from pipeline.transfer.shipped_models import kernel_us, tensor_model
from pipeline.transfer.utilisation import UtilisationModel
from tests.kernels.better_gpus import improved

NAMES = ("A100-PCIE-40GB", "A10", "RTX3090", "L4", "H100-PCIe", "V100", "T4")


def products(
    *sizes: tuple[float, float, float], dtype: str = "fp16", batch: float = 1.0
) -> pd.DataFrame:
    """Calls by (M, N, K)."""
    table = pd.DataFrame(sizes, columns=["M", "N", "K"], dtype=float)
    return table.assign(family="gemm", op="linear", phase="forward", dtype=dtype, B=batch)


def shipped_us(calls: pd.DataFrame, gpu: GpuSpec) -> np.ndarray:
    shipped = tensor_model()
    assert shipped is not None
    return kernel_us(shipped, calls, gpu)


@pytest.fixture(scope="module")
def model() -> UtilisationModel:
    found = tensor_model()
    assert found is not None
    return found


@settings(max_examples=60)
@given(
    gpu=st.sampled_from(NAMES),
    what=st.sampled_from(["dram", "clock", "tensor", "power"]),
    factor=st.floats(1.0, 8.0),
    sizes=st.tuples(*[st.integers(1, 32768)] * 3),
    dtype=st.sampled_from(["fp16", "bf16", "tf32"]),
    batch=st.integers(1, 512),
)
def test_more_bandwidth_clock_throughput_or_power_is_never_slower(
    gpu: str, what: str, factor: float, sizes: tuple[int, int, int], dtype: str, batch: int
) -> None:
    card = load_gpu(gpu)
    calls = products(sizes, dtype=dtype if card.compute_capability >= 8 else "fp16", batch=batch)
    before, after = (shipped_us(calls, improved(card, what, by))[0] for by in (1.0, factor))
    assert after <= before * (1 + 1e-9)


def test_power_costs_less_than_its_share_and_the_same_of_every_dtype() -> None:
    card = load_gpu("H100-PCIe")
    half = replace(card, tdp_w=card.tdp_w / 2)
    for dtype in ("bf16", "tf32"):
        lost = sustained_gflop_per_s(half, dtype) / sustained_gflop_per_s(card, dtype)
        assert lost == pytest.approx(0.5**0.5)
        assert sustained_gflop_per_s(card, dtype) < 0.75 * peak_gflop_per_s(card, dtype)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("gpu", "dtypes"), [("A10", ["fp16", "bf16", "tf32"]), ("V100", ["fp16"]), ("P100", [])]
)
def test_only_what_tensor_cores_compute_is_covered(gpu: str, dtypes: list[str]) -> None:
    names = ("fp32", "fp16", "bf16", "tf32", "int8")
    calls = pd.concat([products((64, 64, 64), dtype=name) for name in names])
    assert list(calls["dtype"][covered(calls, load_gpu(gpu))]) == dtypes
    assert not covered(products((64, np.nan, 64)), load_gpu(gpu)).any()


@pytest.mark.parametrize("name", ["A10", "V100", "H100-PCIe"])
def test_empty_and_tiny_products_take_the_shortest_kernel(
    model: UtilisationModel, name: str
) -> None:
    calls = products((0, 64, 64), (64, 0, 64), (64, 64, 0), (1, 1, 1), (128, 128, 128))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kernel_us(model, calls, load_gpu(name))
    assert (found >= min(model.floors_us.values()) * 0.999).all() and (found < 8.0).all()


def test_time_grows_with_sizes_and_a_batch_is_more_tiles() -> None:
    card = load_gpu("A10")
    grown = shipped_us(products(*[(size, size, size) for size in (512, 1024, 2048, 4096)]), card)
    assert (np.diff(np.log(grown)) > np.log(3)).all()
    # the device is full: twice the batch takes twice as long, and as long as one product of as many tiles
    call, flat = (1024, 256, 1024), (32 * 1024, 256, 1024)
    one, two, same = shipped_us(products(call, call, flat).assign(B=[32, 64, 1]), card)
    assert two == pytest.approx(2 * one, rel=0.1) and one == pytest.approx(same, rel=0.15)


def test_rows_that_are_no_multiple_of_16_bytes_are_slower() -> None:
    card, whole = load_gpu("A100-SXM4-80GB"), 4096
    odd = [(whole, whole, whole), (4097, whole, whole), (whole, 4095, whole), (whole, whole, 4095)]
    sizes = products(*odd, (whole, 4092, whole))
    # an operand that is stored transposed has its rows along the other size; gradients of a profile may have either
    for changed, rows in (
        ({}, [2, 3, 4]),
        ({"dtype": "tf32"}, [2, 3]),
        ({"trans_a": 1.0, "trans_b": 0.0}, [1, 3]),
        ({"trans_a": 1.0}, [1, 2, 3, 4]),  # as a linear layer's weight
        ({"phase": "backward"}, [1, 2, 3, 4]),
    ):
        assert np.flatnonzero(misaligned(sizes.assign(**changed))).tolist() == rows, changed
    found = shipped_us(sizes, card)
    assert (found[2:] / found[0] > 1.6).all() and found[1] / found[0] < 1.2
    fitted = tensor_core_gemm_model(card)
    assert fitted is not None
    times = fitted.predict(sizes)
    widths = times.p90 / times.p10
    assert times.kernel[2] / times.kernel[0] > 1.8 and widths[2] > widths[0]


def test_vocabularies_of_an_odd_and_an_even_number_take_as_long_as_others_measured() -> None:
    """8,192 x 14,336 x V in fp16 on an A100 of 40 GB (EleutherAI's cookbook, sizing/results): ms by V."""
    measured = {51136: 47.0, 51140: 86.8, 51150: 87.0, 51153: 158.6}
    sizes = products(*((8192, 14336, size) for size in measured)).assign(dtype="fp16")
    model = tensor_core_transfer_models(load_gpu("A100-SXM4-40GB"))["gemm"]
    found = model.predict(sizes).kernel / 1e3
    assert found == pytest.approx([*measured.values()], rel=0.06)


def test_cards_of_a_chip_are_left_out_together() -> None:
    found = chips(["H100", "B200", "H200", "GB300", "RTXPRO6000", "L40S"])
    assert found == [("H100", "H200"), ("B200", "GB300"), ("RTXPRO6000",), ("L40S",)]


def test_a_chip_left_out_is_predicted_by_the_others() -> None:
    if aiconfigurator.data_dir() is None:
        pytest.skip("aiconfigurator-core is not installed")
    samples = {
        gpu: aiconfigurator.read_products(gpu).sample(1500, random_state=0).assign(family=FAMILY)
        for gpu in ("A100-SXM4-80GB", "L40S", "H200")
    }
    left = train_without(["H200"], samples, replace(TENSOR_CORE_RECIPE, steps=200, networks=1))
    unseen = samples["H200"]
    found = error_summary(residuals(left, unseen, "H200"), unseen["kernel_us"].to_numpy())
    assert sorted(left.gpu_corrections) == ["A100-SXM4-80GB", "L40S"]
    assert found["gmae"] < 0.15 and abs(found["bias"]) < 0.15


def test_the_shipped_model_says_how_far_off_left_out_chips_are(model: UtilisationModel) -> None:
    left = pd.DataFrame(model.provenance["chip_left_out"]).T
    assert set(left.index) == set(model.provenance["gpus"]) == set(aiconfigurator.TABLES)
    assert left["gmae"].mean() < 0.12 and left["mape"].mean() < 0.18
    assert 0.75 < left["coverage"].mean() < 0.88


def test_an_operand_of_which_nothing_is_said_is_stored_as_a_linear_layers_weight() -> None:
    """Transposed: its rows are as long as the sum, 4,095, which slows a product whose other rows are aligned."""
    assert misaligned(products((4096, 4095, 4096)).assign(trans_a=1.0)).all()
