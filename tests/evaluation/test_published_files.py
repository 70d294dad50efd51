"""Readers of published measurements: what they make of invented files in the published forms, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluation.pages.markdown import block, whole_text
from evaluation.pages.step_tables import read_steps
from evaluation.published import published_steps
from evaluation.published.published_errors import NETWORK_METHODS, published
from evaluation.published.published_lin2022 import read_cnn, read_dlrm, read_mean_errors
from evaluation.published.published_lookups import LIGER, NOTEBOOK, PULL_REQUEST, read_lookups
from evaluation.published.published_steps import CARDS, CONVERTED, TUNING_GPUS, read_training
from evaluation.workloads.gnmt_step import LENGTH_BUCKETS
from pipeline.errors import TableError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import project_dir
from tests.evaluation import published_texts as texts


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
    # before TF32, fp32 is fp32
    assert ("V100-SXM2-16GB", "bert_base", "fp32") in rows.index
    assert len(rows) == 5 and rows["seen"].all()


def test_steps_of_nvidias_page_are_those_of_training(data: Path) -> None:
    rows = read_training(data).query("source == 'nvidia'")
    columns = ["gpu", "mode", "dtype", "memory_format", "batch_size", "measured_us"]
    assert rows[columns].to_numpy().tolist() == [
        ["A100-SXM4-80GB", "train", "tf32", "contiguous", 256, 5e5],
        ["A100-SXM4-80GB", "train", "fp16", "channels_last", 256, 2.5e5],
    ]


def test_the_page_repeats_what_was_measured(datasets: Path) -> None:
    source = read_training(datasets)
    page = read_steps(block(whole_text(project_dir() / "docs" / "accuracy.md"), "published steps"))
    assert page["gpu"].tolist() == source["gpu"].tolist()
    for name in ("batch_size", "seen"):
        assert page[name].tolist() == source[name].tolist()
    assert page["measured_us"].to_numpy() == pytest.approx(source["measured_us"], rel=1e-5)


def test_shares_of_lengths_are_those_of_all_batches() -> None:
    assert sum(share for _, share in LENGTH_BUCKETS) == pytest.approx(1.0, abs=0.002)


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
    for name in {*CARDS.values(), *TUNING_GPUS, *published_steps.NVIDIA_GPUS.values()}:
        assert load_gpu(name).name == name


FORM = "not in its published form"


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
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
        read_lookups(data)
    message = str(caught.value)
    assert says in message and str(data) in message and "\n" not in message


@pytest.mark.parametrize("name", [*texts.FILES, str(CONVERTED)])
def test_a_missing_file_and_one_that_is_no_text_are_named(data: Path, name: str) -> None:
    path = data / name
    reader = read_lookups if name in texts.FILES else read_training
    for content in (b"\xff\xfe\x00", b"", None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(TableError, match=r"says where it comes from|has no ") as caught:
            reader(data)
        assert name in str(caught.value)
        path.touch()


def test_a_rate_of_zero_is_refused(data: Path) -> None:
    table = pd.read_parquet(data / CONVERTED)
    table.assign(value=0).to_parquet(data / CONVERTED)
    with pytest.raises(TableError, match="0 is not a positive number"):
        read_training(data)
