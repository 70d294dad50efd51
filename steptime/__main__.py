"""`python -m steptime` is the `steptime` command."""

from __future__ import annotations

import os
import sys

from steptime import check_not_hidden


def main() -> None:
    """Run the command; where another module hides Steptime's code, say so in one line."""
    try:
        check_not_hidden()
    except ImportError as error:
        sys.exit(str(error))
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # matrices are small: more threads would only wait
    from pipeline.cli import main as run

    run()


if __name__ == "__main__":
    main()
