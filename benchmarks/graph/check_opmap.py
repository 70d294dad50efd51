"""Compares the operator map with public traces: does every operator launch what the map says?

    python benchmarks/graph/check_opmap.py [DATASETS_DIR] [--write docs/operators.md]

For each trace, the map predicts launches from the trace's operators and shapes. They are compared with the launches in
the trace, as precision and recall by coarse kind and operator. Operators of TorchRec, FBGEMM and NCCL are counted
separately.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evaluation.checks.operator_map_check import TRACES, Score, check
from evaluation.pages.markdown import markdown, rewrite
from pipeline.paths import datasets_dir


def report(datasets: Path, operators: int) -> tuple[str, list[str]]:
    """The table of all traces, and a list of the operators that differ most."""
    total = Score()
    lines = []
    worst: list[str] = []
    for name, gpu in TRACES.items():
        score, by_op = check(datasets / "traces" / name, gpu)
        lines.append([name, *score.row])
        for key in ("predicted", "seen", "matched", "third_party"):
            setattr(total, key, getattr(total, key) + getattr(score, key))
        ranked = sorted(
            by_op.items(),
            key=lambda item: item[1]["matched"] - max(item[1]["predicted"], item[1]["seen"]),
        )
        worst += [
            f"{name}: {op}: predicted {c['predicted']}, seen {c['seen']}, matched {c['matched']}"
            for op, c in ranked[:operators]
            if c["matched"] < max(c["predicted"], c["seen"])
        ]
    head = (
        "trace",
        "seen",
        "predicted",
        "error %",
        "precision %",
        "recall %",
        "third-party launches",
    )
    return markdown(head, [*lines, ["sum of all traces", *total.row]]), worst


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument(
        "--operators",
        type=int,
        default=12,
        help="number of operators to list per trace, largest difference first",
    )
    parser.add_argument(
        "--write", type=Path, help="document in which the marked section is replaced"
    )
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    text, worst = report(args.datasets, args.operators)
    print(
        text
        + "\n\nOperators that differ, largest difference first:\n"
        + "\n".join(f"- {line}" for line in worst)
    )
    if args.write:
        rewrite(args.write, {"check_opmap": text})
    return 0


if __name__ == "__main__":
    sys.exit(main())
