"""Fits in several processes: the models are those of one process, and a killed process ends the fit with one line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from pipeline.errors import SteptimeError, UnknownNameError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import fit_gpu as fit
from pipeline.kernels.samples import with_families


@pytest.fixture
def samples(gemm_samples: pd.DataFrame) -> pd.DataFrame:
    """Samples of two families."""
    products = with_families(gemm_samples, "t").head(60)
    rows = pd.DataFrame(
        {"op": "softmax", "B": np.arange(1, 61) * 64, "H": 512, "latency_us": 40.0 + np.arange(60)}
    )
    return pd.concat([products, with_families(rows, "t")], ignore_index=True)


def test_a_fit_in_two_processes_makes_the_models_of_one(
    samples: pd.DataFrame, tmp_path: Path
) -> None:
    fitted: dict[int, list[str]] = {1: [], 2: []}
    for workers, names in fitted.items():
        fit.fit_gpu(
            samples,
            load_gpu("V100"),
            tmp_path / str(workers),
            variants=("auto", "trees"),
            workers=workers,
            on_fit=lambda family, names=names: names.append(family.model.family),
        )
    assert sorted(fitted[1]) == sorted(fitted[2]) == ["gemm", "gemm", "softmax", "softmax"]
    paths = sorted(
        path.relative_to(tmp_path / "1") for path in (tmp_path / "1").rglob("*") if path.is_file()
    )
    assert paths == sorted(
        path.relative_to(tmp_path / "2") for path in (tmp_path / "2").rglob("*") if path.is_file()
    )
    for one, two in (((tmp_path / "1" / path), (tmp_path / "2" / path)) for path in paths):
        if one.suffix == ".safetensors":  # the order of its metadata is random
            arrays = load_file(two)
            assert all((array == arrays[name]).all() for name, array in load_file(one).items())
        else:
            assert one.read_bytes() == two.read_bytes(), one


def test_a_process_that_is_killed_ends_the_fit_with_one_line(
    samples: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "_fit", kill_this_process)
    with pytest.raises(SteptimeError, match="fewer workers"):
        fit.fit_gpu(samples, load_gpu("V100"), tmp_path, workers=2)


def kill_this_process(*_: object) -> None:
    os._exit(9)


def test_bad_samples_and_variants_are_refused_before_a_process_starts(
    samples: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "_fit", kill_this_process)
    with pytest.raises(UnknownNameError, match="forest"):
        fit.fit_gpu(samples, load_gpu("V100"), tmp_path, variants=("forest",), workers=2)
    with pytest.raises(SteptimeError, match="no usable sample"):
        fit.fit_gpu(samples.assign(latency_us=-1.0), load_gpu("V100"), tmp_path, workers=2)
