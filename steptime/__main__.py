"""`python -m steptime` is the `steptime` command."""

from __future__ import annotations

import sys

from steptime import check_not_hidden


def main() -> None:
    """Run the command; where another module hides Steptime's code, say so in one line."""
    try:
        check_not_hidden()
    except ImportError as error:
        sys.exit(str(error))
    from pipeline.cli import main as run

    run()


if __name__ == "__main__":
    main()
