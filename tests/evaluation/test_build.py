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
from pipeline.transfer.utilisation import UtilisationModel


def test_the_interval_of_a_new_gpu_holds_what_it_says() -> None:
    random = np.random.default_rng(1)
    inside = []
    for _ in range(300):
        own, *others = random.normal(0.0, 0.1, (6, 1)) + random.normal(0.0, 0.05, (6, 400))
        low, high = interval_of_a_new_gpu(dict(zip("abcde", others, strict=True)))
        inside.append(np.mean((own >= low) & (own <= high)))
    # pooled quantiles of the five alone hold 73 %
    assert 0.77 < np.mean(inside) < 0.84


def test_a_rebuilt_family_replaces_its_own_errors_only(tmp_path: Path) -> None:
    path = tmp_path / "errors.csv"
    for family, mape in (("softmax", 9.0), ("gemm", 20.0), ("softmax", 7.0)):
        merge_errors(path, pd.DataFrame({"family": family, "mape": [mape, mape + 1]}))
    found = pd.read_csv(path).groupby("family")["mape"].agg(list).to_dict()
    assert found == {"gemm": [20.0, 21.0], "softmax": [7.0, 8.0]}


@pytest.mark.nightly  # trains a model
def test_a_finished_model_carries_its_interval_and_the_coverage_of_each_gpu(
    gemm_samples: pd.DataFrame,
) -> None:
    recipe, names = shortened(RECIPES["gemm"], 120), ["P100", "T4", "V100"]
    samples = gemm_samples[gemm_samples["gpu"].isin(names)].reset_index(drop=True)

    def trained(without: str) -> UtilisationModel:
        return train_utilisation(samples[samples["gpu"] != without], "gemm", recipe)

    folds = [Fold("gemm", load_gpu(name), trained(name), None) for name in names]
    model, errors = add_interval_and_prior(samples, trained(""), folds)
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
