"""Compares every kernel of public H100 traces in half precision with its prediction, by category, one trace left out in turn.

`python -m evaluation.checks.half_kernels DATASETS` prints a table. The traces (`traces/h100_inference`) are one pass each of
BERT-small, ViT and TimeSformer in bf16. A row is a distinct call of a trace; its measured time is the median.

Each constant of `FITTED` is fitted anew to the rows of its category in the other traces. Where these have no such rows, the
constant cannot be checked in this way: its rows are then those of a fit to the same trace (`own fit` in the table).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluation.checks.kineto_operators import read_operators
from evaluation.checks.traced_kernel_times import kernels_by_operator, mapped_calls
from pipeline.answers import gap_models
from pipeline.answers.kernel_predictor import load_predictor, model_columns
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import fused_attention, physics, tensor_cores
from pipeline.kernels.work import Dims
from pipeline.paths import datasets_dir
from pipeline.transfer import shipped_models

GPU, FOLDER = "H100", Path("traces") / "h100_inference"

FITTED: dict[str, Sequence[tuple[Any, str, Sequence[str]]]] = {
    "products": [(gap_models, "LAUNCH_CYCLES", ())],
    "products, unaligned rows": [(tensor_cores, "ACCESSES_PER_CLOCK", ())],
    "products, tiny": [(tensor_cores, "SMALL_BLOCK_CYCLES", ())],
    "attention": [(fused_attention, "FLASH2_START_US", ())],
    "softmax": [(physics, "ELEMENTS_PER_CLOCK", ("narrow softmax", "wide softmax"))],
    "layer norm": [(shipped_models, "HALF_NORM_SHARE", ()), (shipped_models, "VECTORISED_NORM_SHARE", ())],
    "strided": [(physics, "ELEMENTS_PER_CLOCK", ("elementwise", "copy")), (physics, "STRIDED_START_US", ())],
    "transposed": [(physics, "ELEMENTS_PER_CLOCK", ("scattered",))],
    "concatenation": [(physics, "ELEMENTS_PER_CLOCK", ("concat", "strided concat"))],
    "gelu": [(physics, "ELEMENTS_PER_CLOCK", ("gelu",))],
    "patch convolution": [(tensor_cores, "PATCH_STEP_CYCLES", ())],
}
"""Constants by the category whose rows they were fitted to: module, name, and keys of a mapping."""

FACTORS = np.geomspace(0.4, 2.5, 41)
"""Multiples of a constant that a fit tries."""


def read_rows(folder: Path) -> pd.DataFrame:
    """Distinct calls of all traces with `measured_us`, `count`, `category` and `trace`."""
    gpu, parts = load_gpu(GPU), []
    for path in sorted(folder.glob("*.json.gz")):
        nodes = read_operators(path).nodes
        calls = mapped_calls(nodes, gpu, kernels_by_operator(path, nodes))
        columns = model_columns(calls).assign(measured_us=calls["measured_us"].to_numpy())
        keys = [name for name in columns.columns if name != "measured_us" and columns[name].notna().any()]
        rows = columns.groupby(keys, dropna=False, sort=False)["measured_us"].agg(["median", "size"]).reset_index()
        parts.append(
            rows.rename(columns={"median": "measured_us", "size": "count"}).assign(trace=path.name.split(".")[0])
        )
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(category=categories(rows))


def categories(calls: pd.DataFrame) -> list[str]:
    """The category of each call."""
    d = Dims(calls)
    family, strided, across = d.text("family"), d.flag("strided"), d.flag("scattered")
    product = np.isin(family.astype(str), ["gemm", "bmm"])
    uneven, tiny = tensor_cores.misaligned(calls), np.isfinite(tensor_cores.small_products_us(d, load_gpu(GPU)))
    names = {"layer_norm": "layer norm", "conv2d_forward": "patch convolution", "concat": "concatenation",
             "elementwise": "element-wise", "copy": "strided", "reduction": "reductions"}  # fmt: skip
    plain = [names.get(str(one), "host copies" if str(one).startswith("memcpy") else str(one)) for one in family]
    chosen = np.select(
        [product & uneven, product & tiny, product, across, strided & (family == "elementwise"), d.op_in(("gelu",))],
        ["products, unaligned rows", "products, tiny", "products", "transposed", "strided", "gelu"],
        np.array(plain, dtype=object),
    )
    return [str(one) for one in chosen]


@contextmanager
def scaled(module: Any, name: str, keys: Sequence[str], factor: float) -> Iterator[None]:
    """While the body runs, a constant (or entries of a mapping) is multiplied by `factor`."""
    before = getattr(module, name)
    after = {**before, **{key: factor * before[key] for key in keys}} if keys else factor * before
    setattr(module, name, after)
    try:
        yield
    finally:
        setattr(module, name, before)


def predicted(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `kernel_us`, `p10_us`, `p90_us`."""
    times = load_predictor(load_gpu(GPU)).predict_rows(rows)
    return rows.assign(**{name: times[name] for name in ("kernel_us", "p10_us", "p90_us")})


def log_error(rows: pd.DataFrame) -> pd.Series:
    """Logarithm of predicted over measured time."""
    return pd.Series(np.log(rows["kernel_us"] / rows["measured_us"]))


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Predictions of each trace with the constants of every category fitted to the other traces; `own_fit` where none."""
    parts = []
    for (category, trace), part in rows.groupby(["category", "trace"], sort=False):
        others = rows[(rows["category"] == category) & (rows["trace"] != trace)]
        constants = FITTED.get(str(category), ())
        with ExitStack() as fitted:
            for constant in constants if len(others) else ():
                losses = []
                for factor in FACTORS:
                    with scaled(*constant, float(factor)):
                        losses.append(float((log_error(predicted(others)) ** 2).sum()))
                best = FACTORS[np.array(losses) <= min(losses) * (1 + 1e-9)]
                fitted.enter_context(scaled(*constant, float(np.median(best))))
            parts.append(predicted(part).assign(own_fit=bool(constants) and not len(others)))
    return pd.concat(parts)


def table(rows: pd.DataFrame) -> list[str]:
    """Markdown table by category: rows, GMAE, geometric bias and the share inside p10 to p90, in %."""
    lines = ["| category | rows | own fit | GMAE % | bias % | inside p10-p90 % |", "|---|---|---|---|---|---|"]
    for category, part in [*rows.groupby("category"), ("all", rows)]:
        error = log_error(part)
        gmae = 100 * np.exp(np.log(np.maximum(np.abs(np.expm1(error)), 1e-6)).mean())
        inside = (part["p10_us"] <= part["measured_us"]) & (part["measured_us"] <= part["p90_us"])
        lines.append(f"| {category} | {len(part)} | {int(part['own_fit'].sum())} | {gmae:.1f} | "
                     f"{100 * np.expm1(error.mean()):+.1f} | {100 * inside.mean():.0f} |")  # fmt: skip
    return lines


def main() -> int:
    """Print the table with one trace left out in turn, and that of the constants as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    args = parser.parse_args()
    if args.datasets is None:
        parser.error("no public data: set STEPTIME_DATASETS, or name the folder")
    rows = read_rows(args.datasets / FOLDER)
    print(
        "\n".join(
            [*table(left_out(rows)), "", "Constants as they are:", "", *table(predicted(rows).assign(own_fit=False))]
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
