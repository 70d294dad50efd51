"""Compares `auto` with `average`, the model of large families, on few samples: by GPU, family and number of samples.

N rows of every family are drawn at random from the public samples. The memory model of the GPU is fitted to the drawn
element-wise rows alone, as in a campaign. The fit is evaluated on up to 1500 rows with sizes that were not drawn. Finished
rows are appended to the table and are not computed again.

Usage::

    python benchmarks/kernels/small_fits.py --gpus V100 T4 --rows 50 200 1000 --seeds 0 --out table.csv
    python benchmarks/kernels/small_fits.py --show table.csv [--against before.csv]

Networks take minutes for each fit: `--variants auto` leaves them out, `--against` takes them from another table.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.datasets.neusight import read_samples
from pipeline.flow import PUBLIC_FAMILIES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.fit_gpu import calibrate_physics, fit_family
from pipeline.kernels.samples import shape_keys
from pipeline.paths import datasets_dir

MAX_TEST_ROWS = 1500
"""Maximum number of held-out rows of a family on which a fit is evaluated."""

VARIANTS = ("auto", "average", "trees", "roofline")
KEYS = ["gpu", "family", "rows", "seed", "asked"]


def draw(samples: pd.DataFrame, rows: int, seed: int) -> tuple[pd.DataFrame, npt.NDArray[np.bool_]]:
    """Drawn rows of each family and its held-out rows, and a mask of the held-out rows (their sizes were not drawn)."""
    rng = np.random.default_rng(1000 + seed)
    parts, held = [], []
    for name in sorted(samples["family"].unique()):
        own = samples[samples["family"] == name]
        keys = shape_keys(own.reset_index(drop=True))
        order = rng.permutation(len(own))
        drawn, rest = order[:rows], order[rows:]
        test_rows = rest[~np.isin(keys[rest], keys[drawn])][:MAX_TEST_ROWS]
        kept = np.sort(np.concatenate([drawn, test_rows]))  # in the order of measurement
        parts.append(own.iloc[kept])
        held.append(np.isin(kept, test_rows))
    return pd.concat(parts).reset_index(drop=True), np.concatenate(held)


def show(found: pd.DataFrame, before: pd.DataFrame) -> str:
    """Markdown table: GMAE, MAPE and coverage in %, and processor seconds, of `auto` and of the other table."""
    lines = [
        "| GPU | family | samples | seed | GMAE % before | now | MAPE % before | now | inside % before | now | s before | now |",
        "|" + "---|" * 12,
    ]
    both = before.merge(found, on=["gpu", "family", "rows", "seed"], suffixes=("_before", ""))
    order = {name: i for i, name in enumerate(PUBLIC_FAMILIES)}
    both = both.assign(place=both["family"].map(order)).sort_values(["rows", "gpu", "place", "seed"])
    for row in both.itertuples():
        lines.append(
            f"| {row.gpu} | {row.family} | {row.rows} | {row.seed} | {row.gmae_before:.2f} | {row.gmae:.2f}"
            f" | {row.mape_before:.1f} | {row.mape:.1f} | {row.coverage_before:.0f} | {row.coverage:.0f}"
            f" | {row.cpu_s_before:.1f} | {row.cpu_s:.1f} |"
        )
    ratio = np.log(both["gmae"] / both["gmae_before"])
    for label, rows in [("all", both), *both.groupby("rows")]:
        lines.append(f"\n{label}: {len(rows)} fits, GMAE now over before {np.exp(ratio[rows.index].mean()):.3f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", nargs="+", default=["V100", "T4"])
    parser.add_argument("--families", nargs="+", default=list(PUBLIC_FAMILIES), choices=PUBLIC_FAMILIES)
    parser.add_argument("--rows", nargs="+", type=int, default=[30, 50, 100, 200, 500, 1000])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--variants", nargs="+", default=["auto", "average"], choices=VARIANTS)
    parser.add_argument("--out", type=Path, help="table (CSV) that is completed")
    parser.add_argument("--show", type=Path, help="print an existing table as Markdown")
    parser.add_argument("--against", type=Path, help="with --show: another table; its `auto` is shown as before")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    if chosen.show:
        found = pd.read_csv(chosen.show)
        other = pd.read_csv(chosen.against) if chosen.against else found[found["asked"] == "average"]
        print(show(found[found["asked"] == "auto"], other.drop(columns="asked")))
        return
    root = datasets_dir()
    if root is None or chosen.out is None:
        raise SystemExit("give --out, and $STEPTIME_DATASETS where the public data are not found")
    done = set(pd.read_csv(chosen.out)[KEYS].itertuples(index=False, name=None)) if chosen.out.is_file() else set()
    for gpu in map(load_gpu, chosen.gpus):
        samples = read_samples(root, gpu.name)
        for rows in chosen.rows:
            for seed in chosen.seeds:
                table, held = draw(samples, rows, seed)
                memory, offset_us, _ = calibrate_physics(table[~held], gpu)
                for name in chosen.families:
                    for asked in chosen.variants:
                        key = (gpu.name, name, rows, seed, asked)
                        if key in done:
                            continue
                        began = time.process_time()
                        fitted = fit_family(
                            table, gpu, name, asked, seed, memory=memory, offset_us=offset_us, held_out=held
                        )
                        figures = {key: round(100 * fitted.metrics[key], 4) for key in ("gmae", "mape", "coverage")}
                        row = dict(zip(KEYS, key, strict=True)) | {"variant": fitted.model.variant} | figures
                        row["cpu_s"] = round(time.process_time() - began, 2)
                        print(row, flush=True)
                        pd.DataFrame([row]).to_csv(chosen.out, mode="a", header=not chosen.out.exists(), index=False)


if __name__ == "__main__":
    main()
