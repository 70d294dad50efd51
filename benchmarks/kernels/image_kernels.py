"""Compares predicted kernels of convolutional networks with public traces: batch norm, pooling, element-wise, convolution.

    python benchmarks/kernels/image_kernels.py [DATASETS_DIR] [--convolutions]

`evaluation/checks/image_kernel_times.py` makes the comparison.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evaluation.checks.image_kernel_times import TRACES, compare, convolutions
from pipeline.paths import datasets_dir


def main() -> None:
    """Print a table per trace."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument(
        "--convolutions", action="store_true", help="also print convolutions by window and stride"
    )
    options = parser.parse_args()
    for trace, gpu in TRACES.items():
        print(
            f"\n{trace} as"
            f" {gpu}\n{compare(trace, gpu, options.datasets).round(1).to_string(index=False)}"
        )
        if options.convolutions:
            print(convolutions(trace, gpu, options.datasets).round(1).to_string(index=False))


if __name__ == "__main__":
    main()
