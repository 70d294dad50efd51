"""Large tables are predicted in blocks, with texts as categories: the numbers are those of small tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import TIMES
from pipeline.kernels.family_model import ROWS_IN_BLOCK
from tests.kernels.shipped import shipped

OPS = {
    "linear": "gemm",
    "bmm": "bmm",
    "softmax": "softmax",
    "add": "elementwise",
    "fused": "embedding_forward",
}


@pytest.fixture(scope="module")
def calls() -> pd.DataFrame:
    """More calls than a block has, of five families in turn; some texts are missing."""
    rng, rows = np.random.default_rng(0), ROWS_IN_BLOCK + 1000
    op = np.array(list(OPS))[np.arange(rows) % len(OPS)]
    table = pd.DataFrame({"family": [OPS[name] for name in op], "op": op, "phase": "forward"})
    table["dtype"] = np.where(rng.random(rows) < 0.1, None, rng.choice(["fp32", "fp16"], rows))
    table["attributes"] = None
    sizes = np.exp(rng.uniform(0, 8, (rows, 8))).astype(int)
    return table.assign(**dict(zip("BMNKHTLD", sizes.T, strict=True)), E=10_000)


@pytest.mark.nightly  # tables of half a million rows
def test_numbers_of_a_large_table_are_those_of_small_ones(
    calls: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    predictor = shipped("T4")
    together = predictor.predict(calls)
    some = calls.index[[*range(0, 50), *range(ROWS_IN_BLOCK - 20, ROWS_IN_BLOCK + 20)]]
    apart = predictor.predict(calls.loc[some])
    pd.testing.assert_index_equal(together.index, calls.index)
    # float32 there and float64 here; a product whose two best kernels score alike may have another one
    ratio = together.loc[some, list(TIMES)].to_numpy() / apart[list(TIMES)].to_numpy()
    assert (np.abs(ratio - 1) < 1e-4).mean() > 0.98
    for name in ("evidence", "modelled", "inside"):
        assert together.loc[some, name].tolist() == apart[name].tolist()
