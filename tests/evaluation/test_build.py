"""What ships says of itself what leaving each GPU out has shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluation.training.build_models import (
    add_interval_and_prior,
    interval_of_a_new_gpu,
    merge_errors,
)
from evaluation.training.left_out_gpu import Fold, shortened
from evaluation.training.recipes import RECIPES
from evaluation.training.utilisation_train import train_utilisation
from pipeline.hardware.find_gpu import load_gpu
from pipeline.transfer.shipped_models import load_models


def test_every_gpu_counts_equally_in_an_interval() -> None:
    random = np.random.default_rng(0)
    few, many = random.normal(0.5, 0.05, 50), random.normal(-0.5, 0.05, 5000)
    low, high = interval_of_a_new_gpu({"few": few, "many": many})
    # both levels count; a plain quantile of all rows (99 % of one GPU) would not reach the other
    assert low == pytest.approx(-high, rel=0.1) and high > 0.5
    assert interval_of_a_new_gpu({"exact": np.zeros(10)}) == (-0.02, 0.02)


def test_the_interval_of_a_new_gpu_holds_what_it_says() -> None:
    random = np.random.default_rng(1)
    inside = []
    for _ in range(300):
        levels = random.normal(0.0, 0.1, 6)
        residuals = {
            str(i): level + random.normal(0.0, 0.05, 400) for i, level in enumerate(levels)
        }
        own = residuals.pop("5")
        low, high = interval_of_a_new_gpu(residuals)
        inside.append(np.mean((own >= low) & (own <= high)))
    # pooled quantiles of the five alone hold 73 %
    assert 0.77 < np.mean(inside) < 0.84


def test_a_rebuilt_family_replaces_its_own_errors_only(tmp_path: Path) -> None:
    path = tmp_path / "errors.csv"
    for family, mape in (("softmax", 9.0), ("gemm", 20.0), ("softmax", 7.0)):
        merge_errors(path, pd.DataFrame({"family": [family] * 2, "mape": [mape, mape + 1]}))
    found = pd.read_csv(path)
    assert list(found["family"]) == ["gemm", "gemm", "softmax", "softmax"]
    assert list(found["mape"]) == [20.0, 21.0, 7.0, 8.0]


@pytest.mark.nightly  # trains a model
def test_a_finished_model_carries_its_interval_and_the_coverage_of_each_gpu(
    gemm_samples: pd.DataFrame,
) -> None:
    recipe = shortened(RECIPES["gemm"], 120)
    names = sorted(gemm_samples["gpu"].unique())[:3]
    samples = gemm_samples[gemm_samples["gpu"].isin(names)].reset_index(drop=True)
    folds = [
        Fold(
            "gemm",
            load_gpu(name),
            train_utilisation(samples[samples["gpu"] != name], "gemm", recipe),
            None,
        )
        for name in names
    ]
    model, errors = add_interval_and_prior(
        samples, train_utilisation(samples, "gemm", recipe), folds
    )
    assert model.log_p10 < 0.0 < model.log_p90
    facts = model.provenance["left_out"]
    assert set(facts) == set(names) and all(0.0 <= f["coverage"] <= 1.0 for f in facts.values())
    assert len(errors[errors["method"] == "auto"]) == 6


@pytest.mark.skipif(not load_models(), reason="no cross-GPU models under packs/transfer")
def test_shipped_intervals_hold_what_left_out_gpus_showed() -> None:
    for name, model in load_models().items():
        coverage = [
            facts["coverage"]
            for facts in model.provenance["left_out"].values()
            if "coverage" in facts
        ]
        assert model.log_p10 < 0.0 < model.log_p90, name
        assert not coverage or 0.6 < np.mean(coverage) <= 1.0, name
