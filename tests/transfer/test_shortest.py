"""No transfer predicts a kernel shorter than a kernel can be, whichever way it is asked."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.physics import Physics
from pipeline.transfer.scaling_methods import by_auto
from pipeline.transfer.shipped_models import load_models, predict_calls
from pipeline.transfer.trace_calls import transferred


@pytest.mark.skipif(not load_models(), reason="no cross-GPU models under packs/transfer")
def test_kernels_predict_keeps_the_shortest() -> None:
    tiny = pd.DataFrame({"family": ["softmax"], "op": ["softmax"], "B": [1.0], "H": [2.0]})
    gpu = load_gpu("H100")
    found = predict_calls(tiny, gpu).iloc[0]
    assert Physics.of(gpu).start_us("softmax") <= found["kernel_us"] <= found["predicted_us"]


def test_scaling_a_measurement_keeps_the_shortest() -> None:
    """The second was shorter on the origin: then it may be here."""
    rows = pd.DataFrame(
        {"family": "other", "op": "roll", "latency_us": [4.0, 0.5], "kind": "kernel"}
    )
    origin, destination = load_gpu("P4"), load_gpu("H100")
    start = Physics.of(destination).start_us("other")
    for moved in (by_auto(rows, origin, destination, {}), transferred(rows, origin, destination)):
        assert list(moved["predicted_us"]) == pytest.approx([start, 0.5])
        assert (np.diff(moved[["p10_us", "predicted_us", "p90_us"]].to_numpy()) >= 0).all()
