"""Compares every kernel of public H100 traces in half precision with its prediction, by category, one trace left out in turn.

`python -m evaluation.checks.half_kernels DATASETS` prints a table. The traces (`traces/h100_inference`) are one pass each of
BERT-small, ViT and TimeSformer in bf16. A row is a distinct call of a trace; its measured time is the median.

Each constant of `FITTED` is fitted anew to the rows of its category in the other traces, and to those of a fourth public
trace, of which only five times are at hand (`FOURTH`; it is never judged). Where these have no such rows, the constant
cannot be checked in this way: its rows are then those of a fit to the same trace (`own fit` in the table). Constants that
come from other GPUs are not fitted: reductions and pageable copies (V100, A100). The start of layer norm, which longer rows
do not show, is where a line through the times of the other traces meets no elements.
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
from pipeline.kernels.physics import Physics
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
    "layer norm": [(shipped_models, "HALF_NORM_SHARE", ())],
    "strided": [(physics, "ELEMENTS_PER_CLOCK", ("elementwise", "copy")), (physics, "STRIDED_START_US", ())],
    "transposed": [(physics, "ELEMENTS_PER_CLOCK", ("scattered",))],
    "concatenation": [(physics, "ELEMENTS_PER_CLOCK", ("concat", "strided concat"))],
    "gelu": [(physics, "ELEMENTS_PER_CLOCK", ("gelu",))],
    "patch convolution": [(tensor_cores, "PATCH_STEP_CYCLES", ())],
}
"""Constants by the category whose rows they were fitted to: module, name, and keys of a mapping."""

FOURTH = (
    ("strided", "elementwise", "mul", 27.9, 1), ("strided", "elementwise", "add", 34.8, 2),
    ("strided", "copy", "transpose", 29.3, 1),
    ("concatenation", "concat", "cat", 42.0, 1), ("attention", "attention", "flash", 113.4, 0),
)  # fmt: skip
"""Qwen1.5-0.5B on 16 x 559 tokens in bf16, an H100 trace of the same source: category, family, op, measured us, and inputs of
16 x 16 x 559 x 64 elements."""

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


def fourth_trace() -> pd.DataFrame:
    """The rows of `FOURTH` as from `read_rows`."""
    elements, rows = 16 * 16 * 559 * 64, []
    for category, family, op, measured_us, inputs in FOURTH:
        sizes = {"B": 1.0, "H": float(elements), "bytes": 2.0 * elements, "inputs": 2.0 * inputs * elements,
                 "outputs": 2.0 * elements, "attributes": '{"strided":true}'}  # fmt: skip
        if family == "attention":
            sizes = {"B": 256.0, "M": 559.0, "N": 559.0, "K": 64.0, "attributes": '{"causal":true}'}
        rows.append({"family": family, "op": op, "phase": "forward", "dtype": "bf16", "category": category, "trace": "qwen",
                     "measured_us": measured_us, **sizes})  # fmt: skip
    return pd.DataFrame(rows)


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


def start_share(rows: pd.DataFrame) -> float:
    """Time of layer norm without elements, from a line through rows that were measured, over what is predicted of it."""
    elements, measured = (rows["B"] * rows["H"]).to_numpy(float), rows["measured_us"].to_numpy(float)
    start_us = np.polyfit(elements, measured, 1, w=1.0 / measured)[1]
    return float(start_us / (shipped_models.VECTORISED_NORM_SHARE * Physics.of(load_gpu(GPU)).start_us("layer_norm")))


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Predictions of each trace with the constants of every category fitted to the other traces; `own_fit` where none."""
    parts, fourth = [], fourth_trace()
    for (category, trace), part in rows.groupby(["category", "trace"], sort=False):
        others = rows[(rows["category"] == category) & (rows["trace"] != trace)]
        others = pd.concat([others, fourth[fourth["category"] == category]], ignore_index=True)
        constants = FITTED.get(str(category), ())
        with ExitStack() as fitted:
            for constant in constants if len(others) else ():
                losses = []
                for factor in FACTORS:
                    with scaled(*constant, float(factor)):
                        losses.append(float((log_error(predicted(others)) ** 2).sum()))
                best = FACTORS[np.array(losses) <= min(losses) * (1 + 1e-9)]
                fitted.enter_context(scaled(*constant, float(np.median(best))))
            if category == "layer norm":
                fitted.enter_context(scaled(shipped_models, "VECTORISED_NORM_SHARE", (), start_share(others)))
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
