"""Whole steps that others published: drawn files in the published form, as they would be downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.published.published_steps import (
    LAMBDA_GPUS,
    NVIDIA_GPUS,
    TUNING_GPUS,
    read_networks,
    read_resnet50,
    read_training,
)
from pipeline.errors import TableError
from pipeline.hardware.find_gpu import load_gpu

HEADER = "name_gpu,num_gpu,watt,price,ssd,bert_base_squad,bert_large_squad,gnmt,resnet50,tacotron2,waveglow\r\n"
THROUGHPUT = "RTX 3090,1,350,2750,1,80,20,1,500,1,1\r\nLambdaCloud 1x V100 16GB,1,300,9,1,40,10,1,0,1,1\r\n"
BATCH = "RTX 3090,1,350,2750,1,40,10,1,250,1,1\r\nLambdaCloud 1x V100 16GB,1,300,9,1,20,5,1,128,1,1\r\n"
TIMM = "model,train_samples_per_sec,train_step_time,train_batch_size\n"

PAGE = """# ResNet-50

##### Inference performance: NVIDIA T4

###### FP32 Inference Latency

| **Batch Size** | **Throughput Avg** | **Latency Avg** | **Latency 95%** |
|:--------------:|:------------------:|:---------------:|:---------------:|
|       1        |      90 img/s      |    11.5 ms      |    12.5 ms      |
|       32       |     400 img/s      |     80 ms       |    81.5 ms      |

###### Mixed Precision Inference Latency

| **Batch Size** | **Throughput Avg** | **Latency Avg** | **Latency 95%** |
|:--------------:|:------------------:|:---------------:|:---------------:|
|       32       |     1000 img/s     |    32.25 ms     |    33.5 ms      |

##### Inference performance: some other card

###### FP32 Inference Latency

|       32       |     1000 img/s     |    32.25 ms     |    33.5 ms      |
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "lambda").mkdir()
    (tmp_path / "nvidia").mkdir()
    for precision in ("fp32", "fp16"):
        for what, rows in (("throughput", THROUGHPUT), ("bs", BATCH)):
            (tmp_path / "lambda" / f"pytorch-train-{what}-{precision}.csv").write_text(HEADER + rows, newline="")
    (tmp_path / "nvidia" / "resnet50v1.5-README.md").write_text(PAGE)
    (tmp_path / "timm").mkdir()
    for layout, milli in (("nchw", 600.5), ("nhwc", 400.5)):
        text = f"{TIMM}resnet50,1,{milli},512\nother,1,1,1\n"
        (tmp_path / "timm" / f"benchmark-train-amp-{layout}-pt112-cu113-rtx3090.csv").write_text(text)
    return tmp_path


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


def test_training_of_one_gpu_is_read_from_the_page(data: Path) -> None:
    page = data / "nvidia" / "resnet50v1.5-README.md"
    title = "##### Training performance: NVIDIA DGX A100 (8x A100 80GB)"
    page.write_text(f"{PAGE}\n{title}\n\n|    1     | 512 img/s  |   1024 img/s   | 2 x |\n|    8     | 4096 img/s |\n")
    rows = read_resnet50(data)
    assert rows.loc[rows["mode"] == "train", ["gpu", "dtype", "memory_format", "measured_us"]].to_numpy().tolist() == [
        ["A100-SXM4-80GB", "tf32", "contiguous", 5e5], ["A100-SXM4-80GB", "fp16", "channels_last", 2.5e5],
    ]  # fmt: skip


def test_inference_latencies_are_read_from_the_page(data: Path) -> None:
    rows = read_resnet50(data)
    assert rows[["gpu", "dtype", "batch_size", "measured_us"]].to_numpy().tolist() == [
        ["T4", "fp32", 1, 11500.0], ["T4", "fp32", 32, 80000.0], ["T4", "fp16", 32, 32250.0],
    ]  # fmt: skip
    assert not rows["seen"].any()


def test_networks_are_read_in_both_layouts(data: Path) -> None:
    rows = read_networks(data)
    assert rows[["model", "memory_format", "batch_size", "measured_us"]].to_numpy().tolist() == [
        ["resnet50", "contiguous", 512, 600500.0], ["resnet50", "channels_last", 512, 400500.0],
    ]  # fmt: skip


def test_every_card_has_a_specification() -> None:
    for name in {*LAMBDA_GPUS.values(), *NVIDIA_GPUS.values(), *TUNING_GPUS}:
        assert load_gpu(name).name == name


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("lambda/pytorch-train-bs-fp16.csv", None, "no such file"),
        ("lambda/pytorch-train-bs-fp16.csv", "name_gpu,resnet50\nRTX 3090,1\n", "is missing"),
        ("lambda/pytorch-train-bs-fp16.csv", HEADER + BATCH.replace("250", "many"), "a value that is not a number"),
        ("lambda/pytorch-train-bs-fp16.csv", "", "not a readable CSV"),
        ("lambda/pytorch-train-bs-fp16.csv", HEADER + BATCH.replace("250", "0"), ", resnet50 is missing"),
        ("timm/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv", None, "no such file"),
        ("timm/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv", "model\nresnet50\n", "is missing"),
        (
            "timm/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv",
            f"{TIMM}other,1,1,1\n",
            "has none of the expected networks",
        ),
        ("timm/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv", f"{TIMM}resnet50,1,0,512\n", "no time"),
        ("nvidia/resnet50v1.5-README.md", None, "no such file"),
        ("nvidia/resnet50v1.5-README.md", "# nothing", "no tables"),
        ("nvidia/resnet50v1.5-README.md", PAGE.replace("32.25 ms", "3.2.5 ms"), "not a positive number"),
        ("nvidia/resnet50v1.5-README.md", PAGE.replace("32.25 ms", "0 ms"), "not a positive number"),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(data: Path, name: str, text: str | None, says: str) -> None:
    (data / name).unlink()
    if text is not None:
        (data / name).write_text(text)
    with pytest.raises(TableError, match=says) as caught:
        {"lambda": read_training, "timm": read_networks, "nvidia": read_resnet50}[name.split("/")[0]](data)
    assert name in str(caught.value)


def test_tables_that_name_no_known_card_are_refused(data: Path) -> None:
    """Regression: their rows were dropped without a warning."""
    for file in (data / "lambda").iterdir():
        file.write_text(file.read_text().replace("RTX 3090", "some card").replace("1x V100", "8x V100"))
    with pytest.raises(TableError, match="has no known GPU"):
        read_training(data)


def test_a_page_that_is_no_text_is_named(data: Path) -> None:
    page = data / "nvidia" / "resnet50v1.5-README.md"
    page.write_bytes(b"\xff\xfe#")
    with pytest.raises(TableError, match=r"README\.md: not a readable text file"):
        read_resnet50(data)
    page.unlink()
    page.mkdir()
    with pytest.raises(TableError, match=r"README\.md: not a readable text file"):
        read_resnet50(data)


def test_a_folder_in_the_place_of_a_table_is_named(data: Path) -> None:
    path = data / "lambda" / "pytorch-train-bs-fp32.csv"
    path.unlink()
    path.mkdir()
    with pytest.raises(TableError, match=r"pytorch-train-bs-fp32\.csv: not a readable CSV file"):
        read_training(data)
