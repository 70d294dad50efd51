"""Write the kernel calls of a campaign's workloads to a file, on any machine.

    python -m pipeline.collect.campaign_calls calls.json
    python -m pipeline.collect.campaign --calls calls.json ...

Finding the calls needs no GPU, but some seconds of CPU time per workload. Doing it beforehand saves paid time on a
rented GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pipeline.collect.campaign_grid import plans
from pipeline.collect.campaign_kernels import calls_of_plan
from pipeline.collect.cases import Spec
from pipeline.collect.size_sampler import distinct
from pipeline.errors import InputError, SteptimeError
from pipeline.schemas import atomic_path

REWRITE_ADVICE = "write it again with `python -m pipeline.collect.campaign_calls`"


def write_calls(calls: Mapping[str, Sequence[Spec]], path: Path) -> None:
    """Write the calls of workloads by unit, completely or not at all."""
    text = json.dumps({unit: [asdict(spec) for spec in specs] for unit, specs in calls.items()}, sort_keys=True)
    with atomic_path(path) as part:
        part.write_text(text)


def read_calls(path: Path) -> dict[str, list[Spec]]:
    """The calls of workloads by unit.

    Raises:
        InputError: the file is missing or not a file of calls.
    """
    try:
        found = json.loads(path.read_text())
        return {unit: [Spec(**one) for one in specs] for unit, specs in found.items()}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; {REWRITE_ADVICE}") from None
    except (ValueError, TypeError, AttributeError):
        raise InputError(f"{path}: not a file of calls; {REWRITE_ADVICE}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Find the calls of every planned step in fp32 and write them; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m pipeline.collect.campaign_calls FILE", file=sys.stderr)
        return 2
    found: dict[str, list[Spec]] = {}
    for plan in plans():
        if plan.overrides.get("dtype") is not None:
            continue
        try:
            found[plan.unit] = distinct(calls_of_plan(plan))
        except SteptimeError as error:  # the campaign finds these calls itself, if it can
            print(f"{plan.unit}: skipped: {error}", file=sys.stderr)
            continue
        print(f"{plan.unit}: {len(found[plan.unit])} calls", flush=True)
    write_calls(found, Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
