"""No transfer predicts a kernel shorter than a kernel can be, whichever way it is asked."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.transferred_models import same_chip_models
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.physics import Physics, raised_to_min_duration
from pipeline.model_files import list_packs
from pipeline.transfer.scaling_methods import by_auto
from pipeline.transfer.shipped_models import load_models, predict_calls
from pipeline.transfer.trace_calls import transferred


def test_a_short_time_is_raised_and_a_long_one_is_left() -> None:
    gpu = load_gpu("H100")
    start = Physics.of(gpu).start_us("gemm")
    assert raised_to_min_duration(
        np.array([0.0, start / 2, 9 * start]), "gemm", gpu
    ) == pytest.approx([start, start, 9 * start])
    # the call was shorter elsewhere: then it may be here
    assert (
        raised_to_min_duration(np.array([0.1]), "gemm", gpu, np.array([start / 4]))[0] == start / 4
    )


@pytest.mark.skipif(not load_models(), reason="no cross-GPU models under packs/transfer")
def test_kernels_predict_and_siblings_keep_the_shortest() -> None:
    tiny = pd.DataFrame({"family": ["softmax"], "op": ["softmax"], "B": [1.0], "H": [2.0]})
    gpu = load_gpu("H100")
    found = predict_calls(tiny, gpu).iloc[0]
    assert (
        found["kernel_us"] >= Physics.of(gpu).start_us("softmax")
        and found["predicted_us"] >= found["kernel_us"]
    )
    if "A100-PCIE-40GB" in list_packs():
        card = load_gpu("A100-PCIE-80GB")
        assert (
            same_chip_models(card)["softmax"].predict(tiny).kernel[0]
            >= Physics.of(card).start_us("softmax") - 1e-9
        )


def test_scaling_a_measurement_keeps_the_shortest() -> None:
    rows = pd.DataFrame(
        {
            "family": ["other", "other"],
            "op": ["roll"] * 2,
            "latency_us": [4.0, 0.5],
            "kind": "kernel",
        }
    )
    origin, destination = load_gpu("P4"), load_gpu("H100")
    start = Physics.of(destination).start_us("other")
    for moved in (by_auto(rows, origin, destination, {}), transferred(rows, origin, destination)):
        predicted = moved["predicted_us"].to_numpy()
        assert predicted[0] == pytest.approx(start) and predicted[1] == pytest.approx(0.5)
        assert (moved["p10_us"] <= moved["predicted_us"]).all() and (
            moved["predicted_us"] <= moved["p90_us"]
        ).all()
