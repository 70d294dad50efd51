"""Compares predicted training steps of networks with depthwise and grouped convolutions with timm's published steps.

    python benchmarks/steps/grouped_networks.py [DATASETS_DIR] [--write docs/accuracy.md]

It needs timm, and `timm/benchmark-train-amp-{nchw,nhwc}-pt112-cu113-rtx3090.csv` of its repository (folder `results`) in
the datasets folder. The published steps ran PyTorch 1.12 with cuDNN 8.3.

The NCHW rows are a report: no constant was set on them. One constant of cuDNN's depthwise kernels was set on steps in NHWC of
`SET_ON`, after a look at the other depthwise networks in NHWC. All of these rows are therefore marked as seen.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from evaluation.pages.markdown import markdown, rewrite
from evaluation.pages.published_step_tables import with_errors
from evaluation.published.published_steps import read_networks
from pipeline import predict
from pipeline.paths import datasets_dir
from pipeline.prediction import Prediction

DEPTHWISE = (
    "mobilenetv3_large_100", "mobilenetv3_small_100", "mobilenetv2_100", "efficientnet_b0", "efficientnet_lite0",
    "mnasnet_100", "fbnetc_100", "mixnet_s", "ghostnet_100", "xception41", "convnext_tiny", "convnext_base",
)  # fmt: skip
GROUPED = (
    "resnext50_32x4d",
    "resnext101_32x8d",
    "regnetx_002",
    "regnetx_008",
    "regnety_004",
    "regnety_016",
    "regnety_032",
)

SET_ON = ("mobilenetv3_large_100", "efficientnet_b0")
"""Networks whose steps in NHWC set `LIBRARY_THREAD_INSTRUCTIONS`."""


def without_copies(found: Prediction) -> float:
    """Predicted step time in microseconds with inputs already on the device, as in the published runs."""
    return found.predicted_us - (found.families_us.get("memcpy_h2d", 0.0) if found.bound == "device" else 0.0)


def compare(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with predictions and errors, without the time of input copies."""
    found = []
    for row in rows.to_dict("records"):
        options = {"model.target": "evaluation.workloads.timm_library:make_step", "+model.options.network": row["model"],
                   "model.optimizer": "sgd_momentum", "model.dtype": row["dtype"],
                   "model.memory_format": row["memory_format"]}  # fmt: skip
        found.append(predict(gpu=row["gpu"], model="custom", batch_size=row["batch_size"], **options))
    return with_errors(rows, found, [without_copies(one) for one in found])


def table(rows: pd.DataFrame) -> str:
    """One line per network and layout, and the mean absolute errors by kind and layout."""
    lines = []
    for row in rows.itertuples():
        layout = "NHWC" if row.memory_format == "channels_last" else "NCHW"
        seen = " (seen)" if row.model in DEPTHWISE and layout == "NHWC" else ""
        lines.append([f"{row.model}{seen}", layout, str(row.batch_size), f"{row.measured_us / 1e3:.0f}",
                      f"{row.predicted_us / 1e3:.0f}", f"{row.p10_us / 1e3:.0f} to {row.p90_us / 1e3:.0f}",
                      f"{100 * row.error:+.0f}"])  # fmt: skip
    means = []
    for name, chosen in (("depthwise", DEPTHWISE), ("grouped", GROUPED)):
        for layout, memory_format in (("NCHW", "contiguous"), ("NHWC", "channels_last")):
            part = rows[rows["model"].isin(chosen) & (rows["memory_format"] == memory_format)]
            means.append([name, layout, str(len(part)), f"{100 * part['error'].mean():+.1f}",
                          f"{100 * part['error'].abs().mean():.1f}", f"{part['inside'].sum()} of {len(part)}"])  # fmt: skip
    head = ["network", "layout", "batch", "measured ms", "predicted ms", "p10 to p90", "error %"]
    short = ["convolutions", "layout", "steps", "mean error %", "mean absolute error %", "inside p10-p90"]
    return "\n\n".join([markdown(short, means), markdown(head, lines)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--write", type=Path, help="document in which the marked section is replaced")
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    text = table(compare(read_networks(args.datasets, DEPTHWISE + GROUPED)))
    print(text)
    if args.write:
        rewrite(args.write, {"grouped networks": text})
    return 0


if __name__ == "__main__":
    sys.exit(main())
