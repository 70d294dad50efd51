"""Logs and pages on translators in the published form, with invented figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.published.published_steps import COLUMNS
from evaluation.published.published_translation import (
    FILL_RATIO,
    LENGTH_BUCKETS,
    NVIDIA_GPUS,
    SYSTEMS,
    TUNING_GPUS,
    read_transformer,
    read_translation,
)
from pipeline.errors import TableError
from pipeline.hardware.find_gpu import load_gpu

ARGUMENTS = (
    "0: Run arguments: Namespace(batching='bucketing', math='{math}', train_batch_size={batch}, val_batch_size=64)\n"
)
LINE = (
    "0: TRAIN [{epoch}][{step}/40]\tTime 0.7{step} ({mean})\tData 2e-04 (2e-04)\tTok/s 1000 (900)\tLoss/tok 1.0 (1.0)\n"
)
END = "0: VALIDATION [0][10/80]\tTime 0.084 (0.103)\tData 1e-03 (1e-03)\n"

PAGE = """##### Training performance: NVIDIA DGX A100 (8x A100 40GB)

| GPUs   | Batch size / GPU   | Throughput - TF32    | Throughput - mixed precision |
|--------|--------------------|----------------------|------------------------------|
| 8      | 1000               | 70000                | 140000                       |
| 1      | 1000               | 10000                | 20000                        |

##### Training performance: NVIDIA DGX-1 (8x V100 16GB)

| 1      | 400/200            | 1000                 | 4000                         |

##### Training performance: another machine

| 1      | 400/200            | 1                    | 1                            |
"""


def write(root: Path, folder: str, math: str, batch: int, lines: str) -> Path:
    file = root / "lambda" / folder / f"PyTorch_gnmt_{'FP16' if math == 'fp16' else 'FP32'}" / "01-01-2023_00-00-00.txt"
    file.parent.mkdir(parents=True)
    file.write_text(ARGUMENTS.format(math=math, batch=batch) + lines + END)
    return file


@pytest.fixture
def data(tmp_path: Path) -> Path:
    two = "".join(LINE.format(epoch=epoch, step=step, mean=f"0.{epoch}{step}") for epoch in (0, 1) for step in (10, 30))
    write(tmp_path, "results/LambdaCloud_V100_16GB_v1", "fp32", 128, LINE.format(epoch=0, step=30, mean="0.500"))
    write(tmp_path, "results/3090_v1", "fp32", 256, two)
    write(tmp_path, "results_v2/LambdaOD_test_1xB200_192GB_somewhere_v2", "fp16", 512, two)
    write(tmp_path, "results/another_v1", "fp16", 512, two)
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "transformer-README.md").write_text(PAGE)
    return tmp_path


def test_a_log_gives_the_mean_of_its_last_epoch(data):
    rows = read_translation(data)
    assert list(rows.columns) == list(COLUMNS)
    assert list(rows["gpu"]) == ["V100-SXM2-16GB", "RTX3090", "B200"]  # the unknown system is left out
    assert list(rows["measured_us"]) == [5e5, 1.3e5, 1.3e5]
    assert list(rows["batch_size"]) == [128, 256, 512]
    assert list(rows["dtype"]) == ["fp32", "tf32", "fp16"]
    assert list(rows["seen"]) == [True, False, False]


def test_every_card_is_known_and_shares_of_lengths_are_all_of_them():
    for name in {*SYSTEMS.values(), *NVIDIA_GPUS.values()}:
        load_gpu(name)
    assert set(TUNING_GPUS) <= set(SYSTEMS.values())
    assert sum(share for _, share in LENGTH_BUCKETS) == pytest.approx(1.0, abs=0.002)


@pytest.mark.parametrize("text, said", [
    (ARGUMENTS.format(math="fp32", batch=8), "training steps"),
    (LINE.format(epoch=0, step=30, mean="0.5"), "math"),
    (ARGUMENTS.format(math="fp32", batch=8) + LINE.format(epoch=0, step=10, mean="0.5"), "step 10 of 40"),
    (ARGUMENTS.format(math="fp32", batch=8) + LINE.format(epoch=0, step=30, mean="0.000"), "not a positive number"),
    (ARGUMENTS.format(math="fp32", batch="x") + LINE.format(epoch=0, step=30, mean="0.5"), "not a positive number"),
    (ARGUMENTS.format(math="fp32", batch=8) + LINE.format(epoch=0, step=30, mean="0.5.1"), "not a positive number"),
])  # fmt: skip
def test_a_log_that_is_not_whole_is_refused_in_one_line(data, text, said):
    [file] = (data / "lambda" / "results" / "3090_v1").glob("*/*.txt")
    file.write_text(text)
    with pytest.raises(TableError) as caught:
        read_translation(data)
    assert said in str(caught.value) and str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_something_else_than_text_is_refused(data):
    [file] = (data / "lambda" / "results" / "3090_v1").glob("*/*.txt")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="not a text file"):
        read_translation(data)


def test_without_logs_the_message_says_where_they_come_from(tmp_path):
    with pytest.raises(TableError, match=r"docs/accuracy\.md"):
        read_translation(tmp_path)


def test_the_transformers_page_gives_steps_of_one_gpu(data):
    rows = read_transformer(data)
    assert list(rows["gpu"]) == ["A100-SXM4-40GB"] * 2 + ["V100-SXM2-16GB"] * 2
    assert list(rows["dtype"]) == ["tf32", "fp16", "fp32", "fp16"]
    assert list(rows["tokens"]) == [1000, 1000, 200, 400]
    assert list(rows["measured_us"]) == pytest.approx([FILL_RATIO * us for us in (1e5, 5e4, 2e5, 1e5)])


@pytest.mark.parametrize("text", ["", "##### Training performance: another machine\n| 1 | 2 | 3 | 4 |\n"])
def test_a_page_without_the_tables_is_refused(data, text):
    file = data / "nvidia" / "transformer-README.md"
    file.write_text(text)
    with pytest.raises(TableError, match="has no training results"):
        read_transformer(data)
    file.unlink()
    with pytest.raises(TableError, match="no such file"):
        read_transformer(data)
