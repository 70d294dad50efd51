"""Large tables are predicted in blocks, with texts as categories: the numbers are those of one block."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.answers import kernel_predictor
from pipeline.answers.kernel_predictor import TIMES
from pipeline.kernels import family_model
from tests.kernels.shipped import shipped

OPS = {"linear": "gemm", "softmax": "softmax", "add": "elementwise", "fused": "embedding_forward"}


def test_numbers_of_a_large_table_are_those_of_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four families in turn; some texts are missing."""
    rng, rows = np.random.default_rng(0), 200
    op = np.resize(list(OPS), rows)
    sizes = pd.DataFrame(np.exp(rng.uniform(0, 8, (rows, 8))).astype(int), columns=list("BMNKHTLD"))
    calls = sizes.assign(op=op, family=[OPS[name] for name in op], phase="forward", E=10_000)
    calls["dtype"] = rng.choice(["fp32", "fp32", "fp16", None], rows)
    together = shipped("T4").predict(calls)
    for module in (family_model, kernel_predictor):
        monkeypatch.setattr(module, "ROWS_IN_BLOCK", 30)
    apart = shipped("T4").predict(calls)
    # float32 there and float64 here
    assert (np.abs(together[list(TIMES)] / apart[list(TIMES)] - 1) < 1e-4).to_numpy().all()
    for name in ("evidence", "modelled", "inside"):
        assert together[name].tolist() == apart[name].tolist()
