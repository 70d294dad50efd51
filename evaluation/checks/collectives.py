"""Errors of the curves and formulas of collectives.

    python -m evaluation.checks.collectives

Three tables, for docs/many_gpus.md:

- held-out sizes: a curve is fitted to every other size and evaluated on the sizes between, by decade of bytes;
- a GPU left out: its collectives from the curves of the nearest other GPU, and of the nearest of another architecture;
- outside checks: times of other people's machines that no curve was fitted to, with the cluster that their source names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from evaluation.published.aiconfigurator import COLLECTIVES, read_collectives
from evaluation.published.nccl_times import (
    SEND_RECV,
    read_framework_times,
    read_nccl_tests,
    read_send_recv,
    read_v100,
)
from evaluation.training.collective_fit import fitted_curves, predicted_over_measured
from pipeline.arrays import Array
from pipeline.hardware.clusters import AUTO
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.collective_bandwidth import (
    FAMILY,
    SPREAD,
    TRANSFERRED_SPREAD,
    CollectiveModel,
    MeasuredCurves,
    collective_model,
)
from pipeline.question.several_gpus import cluster_of

V100 = "V100-SXM2-32GB"
DECADES = range(3, 10)
"""Decades of bytes: 3 for 1,000 to 9,999."""
LARGE = 1 << 20
"""Bytes from which a size counts as large: buckets of DDP are larger."""


def gmae(ratio: Array) -> float:
    """Geometric mean of absolute relative errors, in %."""
    return float(100 * np.exp(np.log(np.maximum(np.abs(ratio - 1.0), 1e-6)).mean()))


def mape(ratio: Array) -> float:
    """Mean absolute relative error, in %."""
    return float(100 * np.abs(ratio - 1.0).mean())


def inside(ratio: Array, spread: float) -> float:
    """Share of the rows inside p10 to p90, in %."""
    return float(100 * np.mean(np.abs(np.log(ratio)) <= np.log(spread)))


def samples_of(gpu: str) -> pd.DataFrame:
    """All rows that the curves of a GPU are fitted to."""
    parts = [read_v100()] if gpu == V100 else [read_collectives(gpu)] if gpu in COLLECTIVES else []
    parts += [read_send_recv(gpu)] if gpu in SEND_RECV else []
    return pd.concat(parts, ignore_index=True)[["op", "ranks", "bytes", "kernel_us"]]


def model_of(
    gpu: str, cluster: str = AUTO, curves: Sequence[MeasuredCurves] | None = None
) -> CollectiveModel:
    """The model of a GPU on a cluster, from these curves; from the shipped ones if None."""
    spec = load_gpu(gpu)
    model = collective_model(spec, cluster_of(cluster, spec), curves)
    assert model is not None
    return model


def ratios(gpu: str, samples: pd.DataFrame, curves: Sequence[MeasuredCurves]) -> Array:
    """Predicted over measured times on the usual cluster, from these curves."""
    return predicted_over_measured(model_of(gpu, curves=curves), samples.reset_index(drop=True))


def between(samples: pd.DataFrame) -> pd.Series:
    """Rows at every second size of their operation and ranks."""
    by = samples.groupby(["op", "ranks"])["bytes"]
    return by.rank(method="dense").astype(int) % 2 == 0


def row(*cells: object) -> None:
    """Print a row of a table."""
    texts = (f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells)
    print(f"| {' | '.join(texts)} |")


def held_out_sizes(gpus: Sequence[str]) -> None:
    """Errors at sizes between the fitted ones, by decade of bytes: GMAE in %, mean over the curves of a GPU."""
    fitted = fitted_curves(lambda samples: samples[~between(samples)])
    row(
        "GPU",
        "curves",
        *(f"10^{decade}" for decade in DECADES),
        "worst curve and decade",
        "MAPE %",
        "inside %",
    )
    row(*["---"] * (len(DECADES) + 5))
    for gpu in gpus:
        unseen = samples_of(gpu)
        unseen = unseen[between(unseen)].reset_index(drop=True)
        ratio = ratios(gpu, unseen, fitted)
        unseen = unseen.assign(ratio=ratio, decade=np.floor(np.log10(unseen["bytes"])).astype(int))
        errors = unseen.groupby(["op", "ranks", "decade"])["ratio"].agg(
            lambda part: gmae(part.to_numpy())
        )
        by_decade = errors.groupby("decade").mean().reindex(DECADES)
        top = errors.reset_index().loc[int(errors.to_numpy().argmax())]
        worst = f"{top['ratio']:.0f}: {top['op']}, {top['ranks']} ranks, 10^{top['decade']}"
        cells = ["" if np.isnan(error) else float(error) for error in by_decade]
        curves = len(errors.groupby(["op", "ranks"]))
        row(gpu, curves, *cells, worst, mape(ratio), inside(ratio, SPREAD))


def left_out(gpus: Sequence[str]) -> None:
    """Errors of a GPU's collectives from the curves of others."""
    curves = fitted_curves()
    row(
        "GPU",
        "from the nearest other, GMAE %",
        "MAPE %",
        "inside %",
        "of another architecture, GMAE %",
        "MAPE %",
        "inside %",
    )
    row(*["---"] * 7)
    others: tuple[Callable[[str, str], bool], ...] = (
        lambda a, b: a != b,
        lambda a, b: load_gpu(a).architecture != load_gpu(b).architecture,
    )
    for gpu in gpus:
        cells: list[object] = []
        for other in others:
            ratio = ratios(
                gpu, samples_of(gpu), [entry for entry in curves if other(entry.gpu.name, gpu)]
            )
            cells += [gmae(ratio), mape(ratio), inside(ratio, TRANSFERRED_SPREAD)]
        row(gpu, *cells)


