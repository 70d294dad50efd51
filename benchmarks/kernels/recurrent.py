"""Compares predicted recurrent layers (long sequences, few units) with the tables of PyTorch's pull request 62143.

    python benchmarks/kernels/recurrent.py FOLDER [--gpu A100-PCIE-40GB V100]

FOLDER holds `forward.txt` and `backward.txt`: the files `cudnn-rnn-bench-62143/{forward,backward}/readme.txt` of
github.com/xwang233/code-snippet (commit 2c053c85). Each line has two times: *before*, with kernels launched for each step,
and *after*, with the small persistent kernel where PyTorch uses it. The page does not name the GPU, so absolute times
say little. The fp32 LSTM rows set the constants of `pipeline/kernels/rnn_kernels.py`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.answers.kernel_models import kernel_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import rnn_kernels as recurrent

HEAD = re.compile(r"op='(\w+)'.*dtype='(\w+)'")
ROW = re.compile(r"x=\((\d+), (\d+), (\d+)\),\s+op=\(\d+, (\d+), (\d+)\)\s*\|\s*([\d.]+)\s*\|\s*([\d.]+)")
UNIT = re.compile(r"Times are in \w+ \((\w+)\)")


def read(file: Path, phase: str) -> pd.DataFrame:
    """Calls of family `rnn`, with the times `before` and `after` in ms."""
    found: list[dict[str, object]] = []
    kind, dtype, first = "", "", 0
    for line in file.read_text().splitlines():
        if head := HEAD.search(line):
            (kind, dtype), first = head.groups(), len(found)
        elif row := ROW.search(line):
            t, b, i, h, layers = (int(number) for number in row.groups()[:5])
            gates = 4 if kind == "LSTM" else 1
            found.append({"family": "rnn", "op": kind.lower(), "phase": phase, "T": t, "B": b, "I": i, "H": h,
                          "layers": layers, "dtype": "fp16" if dtype == "half" else "fp32",
                          "attributes": f'{{"gates": {gates}}}', "before": float(row[6]), "after": float(row[7])})  # fmt: skip
        elif (unit := UNIT.search(line)) and unit[1] == "us":
            for entry in found[first:]:
                entry["before"], entry["after"] = entry["before"] / 1e3, entry["after"] / 1e3  # type: ignore[operator]
    return pd.DataFrame(found)


def ratios(table: pd.DataFrame, gpu: str) -> pd.DataFrame:
    """Predicted over measured time, before and after."""
    predictor = kernel_predictor(load_gpu(gpu), "auto", None)
    after = predictor.predict(table)["kernel_us"] / 1e3
    chosen, recurrent._uses_small_persistent = (
        recurrent._uses_small_persistent,
        lambda sizes, *_: np.zeros(len(sizes.batch), dtype=bool),
    )
    before = predictor.predict(table)["kernel_us"] / 1e3
    recurrent._uses_small_persistent = chosen
    return table.assign(before=before / table["before"], after=after / table["after"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", nargs="+", default=["A100-PCIE-40GB", "V100"])
    args = parser.parse_args()
    table = pd.concat(
        [read(args.folder / f"{phase}.txt", phase) for phase in ("forward", "backward")], ignore_index=True
    )
    print(
        "| assumed GPU | layer | dtype | phase | rows | before: median | typical factor | after: median | typical factor |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for gpu in args.gpu:
        for key, part in ratios(table, gpu).groupby(["op", "dtype", "phase"], sort=False):
            shown = [
                f"{part[name].median():.2f} | {np.exp(np.abs(np.log(part[name])).mean()):.2f}"
                for name in ("before", "after")
            ]
            print(f"| {gpu} | {' | '.join(map(str, key))} | {len(part)} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
