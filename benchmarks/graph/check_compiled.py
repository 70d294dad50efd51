"""Compiles whole steps for a GPU, and checks their launches: `python benchmarks/graph/check_compiled.py`.

It takes two minutes of CPU time. The counts are those of PyTorch 2.13 for an A100.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.graph.compiled_functions import TRITON
from pipeline.graph.compiled_step import launches_of
from pipeline.question.question import ask

STEPS = {
    "resnet50 batch_size=32": (467, 109),
    "transformers model.config=GPT2Config model.seq_len=1024 batch_size=8": (266, 172),
}
"""Overrides after `model=` -> Triton kernels and library calls of forward and backward pass, as this command found them: they say
when a change moves them. A message that `transformers` logs breaks the graph of GPT-2 in two."""

MOST_SECONDS, MOST_MEGABYTES = 120.0, 2048.0
"""CPU time of all steps together, and memory of the largest."""


def main() -> int:
    """Print a line for each step; 1 if one differs from `STEPS`, or all take too long."""
    wrong, begun = 0, time.process_time()
    for text, wanted in STEPS.items():
        question = ask(["gpu=A100", *f"model={text}".split(), "model.compile=true"])
        with TemporaryDirectory() as folder:
            graph = launches_of(question.workload.plain(), question.batch_size, Path(folder))
        inside = graph.table[graph.table["parent_id"].notna()]
        triton = int(inside["name"].str.startswith(TRITON).sum())
        found = triton, len(inside) - triton
        wrong += found != wanted
        print(f"{text}: {found[0]} Triton kernels, {found[1]} library calls, expected {wanted}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime + time.process_time() - begun
    megabytes = used.ru_maxrss / 1024
    print(f"{seconds:.0f} s of CPU time (at most {MOST_SECONDS:.0f})")
    print(f"{megabytes:.0f} MB (at most {MOST_MEGABYTES:.0f})")
    return int(wrong > 0 or seconds > MOST_SECONDS or megabytes > MOST_MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
