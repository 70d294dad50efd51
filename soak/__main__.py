"""Damages thousands of inputs, or kills runs: `make soak`, or

    python -m soak --cases 10000 --seed 1            # prints how far it is; --first 4000 goes on from there
    python -m soak --case 1234                       # one case again, with its traceback
    python -m soak kills --times 100                 # SIGKILL in the middle of runs

Exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from random import Random

from soak import kills
from soak.kinds import KINDS, kind_of
from soak.runner import soak, table


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=("inputs", "kills"), default="inputs")
    parser.add_argument("--cases", type=int, default=10_000, help="number of damaged inputs")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same cases")
    parser.add_argument("--case", type=int, help="run this case alone, in this process")
    parser.add_argument("--times", type=int, default=100, help="number of kills")
    args = parser.parse_args()
    if args.what == "kills":
        return kills.main(args.times, args.seed)
    if args.case is not None:
        return _one(args.seed, args.case)
    tally = soak(args.seed, range(args.first, args.cases), lambda text: print(text, flush=True))
    print(f"{table(tally)}\n\nA process held at most {tally.peak_bytes / 2**20:.0f} MB.")
    return 1 if tally.failures else 0


def _one(seed: int, number: int) -> int:
    """Make one case again and run it unguarded, so that its traceback is seen."""
    rng = Random(f"{seed}/{number}")
    kind = kind_of(rng)
    with tempfile.TemporaryDirectory(prefix="steptime-soak-") as folder:
        place = Path(folder)
        for name in ("base", "case"):
            (place / name).mkdir()
        case = KINDS[kind].case(KINDS[kind].prepare(place / "base"), place / "case", rng)
        print(f"{kind}: {case.mutation}; must {case.must}")
        print(case.run())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
