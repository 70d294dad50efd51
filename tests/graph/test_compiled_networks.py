"""Launches of whole compiled networks, which docs/compiled.md states, and what asking the compiler takes."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from pipeline.graph.compiled_functions import TRITON
from pipeline.graph.compiled_step import launches_of
from pipeline.question.question import ask

LIBRARY = ["model=transformers", "model.dtype=bf16"]
LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}

NETWORKS = {
    "ResNet-50": (["model=resnet50", "batch_size=64"], 467, 109),
    "GPT-2": ([*LIBRARY, "model.config=GPT2Config", "batch_size=8"], 415, 172),
    "EfficientNet-B0": (
        ["model=torchvision", "model.name=efficientnet_b0", "model.dtype=bf16", "batch_size=64"],
        727,
        166,
    ),
    "Llama-3-8B": (
        [
            *LIBRARY,
            "model.config=LlamaConfig",
            *(f"model.config_options.{name}={value}" for name, value in LLAMA.items()),
            "model.seq_len=2048",
            "batch_size=1",
        ],
        1002,
        739,
    ),
}
"""What is asked, Triton kernels and library calls on an A100."""

MOST_MB = 2000


def launched(overrides: list[str], gpu: str, folder: Path) -> tuple[int, int, int]:
    """Triton kernels, library calls, and bytes that the kernels move."""
    question = ask([f"gpu={gpu}", *overrides, "model.compile=true"])
    graph = launches_of(question.workload.plain(), question.batch_size, folder)
    inside = [node for node in graph.nodes() if node.parent_id is not None]
    kernels = [node.attributes for node in inside if node.name.startswith(TRITON)]
    moved = sum(each["read"] + each["written"] for each in kernels)
    return len(kernels), len(inside) - len(kernels), moved


@pytest.mark.nightly  # one to two minutes each
@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks_launch_what_the_page_says(name: str, tmp_path: Path) -> None:
    overrides, kernels, calls = NETWORKS[name]
    assert launched(overrides, "A100", tmp_path)[:2] == (kernels, calls)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < MOST_MB * 1024
    page = Path("docs/compiled.md").read_text(encoding="utf-8")
    assert f"| {name} | {kernels} | {calls} |" in page


@pytest.mark.nightly  # three runs of the compiler
def test_gpus_move_the_same_bytes(tmp_path: Path) -> None:
    overrides = ["model=torchvision", "model.name=resnet18", "batch_size=64"]
    moved = []
    for gpu in ("V100", "A100", "H100"):
        (folder := tmp_path / gpu).mkdir()
        moved.append(launched(overrides, gpu, folder)[2])
    assert max(moved) < 1.01 * min(moved)
