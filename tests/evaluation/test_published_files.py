"""Readers of published measurements: what they make of invented files in the published forms, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from evaluation.published import published_steps, published_translation
from evaluation.published.published_busy import FILE as BUSY
from evaluation.published.published_busy import read_busy
from evaluation.published.published_dlrm import read_rows, read_steps
from evaluation.published.published_errors import NETWORK_METHODS
from evaluation.published.published_lin2022 import CNN_FILE, DLRM_FILE, read_cnn, read_dlrm
from evaluation.published.published_lookups import LIGER, NOTEBOOK, PULL_REQUEST, read_lookups
from evaluation.published.published_steps import LAMBDA_GPUS, TUNING_GPUS, read_networks, read_resnet50, read_training
from evaluation.published.published_translation import (
    FILL_RATIO,
    LENGTH_BUCKETS,
    SYSTEMS,
    read_transformer,
    read_translation,
)
from pipeline.errors import TableError
from pipeline.hardware.find_gpu import load_gpu
from tests.evaluation import published_texts as texts
from tests.evaluation.published_texts import CRITEO, GNMT, NHWC, RESNET, SIZES_OF_BATCHES, TRANSFORMER


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return texts.write(tmp_path)


def test_training_steps_are_batch_over_throughput(data: Path) -> None:
    rows = read_training(data).set_index(["gpu", "model", "dtype"])
    assert rows.loc[("RTX3090", "resnet50", "tf32"), "measured_us"] == pytest.approx(0.5e6)
    large = rows.loc[("RTX3090", "bert_large", "fp16")]
    assert large["batch_size"] == 10
    # 101 steps ran in the time that 100 are divided by
    assert large["measured_us"] == pytest.approx(1e6 * 10 / 20 / 1.01)
    # before TF32, fp32 is fp32; a rate of zero is no measurement
    assert ("V100-SXM2-16GB", "bert_base", "fp32") in rows.index
    assert ("V100-SXM2-16GB", "resnet50", "fp32") not in rows.index
    assert rows["seen"].all()


def test_training_and_inference_of_resnet50_are_read_from_the_page(data: Path) -> None:
    title = "##### Training performance: NVIDIA DGX A100 (8x A100 80GB)"
    lines = "|    1     | 512 img/s  |   1024 img/s   | 2 x |\n|    8     | 4096 img/s |\n"
    (data / RESNET).write_text(f"{texts.RESNET_PAGE}\n{title}\n\n{lines}")
    rows = read_resnet50(data)
    assert rows[["gpu", "mode", "dtype", "memory_format", "batch_size", "measured_us"]].to_numpy().tolist() == [
        ["A100-SXM4-80GB", "train", "tf32", "contiguous", 256, 5e5],
        ["A100-SXM4-80GB", "train", "fp16", "channels_last", 256, 2.5e5],
        ["T4", "inference", "fp32", "contiguous", 1, 11500.0], ["T4", "inference", "fp32", "contiguous", 32, 80000.0],
        ["T4", "inference", "fp16", "channels_last", 32, 32250.0],
    ]  # fmt: skip


def test_networks_are_read_in_both_layouts(data: Path) -> None:
    rows = read_networks(data)
    assert rows[["model", "memory_format", "batch_size", "measured_us"]].to_numpy().tolist() == [
        ["resnet50", "contiguous", 512, 600500.0], ["resnet50", "channels_last", 512, 400500.0],
    ]  # fmt: skip


def test_steps_of_dlrm_are_batch_over_throughput_and_latencies_that_wait_for_the_host_are_left_out(data: Path) -> None:
    rows = read_steps(data)
    named = rows[["version", "gpu", "mode", "dtype", "batch_size", "cuda_graph", "measured_us"]]
    train = named[rows["mode"] == "train"].drop(columns="mode").to_numpy().tolist()
    assert train == [
        ["2020-04", "V100-SXM2-32GB", "fp32", 32768, False, 65536], ["2020-04", "V100-SXM2-32GB", "fp16", 32768, False, 32768],
        ["2020-08", "A100-SXM4-40GB", "tf32", 32768, False, 16384], ["2020-08", "A100-SXM4-40GB", "fp16", 32768, False, 8192],
        ["2021-10", "A100-SXM4-80GB", "tf32", 32768, True, 16384], ["2021-10", "A100-SXM4-80GB", "fp16", 32768, True, 8192],
    ]  # fmt: skip
    assert list(rows["seen"][:3]) == [True, True, False]
    inference = (
        named[rows["mode"] == "inference"][["dtype", "cuda_graph", "batch_size", "measured_us"]].to_numpy().tolist()
    )
    assert inference == [
        ["fp16", True, 512, pytest.approx(500)], ["fp16", True, 4096, pytest.approx(1000)],
        ["fp16", False, 4096, pytest.approx(4000)], ["fp32", True, 512, pytest.approx(2000)],
        ["fp32", True, 4096, pytest.approx(3000)], ["fp32", False, 4096, pytest.approx(4000)],
    ]  # fmt: skip
    assert read_rows(data) == [30, 10, 20], "in the order in which they are looked up"


def test_a_log_gives_the_mean_of_its_last_epoch(data: Path) -> None:
    rows = read_translation(data)
    assert rows[["gpu", "dtype", "batch_size", "measured_us", "seen"]].to_numpy().tolist() == [
        ["V100-SXM2-16GB", "fp32", 128, 5e5, True], ["RTX3090", "tf32", 256, 1.3e5, False], ["B200", "fp16", 512, 1.3e5, False],
    ]  # fmt: skip
    assert sum(share for _, share in LENGTH_BUCKETS) == pytest.approx(1.0, abs=0.002)


def test_the_transformers_page_gives_steps_of_one_gpu(data: Path) -> None:
    rows = read_transformer(data)
    assert list(rows["gpu"]) == ["A100-SXM4-40GB"] * 2 + ["V100-SXM2-16GB"] * 2
    assert list(rows["dtype"]) == ["tf32", "fp16", "fp32", "fp16"]
    assert list(rows["tokens"]) == [1000, 1000, 200, 400]
    assert list(rows["measured_us"]) == pytest.approx([FILL_RATIO * us for us in (1e5, 5e4, 2e5, 1e5)])


def test_lookups_of_each_source_are_read_in_its_form(data: Path) -> None:
    rows = read_lookups(data).set_index("op")
    assert rows.index.tolist() == ["gather_2024", "dense", "gather", "fused", "fused_atomic", "dense_few"]
    assert rows["measured_us"].tolist() == pytest.approx([250.0, 750.0, 125.0, 12.5, 50.0, 75.0])
    assert rows.loc["gather", ["gpu", "B", "E", "L", "D"]].tolist() == ["A100-SXM4-80GB", 32, 1000, 1, 768]
    assert rows.loc["fused", ["gpu", "B", "T", "E", "L", "D"]].tolist() == ["V100", 2, 3, 500, 7, 32]
    assert rows.loc["dense_few", ["B", "D"]].tolist() == [1024, 64]
    assert not rows["seen"].any()
    (data / LIGER).write_text((data / LIGER).read_text().replace("768", "4096"))
    assert read_lookups(data).query("source == 'liger'")["seen"].all()


def test_busy_shares_are_quotients_of_the_stated_errors(data: Path) -> None:
    rows = read_busy(data)
    assert rows["gpu"].tolist() == ["V100", "V100", "Xp", "Xp"]
    assert rows["model"].tolist() == ["dlrm_default"] * 2 + ["dlrm_ddp"] * 2
    assert rows["batch_size"].tolist() == [512, 1024] * 2
    assert rows["busy"].tolist() == pytest.approx([0.5, 0.9, 0.5, 0.8])
    assert rows["published_busy"].tolist() == pytest.approx([0.625, 0.75, 0.4 / 1.05, 1.0])
    assert rows["published_error"].tolist() == pytest.approx([0.0, 0.2, 0.05, -0.12])


def test_steps_of_lin_et_al_have_our_names_and_units(data: Path) -> None:
    rows = read_dlrm(data)
    assert list(rows.columns) == ["gpu", "model", "batch_size", "measured_us"]
    assert rows.values.tolist() == [["V100", "dlrm_default", 512, 5000.0], ["Xp", "dlrm_ddp", 4096, 12500.0]]
    rows = read_cnn(data)
    assert rows["model"].tolist() == ["resnet50", "inception_v3"]
    assert [rows[name].tolist() for name in NETWORK_METHODS.values()] == [
        pytest.approx([0.05, 0.075]), pytest.approx([0.1, 0.025]), pytest.approx([0.2, 0.0])
    ]  # fmt: skip


def test_every_card_has_a_specification() -> None:
    names = {*LAMBDA_GPUS.values(), *TUNING_GPUS, *SYSTEMS.values(), *published_translation.TUNING_GPUS}
    for name in {*names, *published_steps.NVIDIA_GPUS.values(), *published_translation.NVIDIA_GPUS.values()}:
        assert load_gpu(name).name == name


READERS: dict[str, Callable[[Path], pd.DataFrame | list[int]]] = {
    "lambda/pytorch": read_training, "lambda/results": read_translation, "timm/": read_networks, RESNET: read_resnet50,
    TRANSFORMER: read_transformer, "nvidia/dlrm-README": read_steps, CRITEO: read_rows, LIGER: read_lookups,
    NOTEBOOK: read_lookups, PULL_REQUEST: read_lookups, BUSY: read_busy, DLRM_FILE: read_dlrm, CNN_FILE: read_cnn,
}  # fmt: skip


def reader_of(name: str) -> Callable[[Path], pd.DataFrame | list[int]]:
    return next(reader for start, reader in READERS.items() if name.startswith(start))


FORM = "not in its published form"
DLRM_PAGE = "nvidia/dlrm-README-2020-04.md"


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        (SIZES_OF_BATCHES, "name_gpu", "name", FORM),
        (SIZES_OF_BATCHES, "250", "many", FORM),
        (SIZES_OF_BATCHES, "250", "0", "resnet50 is missing"),
        (NHWC, "train_step_time", "time", FORM),
        (NHWC, "resnet50", "a network", "has none of the expected networks"),
        (NHWC, "400.5", "0", "is not a positive number"),
        (RESNET, "32.25 ms", "3.2.5 ms", FORM),
        (RESNET, "32.25 ms", "0 ms", "is not a positive number"),
        (RESNET, "NVIDIA T4", "a card", "has no tables"),
        (TRANSFORMER, "8x", "9x", "has no training results"),
        (TRANSFORMER, "10000 ", "0 ", "is not a positive number"),
        (GNMT, "0.130", "0.000", "is not a positive number"),
        (GNMT, "0.130", "0.1.3", FORM),
        (GNMT, "[30/40]", "[10/40]", "ends at step 10 of 40"),
        (GNMT, "math=", "mathematics=", FORM),
        (GNMT, "TRAIN", "TEST", FORM),
        (DLRM_PAGE, "| 1 |", "| 2 |", "has no results of a single GPU"),
        *((DLRM_PAGE, "500k", rate, FORM) for rate in ("-", "0k", "-1", "nan", "inf")),
        (CRITEO, "cat_10.bin]", "cat_11.bin]", FORM),
        (CRITEO, "cat_10.bin]", "cat_10.bin", FORM),
        (CRITEO, "cardinality: 30", "cardinality: x", FORM),
        (LIGER, "NVIDIA", "Another", "has no embedding on"),
        (LIGER, '"{', '"', FORM),
        (LIGER, "1.0,", "0.1,", "is not positive"),
        (NOTEBOOK, "batched", "other", "has no printed table"),
        (NOTEBOOK, "bag_size", "bag", FORM),
        (NOTEBOOK, '"cells"', '"sheets"', FORM),
        (PULL_REQUEST, "1024", "tokens", "has no table"),
        (PULL_REQUEST, "7.5E-05", "7.5E-", FORM),
        (PULL_REQUEST, "|64 ", "|6.4", FORM),
        (BUSY, "# batch_sizes", "# sizes", "no cell assigns"),
        (BUSY, "Titan XP", "Titan X", FORM),
        (BUSY, "-37.5", "237.5", "busy for longer"),
        (BUSY, "512, 1024", "512", FORM),
        (BUSY, "-37.5", "'?'", FORM),
        (BUSY, "25.0", "-100.0", FORM),
        (BUSY, "512, 1024", "512, {'a': 1}", FORM),
        (DLRM_FILE, "batch_time_ms", "batch_time_us", FORM),
        (DLRM_FILE, texts.DLRM.partition("\n")[2], "", "no rows"),
        (DLRM_FILE, "Xp", "A100", "unknown value 'A100'; known are V100, Xp, P100"),
        (DLRM_FILE, "DLRM_DDP", "ResNet50", "column model has the unknown value 'ResNet50'"),
        *((DLRM_FILE, "12.5", ms, FORM) for ms in ("", "nan", "inf", "0", "x")),
        (DLRM_FILE, "4096", "4096.5", "whole number"),
        (DLRM_FILE, "Xp,DLRM_DDP,4096", "V100,DLRM_default,512", "a row twice"),
        (CNN_FILE, "7.5", "-7.5", "err_lin_pct"),
    ],
)
def test_other_contents_are_refused_in_one_line(data: Path, name: str, old: str, new: str, says: str) -> None:
    text = (data / name).read_text()
    assert old in text
    (data / name).write_text(text.replace(old, new))
    if name == NHWC:
        (data / NHWC.replace("nhwc", "nchw")).write_text(text.replace(old, new))
    with pytest.raises(TableError) as caught:
        reader_of(name)(data)
    message = str(caught.value)
    assert says in message and str(data) in message and "\n" not in message


@pytest.mark.parametrize("name", [name for name in texts.FILES if not name.startswith("lambda/results")])
def test_a_missing_file_and_one_that_is_no_text_are_named(data: Path, name: str) -> None:
    path = data / name
    for content in (b"\xff\xfe\x00", b"", None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(TableError, match=r"says where it comes from|has no ") as caught:
            reader_of(name)(data)
        assert name in str(caught.value)
        path.touch()


def test_tables_that_name_no_known_card_and_a_folder_without_logs_are_refused(data: Path) -> None:
    for file in (data / "lambda").glob("*.csv"):
        file.write_text(file.read_text().replace("RTX 3090", "some card").replace("1x V100", "8x V100"))
    with pytest.raises(TableError, match="has no known GPU"):
        read_training(data)
    with pytest.raises(TableError, match=r"docs/accuracy\.md"):
        read_translation(data / "lambda")
