"""Routes of convolutions: what kernel names show, what a route computes, and the choice between them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.hardware.find_gpu import load_gpu
from pipeline.transfer.convolution_routes import ROUTES, convolution_routes, routes_of_kernels
from pipeline.transfer.scaling_methods import by_auto
from pipeline.transfer.shipped_models import load_models
from pipeline.transfer.utilisation import UtilisationModel


def _calls(rows: list[tuple[int, ...]], **more: object) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["B", "in_channels", "out_channels", "input_size"]).astype(
        float
    )
    return table.assign(op="conv", **{"kernel_size": 3.0, "stride": 1.0, "padding": 1.0, **more})


def drawn(rows: int) -> pd.DataFrame:
    low, high = np.log([2, 16, 16, 6]), np.log([64, 1024, 1024, 100])
    sizes = np.exp(np.random.default_rng(5).uniform(low, high, (rows, 4))).astype(int)
    calls = _calls([tuple(row) for row in sizes])
    return calls.assign(family="conv2d_forward", phase="forward", dtype="fp32")


@pytest.fixture(scope="module")
def model() -> UtilisationModel:
    if "conv2d_forward" not in load_models():
        pytest.skip("no cross-GPU models under packs/transfer")
    return load_models()["conv2d_forward"]


def test_kernel_names_show_the_route() -> None:
    shown = {
        ("cudnn_infer_volta_scudnn_winograd_128x128_relu_tile148t_nt_v1", "[39,2,1]"): "winograd",
        ("cudnn_infer_maxwell_scudnn_128x64_relu_small_nn_v1", "[7,21,1]"): "implicit",
        ("void implicit_convolve_sgemm<float, float, 128, 5, 5>(int)", "[30,11,1]"): "implicit",
        ("volta_sgemm_64x64_nn", "[2,5,36]"): "transformed",
        ("volta_sgemm_64x64_nn", "[2,36,1]"): "",
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float>", "[8,1,1]"): "transformed",
        ("ampere_gcgemm_64x64_nt", "[1,1,544]"): "",
        (None, None): "",
    }
    calls = pd.DataFrame(list(shown), columns=["kernel_name", "grid"])
    taken = routes_of_kernels(calls)
    assert [ROUTES[at] if at >= 0 else "" for at in taken] == list(shown.values())
    assert list(routes_of_kernels(calls[["grid"]])) == [-1] * len(shown)


@pytest.mark.parametrize(
    ("gpu", "call", "blocks"),
    [
        ("V100", (3, 659, 400, 12), 39 * 2 * 1),  # tile148
        ("A100-PCIE-80GB", (20, 582, 1551, 6), 245 * 1 * 2),  # tile442
        ("P100", (30, 1693, 481, 8), 240 * 1 * 1),  # tile244
    ],
)
def test_boxes_are_padded_as_the_grids_of_the_public_table_show(
    gpu: str, call: tuple[int, ...], blocks: int
) -> None:
    """One block of F(2x2) is 2 x 32 x 128 outputs x 4 multiplications x channels; blocks from the table's grids."""
    flops = convolution_routes(_calls([call]), load_gpu(gpu))["winograd"].flops[0]
    assert flops / (2 * 32 * 128 * 4 * 8 * np.ceil(call[1] / 8)) == blocks


def test_groups_of_images_are_padded_to_whole_tiles() -> None:
    """49 images of 6 x 6 tiles make 36 blocks of 64 tiles, as 64 images would."""
    routes = convolution_routes(_calls([(49, 451, 146, 24)]), load_gpu("V100"))
    assert routes["transformed"].flops[0] == 2 * 36 * (64 * 36) * 456 * 146


@pytest.mark.parametrize(
    ("more", "open_routes"),
    [
        ({}, ["implicit", "winograd", "transformed"]),
        ({"kernel_size": 1.0, "padding": 0.0}, ["implicit"]),
        ({"stride": 2.0}, ["implicit"]),
        ({"groups": 64.0}, ["implicit"]),
        ({"dilation": 2.0}, ["implicit"]),
    ],
)
def test_only_small_windows_that_move_by_one_can_be_transformed(
    more: dict[str, float], open_routes: list[str]
) -> None:
    found = convolution_routes(_calls([(8, 64, 64, 28)], **more), load_gpu("T4"))
    assert {name for name, route in found.items() if np.isfinite(route.flops[0])} == set(
        open_routes
    )


def test_a_known_route_is_never_shorter_than_the_shortest(model: UtilisationModel) -> None:
    rows, gpu = drawn(50), load_gpu("V100")
    free, _ = model.kernel_and_latency(rows, gpu)
    unknown, *routes = (
        model.kernel_and_latency(rows, gpu, algorithm=np.full(50, at))[0]
        for at in range(-1, len(ROUTES))
    )
    assert (np.min(routes, axis=0) >= free * (1 - 1e-9)).all()
    assert (np.max(routes, axis=0) > 1.5 * free).any() and unknown == pytest.approx(free)


def test_the_origin_is_compared_to_the_route_that_it_took(model: UtilisationModel) -> None:
    """Where a kernel's name shows a route that is not the shortest, the destination may take the shortest."""
    origin, rows = load_gpu("T4"), drawn(40)
    measured = rows.assign(latency_us=model.kernel_and_latency(rows, origin)[1], gpu="T4")
    named = measured.assign(kernel_name="scudnn_128x64", grid="[1,1,1]")
    blind, other = (
        by_auto(table, origin, load_gpu("V100"), {"conv2d_forward": model})["predicted_us"]
        for table in (measured, named)
    )
    assert (other <= blind * 1.05).all() and (other < 0.8 * blind).any()
