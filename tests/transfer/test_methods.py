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
from pipeline.families import FAMILIES
from pipeline.hardware.find_gpu import list_gpus, load_gpu
from pipeline.transfer.scaling_methods import METHODS, by_auto, residual_share
from pipeline.transfer.shipped_models import COLUMNS, covered, load_models, predict_calls
from pipeline.transfer.transfer_command import ADDED_COLUMNS, transfer_command

NAMES = [spec.name for spec in list_gpus()]


@pytest.fixture()
def measured() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "gpu": "V100",
            "op": ["linear", "bmm", "add", "softmax", "ln", "conv", "roll"],
            "B": [1, 16, 4096, 4096, 4096, 16, None],
            "M": [512, 128, None, None, None, None, None],
            "N": [1024, 64, None, None, None, None, None],
            "K": [512, 128, None, None, None, None, None],
            "H": [None, None, 1024, 1024, 1024, None, None],
            "in_channels": [None] * 5 + [64, None],
            "out_channels": [None] * 5 + [64, None],
            "kernel_size": [None] * 5 + [3, None],
            "input_size": [None] * 5 + [56, None],
            "stride": [None] * 5 + [1, None],
            "padding": [None] * 5 + [1, None],
            "latency_us": [100.0, 90.0, 110.0, 120.0, 130.0, 400.0, 50.0],
            "note": list("abcdefg"),
        }
    )


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
    assert (found["predicted_us"] / found["latency_us"]).between(0.25, 4.0).all(), (
        "two GPUs three times apart"
    )
    assert (
        (found["p10_us"] <= found["predicted_us"]) & (found["predicted_us"] <= found["p90_us"])
    ).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gpu", ["V100", "L4", "MI250"])
def test_the_same_gpu_gives_back_the_measurement(
    method: str, gpu: str, measured: pd.DataFrame, tmp_path: Path
) -> None:
    _, found = moved(measured.assign(gpu=gpu), method, tmp_path, (gpu, gpu))
    assert found["predicted_us"].to_numpy() == pytest.approx(
        measured["latency_us"].to_numpy(), rel=1e-12
    )
    assert (found["evidence"] == "measured").all()


def test_auto_names_its_choice_per_row(measured: pd.DataFrame) -> None:
    if not load_models():
        pytest.skip("no cross-GPU models under packs/transfer")
    samples = measured.assign(
        family=["gemm", "bmm", "elementwise", "softmax", "layer_norm", "conv2d_forward", "other"]
    )
    found = by_auto(samples, load_gpu("V100"), load_gpu("T4"))
    assert list(found["method"]) == ["utilisation"] * 6 + ["wave"]


def test_siblings_share_the_whole_residual() -> None:
    small, large = load_gpu("A100-PCIE-40GB"), load_gpu("A100-PCIE-80GB")
    assert (
        residual_share("gemm", small, large)
        == 1.0
        > residual_share("gemm", small, load_gpu("H100"))
    )


