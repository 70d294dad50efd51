"""The split of timm's measured networks, and the reader of its tables."""

import pandas as pd
import pytest

from evaluation.published.published_timm import (
    INFERENCE,
    LOOKED_AT,
    TRAINING,
    is_tuning,
    read_inference,
    read_training,
)
from pipeline.errors import TableError


def test_networks_whose_errors_were_known_are_tuning_rows_whatever_their_weights() -> None:
    assert all(is_tuning(name) and is_tuning(f"{name}.a1_in1k") for name in LOOKED_AT)


@pytest.mark.parametrize(
    "name, tuning",
    [("regnety_016", True), ("dm_nfnet_f2", True), ("vgg19", False), ("densenet121", False)],
)
def test_the_hash_of_a_name_decides(name: str, tuning: bool) -> None:
    assert is_tuning(name) == tuning


def test_no_measured_row_is_lost(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / TRAINING).parent.mkdir()
    train = pd.DataFrame({"model": "vgg19", "layout": ["nchw", "nhwc"], "train_img_size": 224.0})
    train = train.assign(train_batch_size=[64.0, 96.0], train_step_time=[10.5, 9.0])
    train.to_parquet(tmp_path / TRAINING)
    rows = read_training(tmp_path)[["memory_format", "batch_size", "measured_us"]]
    assert rows.to_numpy().tolist() == [["contiguous", 64, 10_500], ["channels_last", 96, 9_000]]
    timm = {"source": "huggingface/pytorch-image-models", "compile": "False", "model": "vgg19"}
    timm |= {"path": "results/b-amp-nchw-pt240-cu124.csv", "batch_per_gpu": "256"}
    timm |= {"seq_len": "img 384", "value": 3.0}
    table = [timm, {**timm, "compile": "True"}, {**timm, "source": "karpathy/nanoGPT"}]
    pd.DataFrame(table).to_parquet(tmp_path / INFERENCE)
    (row,) = read_inference(tmp_path).to_dict("records")
    found = [row[name] for name in ("side", "torch", "measured_us", "mode")]
    assert found == [384, "2.4", 3_000.0, "inference"]


def test_a_missing_table_is_one_line(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TableError, match="no such file"):
        read_training(tmp_path)
