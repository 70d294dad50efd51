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
    rows = pd.DataFrame({"op": "softmax", "B": np.arange(64, 2624, 64), "H": 512})
    tables = gemm_samples.head(40), rows.assign(latency_us=40.0 + rows.index)
    return pd.concat([with_families(table, "t") for table in tables], ignore_index=True)


def test_a_fit_in_two_processes_makes_the_models_of_one(
    samples: pd.DataFrame, tmp_path: Path
) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    for workers, folder in enumerate((one, two), 1):
        seen: list[str] = []
        fit.fit_gpu(
            samples,
            load_gpu("V100"),
            folder,
            workers=workers,
            on_fit=lambda family, seen=seen: seen.append(family.model.family),
        )
        assert sorted(seen) == ["gemm", "softmax"]
    paths, others = (
        sorted(path.relative_to(folder) for path in folder.rglob("*.*")) for folder in (one, two)
    )
    assert paths == others
    for path in paths:
        if path.suffix == ".safetensors":  # the order of its metadata is random
            arrays = load_file(two / path)
            for name, array in load_file(one / path).items():
                np.testing.assert_array_equal(array, arrays[name])
        else:
            assert (one / path).read_bytes() == (two / path).read_bytes(), path


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
