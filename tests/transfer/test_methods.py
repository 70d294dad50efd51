"""Methods and the command: identity, rows kept, refusals, the choice per row, and the shipped models."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evaluation.training.published_networks import SMALL, PublishedNetwork, train_published
from pipeline.errors import InputError, SteptimeWarning, TableError, UnknownNameError
from pipeline.hardware.find_gpu import list_gpus, load_gpu
from pipeline.transfer.scaling_methods import METHODS, by_auto, residual_share
from pipeline.transfer.shipped_models import load_models
from pipeline.transfer.transfer_command import ADDED_COLUMNS, transfer_command

NAMES = [spec.name for spec in list_gpus()]


@pytest.fixture()
def measured() -> pd.DataFrame:
    product = {"op": "linear", "B": 1, "M": 512, "N": 1024, "K": 512, "latency_us": 100.0}
    batched = {"op": "bmm", "B": 16, "M": 128, "N": 64, "K": 128, "latency_us": 90.0}
    image = {"in_channels": 64, "out_channels": 64, "kernel_size": 3, "input_size": 56, "stride": 1}
    rows = [{"op": op, "B": 4096, "H": 1024} for op in ("add", "softmax", "ln")]
    rows = [row | {"latency_us": us} for row, us in zip(rows, (110.0, 120.0, 130.0), strict=True)]
    convolution = {"op": "conv", "B": 16, **image, "padding": 1, "latency_us": 400.0}
    table = pd.DataFrame([product, batched, *rows, convolution, {"op": "roll", "latency_us": 50.0}])
    return table.assign(gpu="V100", note=list("abcdefg"))


def moved(
    rows: pd.DataFrame, method: str, folder: Path, gpus: tuple[str, str] = ("V100", "T4")
) -> tuple[dict[str, Any], pd.DataFrame]:
    """What the command says of a table of measurements, and the table that it writes."""
    source, out = folder / "in.parquet", folder / "out.parquet"
    rows.to_parquet(source)
    facts = transfer_command(*gpus, method, source, out)
    return facts, pd.read_parquet(out)


@pytest.mark.parametrize("method", METHODS)
def test_rows_order_and_extra_columns_survive(
    method: str, measured: pd.DataFrame, tmp_path: Path
) -> None:
    facts, found = moved(measured.iloc[::-1], method, tmp_path)
    assert list(found["note"]) == list("gfedcba") and facts["rows"] == 7
    assert set(ADDED_COLUMNS) <= set(found.columns)
    # two GPUs three times apart
    assert (found["predicted_us"] / found["latency_us"]).between(0.25, 4.0).all()
    assert (np.diff(found[["p10_us", "predicted_us", "p90_us"]].to_numpy()) >= 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gpu", ["V100", "MI250"])
def test_the_same_gpu_gives_back_the_measurement(
    method: str, gpu: str, measured: pd.DataFrame, tmp_path: Path
) -> None:
    _, found = moved(measured.assign(gpu=gpu), method, tmp_path, (gpu, gpu))
    assert list(found["predicted_us"]) == pytest.approx(list(measured["latency_us"]), rel=1e-12)
    assert set(found["evidence"]) == {"measured"}


def test_auto_names_its_choice_per_row(measured: pd.DataFrame) -> None:
    if not load_models():
        pytest.skip("no cross-GPU models under packs/transfer")
    samples = measured.assign(
        family=["gemm", "bmm", "elementwise", "softmax", "layer_norm", "conv2d_forward", "other"]
    )
    found = by_auto(samples, load_gpu("V100"), load_gpu("T4"))
    assert list(found["method"]) == ["utilisation"] * 6 + ["wave"]


def test_siblings_share_the_whole_residual() -> None:
    small, large, other = map(load_gpu, ("A100-PCIE-40GB", "A100-PCIE-80GB", "H100"))
    assert residual_share("gemm", small, large) == 1.0 > residual_share("gemm", small, other)


def test_unusable_input_is_refused_by_place(measured: pd.DataFrame, tmp_path: Path) -> None:
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"

    def refused(error: type[Exception], says: str, **changed: object) -> None:
        asked: dict[str, Any] = {"from_gpu": "V100", "to_gpu": "T4", "method_name": "wave"}
        with pytest.raises(error, match=says):
            transfer_command(**{**asked, "in_path": source, "out_path": out, **changed})

    refused(TableError, "no such file")
    measured.to_parquet(source)
    unknown = "unknown method 'magic': choose one of auto, wave"
    refused(UnknownNameError, unknown, method_name="magic")
    refused(UnknownNameError, "unknown GPU", to_gpu="K80")
    refused(InputError, "holds rows of V100", from_gpu="P100")
    refused(InputError, "--probes", probes=source)
    measured.assign(latency_us=-1.0).to_parquet(source)
    refused(TableError, "latency_us of row 0")
    measured.drop(columns="op").to_parquet(source)
    refused(TableError, "column op is missing")
    assert not out.exists()


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("M", 2.5, "M of row 1 is 2.5"),
        ("kernel_size", -3.0, "kernel_size of row 1 is -3"),
        ("grid_x", -8.0, "grid_x of row 1 is -8.0; launch geometry must be whole numbers"),
        ("registers", "many", "registers of row 1 is many"),
        ("latency_us", 1e12, "latency_us of row 1 is 1e\\+12"),
        ("op", None, "op of row 1 is empty"),
        ("dtype", "fp23", "row 1: unknown dtype 'fp23'"),
    ],
)
def test_a_value_that_no_call_has_is_refused_by_its_row(
    column: str, value: object, says: str, measured: pd.DataFrame, tmp_path: Path
) -> None:
    whole = [*measured[column]] if column in ("op", "latency_us") else [None] * 7
    whole[1] = value
    measured = measured.assign(**{column: pd.Series(whole)})
    for method in METHODS:
        with pytest.raises(TableError, match=says):
            moved(measured, method, tmp_path)
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("method", METHODS)
def test_rows_without_sizes_and_with_labels_given_twice_are_answered(
    method: str, measured: pd.DataFrame, tmp_path: Path
) -> None:
    facts, _ = moved(measured[["gpu", "op", "latency_us"]], method, tmp_path)
    assert facts["methods"] == {"wave": 1.0}
    twice = pd.concat([measured, measured.iloc[::-1]])
    _, found = moved(twice, method, tmp_path)
    pd.testing.assert_series_equal(found["note"], twice["note"])
    assert np.allclose(found["predicted_us"][:7], found["predicted_us"][:6:-1])


@pytest.mark.nightly  # trains a model
def test_a_published_network_learns_and_saves(gemm_samples: pd.DataFrame, tmp_path: Path) -> None:
    recipe = replace(SMALL, layers=2, width=32, steps=300, batch=256)
    network = train_published(gemm_samples, "gemm", recipe)
    rows = gemm_samples[gemm_samples["gpu"] == "T4"]
    found = network.predict(rows, load_gpu("T4"))
    assert np.median(np.abs(found / rows["latency_us"] - 1)) < 0.25
    network.save(tmp_path / "published.safetensors")
    again = PublishedNetwork.load(tmp_path / "published.safetensors")
    # weights are saved in half precision
    assert again.predict(rows, load_gpu("T4")) == pytest.approx(found, rel=0.05)


def test_rows_that_only_a_mistake_leaves_to_wave_scaling_are_named(tmp_path: Path) -> None:
    def said(**columns: object) -> list[str]:
        given = tmp_path / "measured.parquet"
        pd.DataFrame({"latency_us": [30.0, 1100.0]} | columns).to_parquet(given)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SteptimeWarning)
            transfer_command("T4", "L4", "auto", given, tmp_path / "predicted.parquet")
        return [str(each.message).partition(": ")[2] for each in caught]

    sizes = {name: [512, 2048] for name in "MNK"}
    assert said(op="gemm", B=1, **sizes) == said(op="batch_norm") == []
    (text,) = said(op="gemm", M=[512, 2048], N=[512, 2048], k=[512, 2048])
    assert "K, so wave scaling is used" in text
    (text,) = said(op="gem", B=1, **sizes)
    assert text == "unknown op 'gem', so wave scaling is used: did you mean 'gemm'?"
