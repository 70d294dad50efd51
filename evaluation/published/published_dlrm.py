"""Reader of DLRM steps that NVIDIA measured and published; predictions of whole DLRM steps are compared with them.

The source is three versions of the page of NVIDIA's DLRM example (`nvidia-dlrm` in `sources.yaml`), on one GPU. Criteo's
tables hold only the values that occur at least 15 times. All versions give training by precision. The last version also
gives latencies of inference by batch size, with CUDA graphs and without.

The user places the published files under the datasets folder: `nvidia/dlrm-README-<version>.md`, and the tables' rows
in `nvidia/dlrm-criteo_f15.yaml`. They are never copied into this project, and no constant was chosen with any of them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from evaluation.published.published_pages import positive, reading, sections
from pipeline.errors import TableError
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
"""Our name of each machine's GPU. The GPUs of a DGX-2 are left out: this project has no specification of them."""

TUNING_GPUS = ("V100-SXM2-32GB",)
"""GPUs whose rows were known when captured steps were corrected. All others were not used for tuning
(docs/accuracy.md)."""

SEPARATE_LOOKUP_VERSIONS = ("2020-04",)
"""Versions of the example that look up each table separately and build the interaction from several operators. Later
versions have a dedicated kernel for each of the two."""

COLUMNS = ("version", "gpu", "mode", "dtype", "batch_size", "cuda_graph", "measured_us", "seen")

MIN_LATENCY_RATIO = 2.0
"""Least inference latency that is read without CUDA graphs, as a multiple of the shortest one. Shorter latencies are
bound by the host, which the page does not describe."""

MIN_BATCH = 64
"""Least batch size, in samples, of an inference latency that is read. The page rounds latencies to 10 µs; with CUDA
graphs, all smaller batches have the same latency up to this rounding."""


def read_steps(datasets: str | Path) -> pd.DataFrame:
    """Training steps and inference latencies of all versions, columns `COLUMNS`.

    Raises:
        TableError: a page is missing, or holds no table of one GPU.
    """
    found: list[tuple[object, ...]] = []
    for version in VERSIONS:
        file = Path(datasets) / "nvidia" / f"dlrm-README-{version}.md"
        with reading(file):
            text = file.read_text(encoding="utf-8")
            rows = _training(version, text) + _inference(version, text)
        if not rows:
            raise TableError(f"{file}: has no results of a single GPU")
        found += rows
    return pd.DataFrame(found, columns=list(COLUMNS))


def read_rows(datasets: str | Path) -> list[int]:
    """Number of rows of each of Criteo's tables, in the order in which the step looks them up.

    Raises:
        TableError: the file is missing or no feature specification.
    """
    file = Path(datasets) / "nvidia" / "dlrm-criteo_f15.yaml"
    with reading(file):
        content = load_yaml(file.read_text(encoding="utf-8"))
        names = content["channel_spec"]["categorical"]
        return [int(positive(content["feature_spec"][name]["cardinality"])) for name in names]


def _training(version: str, text: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for gpu, part in sections(text, "Training", GPUS):
        line = re.search(
            r"^\|\s*1\s*\|(?:\s*small\s*\|)?\s*(\d+)k\s*\|([^|]*)\|([^|]*)\|",
            part,
            flags=re.MULTILINE,
        )
        if line is None:
            continue
        batch = 1024 * int(line.group(1))
        for dtype, rate in zip((_full_precision(part), "fp16"), line.groups()[1:], strict=True):
            graphs = version == "2021-10"
            found.append(
                (
                    version,
                    gpu,
                    "train",
                    dtype,
                    batch,
                    graphs,
                    1e6 * batch / positive(rate),
                    gpu in TUNING_GPUS,
                )
            )
    return found


def _inference(version: str, text: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for gpu, part in sections(text, "Inference", GPUS):
        plain = [re.findall(r"<td[^>]*>\s*([\d.,]+)\s*</td>", line) for line in part.splitlines()]
        cells = [[positive(cell) for cell in row] for row in plain if len(row) == 9]
        kinds = [
            ("fp16", True),
            ("fp16", False),
            (_full_precision(part), True),
            (_full_precision(part), False),
        ]
        for place, (dtype, graphs) in enumerate(kinds):
            times = {int(row[0]): 1e6 * row[2 + 2 * place] for row in cells}
            least = 0.0 if graphs else MIN_LATENCY_RATIO * min(times.values(), default=0.0)
            found += [
                (version, gpu, "inference", dtype, batch, graphs, us, gpu in TUNING_GPUS)
                for batch, us in sorted(times.items())
                if batch >= MIN_BATCH and us >= least
            ]
    return found


def _full_precision(part: str) -> str:
    """Full precision of a page's section: TF32 if the section names it, else fp32."""
    return "tf32" if "TF32" in part else "fp32"
