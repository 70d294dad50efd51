"""Work that stands in for the real one, in the tests of the runner."""

from __future__ import annotations

import os
import time

from soak.verdicts import Done, Verdict


def hangs_or_dies(seed: int, number: int) -> Done:
    """The second case hangs, the fourth ends its process."""
    if number == 1:
        time.sleep(60)
    if number == 3:
        os._exit(3)
    return Done("traces", "none", Verdict("refused"), 1)
