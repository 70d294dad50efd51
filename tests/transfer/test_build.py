"""What ships says of itself what leaving each GPU out has shown."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.hardware.spec import load_gpu
from pipeline.transfer.build import finish, pooled_interval
from pipeline.transfer.evaluate import Fold, quick
from pipeline.transfer.kernels import load_models
from pipeline.transfer.train import RECIPES, train_utilisation


def test_every_gpu_counts_equally_in_an_interval() -> None:
    random = np.random.default_rng(0)
    few, many = random.normal(0.5, 0.05, 50), random.normal(-0.5, 0.05, 5000)
    low, high = pooled_interval({"few": few, "many": many})
    # the middle 80 % reach into both groups, which a plain quantile of all rows (99 % of one GPU) would not
    assert -0.6 < low < -0.4 and 0.4 < high < 0.6
    assert pooled_interval({"exact": np.zeros(10)}) == (-0.02, 0.02)


def test_a_finished_model_carries_its_interval_and_the_coverage_of_each_gpu(gemm_samples: pd.DataFrame) -> None:
    recipe = quick(RECIPES["gemm"], 120)
    names = sorted(gemm_samples["gpu"].unique())[:3]
    samples = gemm_samples[gemm_samples["gpu"].isin(names)].reset_index(drop=True)
    folds = [
        Fold("gemm", load_gpu(name), train_utilisation(samples[samples["gpu"] != name], "gemm", recipe), None)
        for name in names
    ]
    model, errors = finish(samples, train_utilisation(samples, "gemm", recipe), folds)
    assert model.log_p10 < 0.0 < model.log_p90
    facts = model.provenance["left_out"]
    assert set(facts) == set(names) and all(0.0 <= f["coverage"] <= 1.0 for f in facts.values())
    assert len(errors[errors["method"] == "auto"]) == 6


@pytest.mark.skipif(not load_models(), reason="no cross-GPU models under packs/transfer")
def test_shipped_intervals_hold_what_left_out_gpus_showed() -> None:
    for name, model in load_models().items():
        coverage = [facts["coverage"] for facts in model.provenance["left_out"].values() if "coverage" in facts]
        assert model.log_p10 < 0.0 < model.log_p90, name
        assert not coverage or 0.6 < np.mean(coverage) <= 1.0, name
