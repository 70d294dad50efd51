"""Reader of DLRM steps that NVIDIA measured and published: what predictions of whole DLRM steps are held against.

Three versions of the page of NVIDIA's DLRM example (`SOURCES["nvidia-dlrm"]`), with Criteo's tables cut to those values that
occur 15 times, on one GPU: training by precision, and in the last version latencies of inference by batch size, with CUDA
graphs and without. They lie under the datasets folder as they are published: `nvidia/dlrm-README-<version>.md`, and the tables'
rows in `nvidia/dlrm-criteo_f15.yaml`. They are never copied into this project, and no constant was set on any of them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from pipeline.errors import TableError
from pipeline.evaluation.published_pages import read_page, sections
from pipeline.yaml_text import load_yaml

VERSIONS = ("2020-04", "2020-08", "2021-10")

GPUS = {
    "NVIDIA DGX-1 (8x V100 32G)": "V100-SXM2-32GB",
    "NVIDIA DGX-1 (8x V100 32GB)": "V100-SXM2-32GB",
    "NVIDIA DGX-1 (1x V100 32GB)": "V100-SXM2-32GB",
    "NVIDIA DGX A100 (8x A100 40GB)": "A100-SXM4-40GB",
    "NVIDIA DGX A100 (8x A100 80GB)": "A100-SXM4-80GB",
    "NVIDIA A100 (1x A100 80GB)": "A100-SXM4-80GB",
}
"""Our name of each machine's card; those of a DGX-2 are no card that we have."""

SEEN = ("V100-SXM2-32GB",)
"""Cards whose rows were in view when captured steps were mended; the others set nothing (docs/accuracy.md)."""

ONE_BY_ONE = ("2020-04",)
"""Versions that look tables up one by one and multiply by parts; the later ones have a kernel of their own for each."""

COLUMNS = ("version", "gpu", "mode", "dtype", "batch_size", "cuda_graph", "measured_us", "seen")

HOST_BOUND = 2.0
"""Without graphs, latencies below this multiple of the shortest wait for a host that the page says nothing of."""

LEAST_BATCH = 64
"""Latencies are stated in steps of 10 µs: with graphs, those of fewer samples are one number, up to its rounding."""


def read_steps(datasets: str | Path) -> pd.DataFrame:
    """Training steps and inference latencies of all versions, columns `COLUMNS`.

    Raises:
        TableError: a page is missing, or holds no table of one GPU.
    """
    found: list[tuple[object, ...]] = []
    for version in VERSIONS:
        file = Path(datasets) / "nvidia" / f"dlrm-README-{version}.md"
        text = read_page(file)
        try:
            rows = _training(version, text) + _inference(version, text)
        except (ValueError, ZeroDivisionError, IndexError):
            raise TableError(
                f"{file}: a rate or latency is no positive number; take the page as it is published"
            ) from None
        if not rows:
            raise TableError(f"{file}: holds no performance of one GPU")
        found += rows
    return pd.DataFrame(found, columns=list(COLUMNS))


def read_rows(datasets: str | Path) -> list[int]:
    """Rows of each of Criteo's tables, in the order in which the step looks them up.

    Raises:
        TableError: the file is missing or no feature specification.
    """
    from yaml import YAMLError

    file = Path(datasets) / "nvidia" / "dlrm-criteo_f15.yaml"
    text = read_page(file)
    try:
        content = load_yaml(text)
        names = content["channel_spec"]["categorical"]
        return [int(content["feature_spec"][name]["cardinality"]) for name in names]
    except (YAMLError, KeyError, TypeError, ValueError):
        raise TableError(f"{file}: no feature specification with the cardinality of each categorical feature") from None


def _training(version: str, text: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for gpu, part in sections(text, "Training", GPUS):
        line = re.search(r"^\|\s*1\s*\|(?:\s*small\s*\|)?\s*(\d+)k\s*\|([^|]*)\|([^|]*)\|", part, flags=re.MULTILINE)
        if line is None:
            continue
        batch = 1024 * int(line.group(1))
        for dtype, rate in zip((_full(part), "fp16"), line.groups()[1:], strict=True):
            graphs = version == "2021-10"
            found.append((version, gpu, "train", dtype, batch, graphs, 1e6 * batch / _number(rate), gpu in SEEN))
    return found


def _inference(version: str, text: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for gpu, part in sections(text, "Inference", GPUS):
        plain = [re.findall(r"<td[^>]*>\s*([\d.,]+)\s*</td>", line) for line in part.splitlines()]
        cells = [[float(cell.replace(",", "")) for cell in row] for row in plain if len(row) == 9]
        kinds = [("fp16", True), ("fp16", False), (_full(part), True), (_full(part), False)]
        for place, (dtype, graphs) in enumerate(kinds):
            times = {int(row[0]): 1e6 * row[2 + 2 * place] for row in cells}
            least = 0.0 if graphs else HOST_BOUND * min(times.values(), default=0.0)
            found += [
                (version, gpu, "inference", dtype, batch, graphs, us, gpu in SEEN)
                for batch, us in sorted(times.items())
                if batch >= LEAST_BATCH and us >= least
            ]
    return found


def _full(part: str) -> str:
    """What the page calls the other precision of a table."""
    return "tf32" if "TF32" in part else "fp32"


def _number(text: str) -> float:
    """`2,880,000` or `494k`."""
    plain = text.replace(",", "").strip()
    return 1e3 * float(plain[:-1]) if plain.endswith("k") else float(plain)