def outside_cases() -> dict[str, tuple[str, str, pd.DataFrame]]:
    """GPU, cluster and times of machines that no curve was fitted to."""
    tests, times = read_nccl_tests(), read_framework_times()
    vtrain = tests[(tests["gpu"] == "A100") & (tests["source"] == "VIA-Research/vTrain")]
    power = vtrain["ranks"].isin([2, 4, 8])
    listed = tests[tests["source"] == "stas00/ml-engineering"]
    listed = listed[~listed["library"].str.contains("off|=0")]
    # send-recv of vidur's pairs is left out: that of A100 equals that of H100, and exceeds the bridge
    times = times[times["op"] == "all_reduce"]
    pairs, dgx = (times["folder"].str.contains(name) for name in ("pairwise", "_dgx"))
    one, a100 = times["nodes"] == 1, times["folder"].str.startswith("a100")
    two, four = pairs & one & (times["ranks"] == 2), pairs & (times["ranks"] == 4)
    sxm, b200 = "A100-SXM4-80GB", listed["gpu"] == "B200"
    return {
        "A100, 2, 4, 8 ranks (vTrain)": (sxm, AUTO, vtrain[power]),
        "A100, 3, 5, 6, 7 ranks (vTrain)": (sxm, AUTO, vtrain[~power]),
        "8 A100 (ml-engineering)": (sxm, AUTO, listed[listed["gpu"] == sxm]),
        "4 to 8 H200 (ml-engineering)": ("H200", AUTO, listed[listed["gpu"] == "H200"]),
        "4 to 8 B200 (ml-engineering)": ("B200", AUTO, listed[b200 & (listed["nodes"] == 1)]),
        "32 B200 on four nodes (ml-engineering)": (
            "B200",
            "hgx-b200-efa",
            listed[listed["nodes"] == 4],
        ),
        "H100 behind switches (vidur)": ("H100", AUTO, times[dgx & ~a100 & one]),
        "8 H800 (pipeweave)": ("H800", AUTO, times[times["folder"] == "H800"]),
        "2 A100 with a bridge (vidur)": ("A100-PCIE-80GB", "pairs-a100", times[two & a100]),
        "4 A100 in pairs (vidur)": ("A100-PCIE-80GB", "pairs-a100", times[four & a100]),
        "2 H100 with a bridge (vidur)": ("H100-NVL", "pairs-h100", times[two & ~a100]),
        "4 H100 in pairs (vidur)": ("H100-NVL", "pairs-h100", times[four & ~a100]),
        "2 and 4 RTX PRO 6000 (pipeweave)": (
            "RTXPRO6000",
            AUTO,
            times[times["folder"] == "RTX PRO 6000 S"],
        ),
    }


def outside_checks() -> None:
    """Errors on machines that no curve was fitted to, with shipped curves and their intervals."""
    row("times of", "points", "from 1 MiB, GMAE %", "MAPE %", "bias %", "below, MAPE %", "inside %")
    row(*["---"] * 7)
    for name, (gpu, cluster, rows) in outside_cases().items():
        model, samples = model_of(gpu, cluster), rows.reset_index(drop=True)
        ratio = predicted_over_measured(model, samples)
        large = (samples["bytes"] >= LARGE).to_numpy()
        estimate = model.predict(samples.assign(family=FAMILY))
        held = 100 * float(samples["kernel_us"].between(estimate.p10, estimate.p90).mean())
        bias = float(100 * np.expm1(np.log(ratio[large]).mean()))
        small = mape(ratio[~large]) if (~large).any() else ""
        row(name, len(samples), gmae(ratio[large]), mape(ratio[large]), f"{bias:+.0f}", small, held)


def main() -> None:
    """Print the three tables."""
    gpus = [*COLLECTIVES, V100]
    held_out_sizes(gpus)
    print()
    left_out(gpus)
    print()
    outside_checks()


if __name__ == "__main__":
    main()