def test_unusable_input_is_refused_by_place(measured: pd.DataFrame, tmp_path: Path) -> None:
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"

    def refused(
        error: type[Exception],
        says: str,
        origin: str = "V100",
        destination: str = "T4",
        method: str = "wave",
        probes: Path | None = None,
    ) -> None:
        with pytest.raises(error, match=says):
            transfer_command(origin, destination, method, source, out, probes)

    refused(TableError, "no such file")
    measured.to_parquet(source)
    unknown = "unknown method 'magic': choose one of auto, wave"
    refused(UnknownNameError, unknown, method="magic")
    refused(UnknownNameError, "unknown GPU", destination="K80")
    refused(InputError, "holds rows of V100", origin="P100")
    refused(InputError, "--probes", probes=source)
    measured.assign(latency_us=[-1.0] + [1.0] * 6).to_parquet(source)
    refused(TableError, "latency_us of row 0")
    measured.drop(columns="op").to_parquet(source)
    refused(TableError, "column op is missing")
    assert not out.exists()


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("M", 2.5, "M of row 1 is 2.5"),
        ("kernel_size", -3, "kernel_size of row 1 is -3"),
        ("grid_x", -8, "grid_x of row 1 is -8.0; launch geometry must be whole numbers"),
        ("block_x", np.inf, "block_x of row 1 is inf"),
        ("registers", "many", "registers of row 1 is many"),
        ("latency_us", 1e12, "latency_us of row 1 is 1e\\+12"),
        ("op", None, "op of row 1 is empty"),
        ("dtype", "fp23", "row 1: unknown dtype 'fp23'"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_a_value_that_no_call_has_is_refused_by_its_row(
    method: str, column: str, value: object, says: str, measured: pd.DataFrame, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    wrong = (
        [None, value, *[None] * 5] if column not in ("op", "latency_us") else [*measured[column]]
    )
    wrong[1] = value
    column_type = str if isinstance(value, str) else object if value is None else float
    values = pd.Series(wrong, dtype=object)
    measured.assign(**{column: values.where(values.isna(), values.astype(column_type))}).to_parquet(
        source
    )
    with pytest.raises(TableError, match=says):
        transfer_command("V100", "T4", method, source, out)
    assert not out.exists()


@pytest.mark.parametrize("method", METHODS)
def test_rows_without_sizes_and_with_labels_given_twice_are_answered(
    method: str, measured: pd.DataFrame, tmp_path: Path
) -> None:
    facts, _ = moved(measured[["gpu", "op", "latency_us"]], method, tmp_path)
    assert facts["methods"] == {"wave": 1.0}
    twice = pd.concat([measured, measured.iloc[::-1]])
    _, found = moved(twice, method, tmp_path)
    assert (
        found["note"].tolist() == twice["note"].tolist()
        and found.index.tolist() == twice.index.tolist()
    )
    assert np.allclose(found["predicted_us"][:7], found["predicted_us"][:6:-1])


def test_uncovered_calls_are_left_to_the_caller() -> None:
    calls = pd.DataFrame(
        {
            "family": ["gemm", "gemm", "optimizer", "softmax"],
            "op": ["mm", "mm", "sgd", "softmax"],
            "dtype": ["fp32", "bf16", "fp32", "fp32"],
            "phase": ["forward", "forward", "optimizer", "backward"],
            "B": [1, 1, 1, 64],
            "M": [64, 64, np.nan, np.nan],
            "N": [64, 64, np.nan, np.nan],
            "K": [64, 64, np.nan, np.nan],
            "H": [np.nan, np.nan, np.nan, 64],
        },
        index=[7, 8, 9, 10],
    )
    assert list(covered(calls)) == [True, False, False, False]
    found = predict_calls(calls, load_gpu("H100"))
    assert list(found.index) == [7, 8, 9, 10] and list(found.columns) == list(COLUMNS)
    assert found.loc[8:].isna().all().all()


def test_a_published_network_learns_and_saves(gemm_samples: pd.DataFrame, tmp_path: Path) -> None:
    recipe = replace(SMALL, layers=2, width=32, steps=300, batch=256)
    network = train_published(gemm_samples, "gemm", recipe)
    rows = gemm_samples[gemm_samples["gpu"] == "T4"]
    error = np.abs(network.predict(rows, load_gpu("T4")) / rows["latency_us"] - 1)
    assert np.median(error) < 0.25
    network.save(tmp_path / "published.safetensors")
    again = PublishedNetwork.load(tmp_path / "published.safetensors")
    ratios = [each.ratio(rows, load_gpu("V100"), load_gpu("T4")) for each in (network, again)]
    assert ratios[1] == pytest.approx(ratios[0], rel=0.02), "weights are saved in half precision"
    with pytest.raises(InputError, match="no network for family softmax"):
        train_published(gemm_samples, "softmax")


def test_rows_that_only_a_mistake_leaves_to_wave_scaling_are_named(tmp_path: Path) -> None:
    def said(**columns: object) -> list[str]:
        given = tmp_path / "measured.parquet"
        pd.DataFrame({"latency_us": [30.0, 1100.0]} | columns).to_parquet(given)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            transfer_command("T4", "L4", "auto", given, tmp_path / "predicted.parquet")
        return [
            str(each.message).partition(": ")[2]
            for each in caught
            if each.category is SteptimeWarning
        ]

    sizes = {"B": [1, 1], "M": [512, 2048], "N": [512, 2048], "K": [512, 2048]}
    needed = ", ".join(FAMILIES["gemm"].required)
    assert said(op="gemm", **sizes) == said(op="linear", **sizes) == said(op="batch_norm") == []
    (text,) = said(op="gemm", M=[512, 2048], N=[512, 2048], k=[512, 2048])
    assert "K, so wave scaling is used" in text and text.endswith(f"(columns: {needed})")
    (text,) = said(op="gem", **sizes)
    assert text == "unknown op 'gem', so wave scaling is used: did you mean 'gemm'?"
