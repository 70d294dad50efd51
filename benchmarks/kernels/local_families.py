"""Held-out errors of families without public samples, measured and fitted on this machine's device.

    python benchmarks/kernels/local_families.py [--model dlrm_small] [--seconds 60]

The script measures the lookup, concat, index and copy calls of a model, in sizes around its own. It fits to four fifths of
the shapes and compares three models: physics from the spec file alone, physics scaled to the samples, and `auto`.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import pandas as pd
import yaml

from pipeline.collect.microbenchmarks import measure_calls
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.fit_gpu import fit_family
from pipeline.kernels.physics import Physics
from pipeline.paths import config_dir

FAMILIES = (
    "embedding_forward", "embedding_backward", "concat", "tril_index_forward", "tril_index_backward", "index", "copy",
    "memcpy_h2d", "memcpy_d2h", "memcpy_d2d",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dlrm_small")
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    gpu = load_gpu("local")
    config = yaml.safe_load((config_dir() / "model" / f"{chosen.model}.yaml").read_text())
    graph = capture(config, int(config["batch_size"]))
    calls = map_calls(graph, gpu, device="cpu" if gpu.limits is None else "cuda")
    wanted = calls[calls["family"].isin(FAMILIES)]
    samples = measure_calls(wanted, seconds=chosen.seconds)
    print("| family | samples | median µs | spec alone, error % | physics scaled, GMAE % | auto, GMAE % |")
    print("|---|---|---|---|---|---|")
    for name, rows in samples.groupby("family", observed=True):
        measured = rows["kernel_us"].to_numpy(dtype=float)
        ratio = Physics.of(gpu).kernel_us(str(name), rows.reset_index(drop=True)) / measured
        alone = (
            100 * (np.exp(np.abs(np.log(ratio[np.isfinite(ratio)]))).mean() - 1) if np.isfinite(ratio).any() else np.nan
        )
        cells = []
        for variant in ("roofline", "auto"):
            fitted = fit_family(pd.DataFrame(rows), gpu, str(name), variant, test_share=0.2) if len(rows) > 5 else None
            cells.append(f"{100 * fitted.metrics['gmae']:.1f}" if fitted else "")
        print(
            f"| {name} | {len(rows)} | {np.median(measured):.1f} | {alone:.0f} | {cells[0]} | {cells[1]} |", flush=True
        )


if __name__ == "__main__":
    main()
