"""Run the command of each line of `steptime advise` on three steps: does it give the gain that the line promises?

    python benchmarks/steps/advice.py

Each command runs in a process of its own. A gain that differs by more than a nanosecond ends the check with an error.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

STEPS = (("V100", "dlrm_ddp"), ("A100", "resnet50"), ("H100", "bert_large"))
MAX_DIFFERENCE_US = 1e-3


def main() -> None:
    print(f"{'GPU':6}{'model':12}{'change':32}{'saves (us)':>16}")
    for gpu, model in STEPS:
        for line in _asked(["advise", f"gpu={gpu}", f"model={model}"])["lines"]:
            saved = _confirmed(line["on_top"], line["command"])
            print(f"{gpu:6}{model:12}{line['change']:32}{saved:>16}", flush=True)


def _confirmed(promised: dict[str, float], command: str) -> str:
    """What a line promises, in microseconds, after its command gave the same."""
    before, after = _asked(shlex.split(command)[1:])["predictions"]
    saved = before["predicted_us"] - after["predicted_us"]
    if abs(saved - promised["saved_us"]) > MAX_DIFFERENCE_US:
        raise SystemExit(f"{command}: saves {saved:.3f} us, not {promised['saved_us']:.3f} us")
    return f"{saved:.1f}"


def _asked(words: Sequence[str]) -> Any:
    """The answer of a `steptime` command, as JSON."""
    command = [sys.executable, "-m", "pipeline", *words, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
