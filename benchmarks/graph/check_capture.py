"""Compares captured graphs with public execution traces, PyTorch's FLOP counter, and published parameter counts.

python benchmarks/graph/check_capture.py [DATASETS_DIR]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evaluation.checks.sequence_match import sequence_match, top_level_names
from evaluation.workloads.rebuilt_models import gpt2_large, linear_stack
from pipeline.graph.capture import capture, observe
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.graph.table import Graph, write_nodes
from pipeline.paths import config_dir, datasets_dir
from pipeline.question.options import workload_values
from pipeline.workloads import make_step

PUBLISHED_MILLIONS = {
    "resnet50": (25.557, "torchvision"),
    "inception_v3": (27.161, "torchvision, with the auxiliary head"),
    "bert_large": (336.2, "Hugging Face, pre-training heads"), "gpt2_large": (774.0, "OpenAI"),
    "opt_13": (1315.8, "Meta, 1.3 B"),
}  # fmt: skip
"""Published parameter counts in millions, each with its source."""

FLOP_MODELS = {"resnet50": 16, "gpt2_large": 1, "dlrm_default": 2048, "dlrm_ddp": 2048}


def model_config(name: str, **changes: Any) -> dict[str, Any]:
    """Content of a model's file, with changes."""
    return {**workload_values(name), **changes}


def check_sequences(datasets: Path) -> None:
    """Compare top-level operator sequences of rebuilt models with execution traces."""
    print("trace | top-level operators, captured | in the trace | match %")
    for folder, make, first in (
        ("rtx2080ti_linear", linear_stack, False),
        ("gpt2_et", gpt2_large, True),
    ):
        step = make()
        nodes, *_ = observe(step, False, step.config, first)
        ours = top_level_names(Graph(write_nodes([node for node in nodes if node.phase != "data"])))
        theirs = top_level_names(
            import_execution_trace(datasets / "traces" / folder / "execution_trace.json.gz")
        )
        print(f"{folder} | {len(ours)} | {len(theirs)} | {100 * sequence_match(ours, theirs):.1f}")


def counted_flops(config: dict[str, Any], batch: int) -> float:
    """FLOPs of a step by `torch.utils.flop_counter`, on the meta device."""
    from torch.utils.flop_counter import FlopCounterMode

    step = make_step(config, batch, "meta")
    with FlopCounterMode(display=False) as counter:
        step.run(0)
    return float(counter.get_total_flops())


def check_flops() -> None:
    """Compare FLOPs of matrix products and convolutions with PyTorch's counter."""
    print("\nmodel | batch | GFLOP, ours | torch.utils.flop_counter | difference %")
    for name, batch in FLOP_MODELS.items():
        config = model_config(name)
        calls = map_calls(capture(config, batch))
        heavy = calls["family"].isin(["gemm", "bmm"]) | calls["family"].str.startswith("conv2d")
        ours, theirs = calls.loc[heavy, "flops"].sum(), counted_flops(config, batch)
        print(
            f"{name} | {batch} | {ours / 1e9:.2f} | {theirs / 1e9:.2f} |"
            f" {100 * (ours / theirs - 1):+.2f}"
        )


def gpt2_parameters(config: dict[str, Any]) -> int:
    """Parameters of GPT-2: 12·d² + 13·d per layer, both embeddings, and the last norm (Radford et al. 2019)."""
    d, layers = config["width"], config["layers"]
    return layers * (12 * d * d + 13 * d) + (config["vocabulary"] + config["positions"]) * d + 2 * d


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
    config = model_config(name)
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
    if config["architecture"] == "gpt2" and published is None:
        published = (round(gpt2_parameters(config) / 1e6, 3), "GPT-2's formula")
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
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--model", help="print size, time and coverage of this model only")
    args = parser.parse_args()
    if args.model is not None:
        check_model(args.model)
        return 0
    if args.datasets is not None:
        check_sequences(args.datasets)
    check_flops()
    check_models()
    return 0


if __name__ == "__main__":
    sys.exit(main())
