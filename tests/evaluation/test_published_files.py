"""Readers of published measurements: what they make of invented files in the published forms, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluation.published import published_steps, published_translation
from evaluation.published.published_dlrm import read_rows, read_steps
from evaluation.published.published_errors import NETWORK_METHODS, published
from evaluation.published.published_lin2022 import read_cnn, read_dlrm, read_mean_errors
from evaluation.published.published_lookups import LIGER, NOTEBOOK, PULL_REQUEST, read_lookups
from evaluation.published.published_steps import (
    LAMBDA_GPUS,
    TUNING_GPUS,
    read_resnet50,
    read_training,
)
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
from tests.evaluation.published_texts import CRITEO, GNMT, RESNET, SIZES_OF_BATCHES, TRANSFORMER


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
    assert rows[
        ["gpu", "mode", "dtype", "memory_format", "batch_size", "measured_us"]
    ].to_numpy().tolist() == [
        ["A100-SXM4-80GB", "train", "tf32", "contiguous", 256, 5e5],
        ["A100-SXM4-80GB", "train", "fp16", "channels_last", 256, 2.5e5],
        ["T4", "inference", "fp32", "contiguous", 1, 11500.0],
        ["T4", "inference", "fp32", "contiguous", 32, 80000.0],
        ["T4", "inference", "fp16", "channels_last", 32, 32250.0],
    ]


def test_steps_of_dlrm_are_batch_over_throughput_and_latencies_that_wait_for_the_host_are_left_out(
    data: Path,
) -> None:
    rows = read_steps(data)
    named = rows[["version", "gpu", "mode", "dtype", "batch_size", "cuda_graph", "measured_us"]]
    train = named[rows["mode"] == "train"].drop(columns="mode").to_numpy().tolist()
    assert train == [
        ["2020-04", "V100-SXM2-32GB", "fp32", 32768, False, 65536],
        ["2020-04", "V100-SXM2-32GB", "fp16", 32768, False, 32768],
        ["2020-08", "A100-SXM4-40GB", "tf32", 32768, False, 16384],
        ["2020-08", "A100-SXM4-40GB", "fp16", 32768, False, 8192],
        ["2021-10", "A100-SXM4-80GB", "tf32", 32768, True, 16384],
        ["2021-10", "A100-SXM4-80GB", "fp16", 32768, True, 8192],
    ]
    assert list(rows["seen"][:3]) == [True, True, False]
    inference = (
        named[rows["mode"] == "inference"][["dtype", "cuda_graph", "batch_size", "measured_us"]]
        .to_numpy()
        .tolist()
    )
    assert inference == [
        ["fp16", True, 512, pytest.approx(500)],
        ["fp16", True, 4096, pytest.approx(1000)],
        ["fp16", False, 4096, pytest.approx(4000)],
        ["fp32", True, 512, pytest.approx(2000)],
        ["fp32", True, 4096, pytest.approx(3000)],
        ["fp32", False, 4096, pytest.approx(4000)],
    ]
    assert read_rows(data) == [30, 10, 20], "in the order in which they are looked up"


def test_a_log_gives_the_mean_of_its_last_epoch(data: Path) -> None:
    rows = read_translation(data)
    assert rows[["gpu", "dtype", "batch_size", "measured_us", "seen"]].to_numpy().tolist() == [
        ["V100-SXM2-16GB", "fp32", 128, 5e5, True],
        ["RTX3090", "tf32", 256, 1.3e5, False],
        ["B200", "fp16", 512, 1.3e5, False],
    ]
    assert sum(share for _, share in LENGTH_BUCKETS) == pytest.approx(1.0, abs=0.002)


def test_the_transformers_page_gives_steps_of_one_gpu(data: Path) -> None:
    rows = read_transformer(data)
    assert list(rows["gpu"]) == ["A100-SXM4-40GB"] * 2 + ["V100-SXM2-16GB"] * 2
    assert list(rows["dtype"]) == ["tf32", "fp16", "fp32", "fp16"]
    assert list(rows["tokens"]) == [1000, 1000, 200, 400]
    assert list(rows["measured_us"]) == pytest.approx(
        [FILL_RATIO * us for us in (1e5, 5e4, 2e5, 1e5)]
    )


def test_lookups_of_each_source_are_read_in_its_form(data: Path) -> None:
    rows = read_lookups(data).set_index("op")
    assert rows.index.tolist() == [
        "gather_2024",
        "dense",
        "gather",
        "fused",
        "fused_atomic",
        "dense_few",
    ]
    assert rows["measured_us"].tolist() == pytest.approx([250.0, 750.0, 125.0, 12.5, 50.0, 75.0])
    assert rows.loc["gather", ["gpu", "B", "E", "L", "D"]].tolist() == [
        "A100-SXM4-80GB",
        32,
        1000,
        1,
        768,
    ]
    assert rows.loc["fused", ["gpu", "B", "T", "E", "L", "D"]].tolist() == [
        "V100",
        2,
        3,
        500,
        7,
        32,
    ]
    assert rows.loc["dense_few", ["B", "D"]].tolist() == [1024, 64]
    assert not rows["seen"].any()
    (data / LIGER).write_text((data / LIGER).read_text().replace("768", "4096"))
    assert read_lookups(data).query("source == 'liger'")["seen"].all()


def test_numbers_of_lin_et_al_are_those_of_the_paper() -> None:
    dlrm = read_dlrm().set_index(["gpu", "model", "batch_size"])
    assert len(dlrm) == 36
    first = dlrm.loc[("V100", "dlrm_default", 512)]
    # stated: active +8.73 %, step -12.68 %, active against the step -41.16 %
    assert first[
        ["measured_us", "busy", "published_busy", "published_error"]
    ].tolist() == pytest.approx([4550.0, 0.5884 / 1.0873, 0.5884 / 0.8732, -0.1268])
    assert dlrm["busy"].between(0, 1).all()
    # the errors of all steps give the abstract's geometric mean
    assert np.exp(np.log(dlrm["published_error"].abs()).mean()) == pytest.approx(
        published("step")[0].percent / 100, abs=5e-5
    )
    cnn = read_cnn()
    assert (len(cnn), set(cnn["model"])) == (18, {"resnet50", "inception_v3"})
    for (model, method), [mean] in {
        (model, method): published(f"{model} {method}")
        for model in set(cnn["model"])
        for method in NETWORK_METHODS.values()
    }.items():
        assert mean.percent == pytest.approx(
            100 * cnn.loc[cnn["model"] == model, method].mean(), abs=0.05
        )
    assert read_mean_errors().groupby("what").size().to_dict() == {
        "active": 4,
        "step": 4,
        "step_shared": 4,
    }


def test_every_card_has_a_specification() -> None:
    names = {
        *LAMBDA_GPUS.values(),
        *TUNING_GPUS,
        *SYSTEMS.values(),
        *published_translation.TUNING_GPUS,
    }
    for name in {
        *names,
        *published_steps.NVIDIA_GPUS.values(),
        *published_translation.NVIDIA_GPUS.values(),
    }:
        assert load_gpu(name).name == name


READERS: dict[str, Callable[[Path], pd.DataFrame | list[int]]] = {
    "lambda/pytorch": read_training, "lambda/results": read_translation, RESNET: read_resnet50,
    TRANSFORMER: read_transformer, "nvidia/dlrm-README": read_steps, CRITEO: read_rows,
    LIGER: read_lookups, NOTEBOOK: read_lookups, PULL_REQUEST: read_lookups,
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
    ],
)
def test_other_contents_are_refused_in_one_line(
    data: Path, name: str, old: str, new: str, says: str
) -> None:
    text = (data / name).read_text()
    assert old in text
    (data / name).write_text(text.replace(old, new))
    with pytest.raises(TableError) as caught:
        reader_of(name)(data)
    message = str(caught.value)
    assert says in message and str(data) in message and "\n" not in message


@pytest.mark.parametrize(
    "name", [name for name in texts.FILES if not name.startswith("lambda/results")]
)
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
        file.write_text(
            file.read_text().replace("RTX 3090", "some card").replace("1x V100", "8x V100")
        )
    with pytest.raises(TableError, match="has no known GPU"):
        read_training(data)
    with pytest.raises(TableError, match=r"docs/accuracy\.md"):
        read_translation(data / "lambda")
