"""DLRM steps that NVIDIA published: drawn files in the published form, with invented numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.published.published_dlrm import COLUMNS, read_rows, read_steps
from pipeline.errors import TableError

FIRST = """##### Training performance: NVIDIA DGX-1 (8x V100 32G)

| GPUs   | Batch size / GPU   | Throughput - FP32    | Throughput - mixed precision    | Throughput speedup |
|----|---|---|---|---|
| 1 | 32k |  500k | 1000k | 2.0 |
"""
SECOND = """##### Training performance: NVIDIA DGX A100 (8x A100 40GB)

| GPUs   | Model size    | Batch size / GPU   | Throughput - TF32    | Throughput - mixed precision    | speedup
|----:|----|----|---:|---:|---:|
| 8 | large | 64k | 9,000,000 | 9,000,000 | 1.0 |
| 1 | small | 32k | 2,000,000 | 4,000,000 | 2.0 |

##### Training performance: NVIDIA DGX-2 (16x V100 32GB)

| 1 | small | 32k | 2,000,000 | 4,000,000 | 2.0 |
"""
CELL = '<td style="text-align: right;">{}</td>'


def latencies(*rows: tuple[str, ...]) -> str:
    lines = ["<tr>" + "".join(CELL.format(cell) for cell in row) + "</tr>" for row in rows]
    head = "##### Inference performance: NVIDIA DGX-1 (1x V100 32GB)\n\n<tr><td><b>FP32</b></td></tr>\n"
    return head + "\n".join(lines)


LAST = SECOND.replace("40GB", "80GB") + latencies(
    ("4096", "1", "0.001", "1", "0.004", "1", "0.003", "1", "0.004"),
    (" 512", "1", "0.0005", "1", "0.002", "1", "0.002", "1", "0.003"),
    ("2", "1", "0.0001", "1", "0.0015", "1", "0.001", "1", "0.002"),
)
SPEC = """channel_spec:
  categorical: [cat_0.bin, cat_1.bin, cat_10.bin]
feature_spec:
  cat_0.bin: {cardinality: 30, dtype: int8}
  cat_1.bin: {cardinality: 10, dtype: int8}
  cat_10.bin: {cardinality: 20, dtype: int8}
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "nvidia").mkdir()
    for version, text in (("2020-04", FIRST), ("2020-08", SECOND), ("2021-10", LAST)):
        (tmp_path / "nvidia" / f"dlrm-README-{version}.md").write_text(text)
    (tmp_path / "nvidia" / "dlrm-criteo_f15.yaml").write_text(SPEC)
    return tmp_path


def test_training_is_batch_over_throughput_on_one_card_that_we_know(data: Path) -> None:
    rows = read_steps(data).query("mode == 'train'")
    assert list(rows.columns) == list(COLUMNS)
    assert rows[["version", "gpu", "dtype", "batch_size", "cuda_graph", "seen"]].values.tolist() == [
        ["2020-04", "V100-SXM2-32GB", "fp32", 32768, False, True],
        ["2020-04", "V100-SXM2-32GB", "fp16", 32768, False, True],
        ["2020-08", "A100-SXM4-40GB", "tf32", 32768, False, False],
        ["2020-08", "A100-SXM4-40GB", "fp16", 32768, False, False],
        ["2021-10", "A100-SXM4-80GB", "tf32", 32768, True, False],
        ["2021-10", "A100-SXM4-80GB", "fp16", 32768, True, False],
    ]
    assert list(rows["measured_us"]) == pytest.approx([65536, 32768, 16384, 8192, 16384, 8192])


def test_latencies_that_wait_for_the_host_are_left_out_without_graphs(data: Path) -> None:
    rows = read_steps(data).query("mode == 'inference'")
    found = rows[["dtype", "cuda_graph", "batch_size", "measured_us"]].values.tolist()
    assert found == [
        ["fp16", True, 512, pytest.approx(500)],
        ["fp16", True, 4096, pytest.approx(1000)],
        ["fp16", False, 4096, pytest.approx(4000)],
        ["fp32", True, 512, pytest.approx(2000)],
        ["fp32", True, 4096, pytest.approx(3000)],
        ["fp32", False, 4096, pytest.approx(4000)],
    ]


def test_tables_come_in_the_order_in_which_they_are_looked_up(data: Path) -> None:
    assert read_rows(data) == [30, 10, 20]


def test_a_missing_page_and_one_without_tables_are_named(data: Path) -> None:
    page = data / "nvidia" / "dlrm-README-2020-08.md"
    page.write_text("# DLRM\n")
    with pytest.raises(TableError, match=r"2020-08\.md: has no results of a single GPU"):
        read_steps(data)
    page.unlink()
    with pytest.raises(TableError, match=r"no such file; docs/accuracy\.md says where it comes from"):
        read_steps(data)
    (data / "nvidia" / "dlrm-criteo_f15.yaml").write_text("channel_spec: {categorical: [a]}\n")
    with pytest.raises(TableError, match="the cardinality of a categorical feature is missing"):
        read_rows(data)


def test_damaged_contents_are_refused_in_one_line(data: Path) -> None:
    page = data / "nvidia" / "dlrm-README-2020-04.md"
    for rate in ("-", "0k"):
        page.write_text(FIRST.replace("500k", rate))
        with pytest.raises(TableError, match=r"2020-04\.md: a size, rate or time is not a positive number"):
            read_steps(data)
    (data / "nvidia" / "dlrm-criteo_f15.yaml").write_text("channel_spec: {categorical: [a\n")
    with pytest.raises(TableError, match="the cardinality of a categorical feature is missing") as caught:
        read_rows(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rate", ["-1", "nan", "inf", "0k"])
def test_a_rate_that_is_not_positive_is_refused(data: Path, rate: str) -> None:
    file = data / "nvidia" / "dlrm-README-2020-04.md"
    file.write_text(FIRST.replace("500k", rate))
    with pytest.raises(TableError, match="is not a positive number"):
        read_steps(data)
