"""Published numbers that ship: those of Lin et al. are the paper's, and every card of a list has a specification."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.published.published_errors import NETWORK_METHODS, published
from evaluation.published.published_lin2022 import read_cnn, read_dlrm, read_mean_errors
from evaluation.published.published_steps import SHOWN_GPUS, TUNING_GPUS
from evaluation.workloads.gnmt_step import LENGTH_BUCKETS
from pipeline.hardware.find_gpu import load_gpu


def test_shares_of_lengths_are_those_of_all_batches() -> None:
    assert sum(share for _, share in LENGTH_BUCKETS) == pytest.approx(1.0, abs=0.002)


def test_numbers_of_lin_et_al_are_those_of_the_paper() -> None:
    dlrm = read_dlrm().set_index(["gpu", "model", "batch_size"])
    assert len(dlrm) == 36 and dlrm["busy"].between(0, 1).all()
    first = dlrm.loc[("V100", "dlrm_default", 512)]
    # stated: active +8.73 %, step -12.68 %, active against the step -41.16 %
    stated = {"measured_us": 4550.0, "busy": 0.5884 / 1.0873}
    stated |= {"published_busy": 0.5884 / 0.8732, "published_error": -0.1268}
    assert first[list(stated)].to_dict() == pytest.approx(stated)
    # the errors of all steps give the abstract's geometric mean
    mean = 100 * np.exp(np.log(dlrm["published_error"].abs()).mean())
    assert mean == pytest.approx(published("step")[0].percent, abs=5e-3)
    cnn = read_cnn()
    assert (len(cnn), set(cnn["model"])) == (18, {"resnet50", "inception_v3"})
    for model, rows in cnn.groupby("model"):
        for method in NETWORK_METHODS.values():
            (told,) = published(f"{model} {method}")
            assert told.percent == pytest.approx(100 * rows[method].mean(), abs=0.05)
    counts = read_mean_errors().groupby("what").size().to_dict()
    assert counts == {"active": 4, "step": 4, "step_shared": 4}


def test_every_card_has_a_specification() -> None:
    for name in (*TUNING_GPUS, *SHOWN_GPUS):
        assert load_gpu(name).name == name
