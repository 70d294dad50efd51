"""Compares captured graphs with published parameter counts, and says what capturing them takes.

python benchmarks/graph/check_capture.py [--model NAME]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.paths import config_dir
from pipeline.question.options import workload_values
from pipeline.workloads import make_step

PUBLISHED_MILLIONS = {
    "resnet50": (25.557, "torchvision"),
    "inception_v3": (27.161, "torchvision, with the auxiliary head"),
    "bert_large": (336.2, "Hugging Face, pre-training heads"), "gpt2_large": (774.0, "OpenAI"),
    "opt_13": (1315.8, "Meta, 1.3 B"),
}  # fmt: skip
"""Published parameter counts in millions, each with its source."""


def check_models() -> None:
    """Print size, time and coverage of every model's capture, each in its own process."""
    print(
        "\nmodel | parameters, M | published, M | operators | calls | unknown | CPU s, imports |"
        " CPU s, capture | peak MB"
    )
    for path in sorted((config_dir() / "model").glob("*.yaml")):
        if path.stem != "custom":
            subprocess.run([sys.executable, __file__, "--model", path.stem], check=True)


def peak_megabytes() -> float:
    """Peak memory of this process in MB (getrusage would include the parent process)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1e3  # type: ignore[index]


def check_model(name: str) -> None:
    """Print one line about a model.

    Times are processor times since the start of this process, so other work on the machine does not count.
    """
    config = workload_values(name)
    make_step(
        {**config, "layers": 1} if "positions" in config else config, 1, "meta"
    )  # runs all imports
    imported = time.process_time()
    graph = capture(config, int(config["batch_size"]))
    captured = time.process_time()
    peak = peak_megabytes()
    calls = map_calls(graph)
    step = make_step(config, 1, "meta")
    millions = (
        sum(p.numel() for p in step.parameters()) + sum(t.numel() for t in step.in_kernel)
    ) / 1e6
    published = PUBLISHED_MILLIONS.get(name)
    known = f"{published[0]} ({published[1]})" if published else "-"
    print(
        f"{name} | {millions:.3f} | {known} | {len(graph.table)} | {len(calls)} |"
        f" {unknown_operators(graph, calls)} | {imported:.1f} | {captured - imported:.1f} |"
        f" {peak:.0f}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="print size, time and coverage of this model only")
    args = parser.parse_args()
    if args.model is not None:
        check_model(args.model)
        return 0
    check_models()
    return 0


if __name__ == "__main__":
    sys.exit(main())
