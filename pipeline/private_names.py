"""Names of Snakemake, Hydra and MLflow that their documents do not promise, with the versions for which they were read.

Each has one function here, so that a new version of a library changes one file. PyTorch's are apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any


def storage_query(file: Any) -> str | None:
    """Address of a file that Snakemake keeps in an object store; None for a file on this machine. Snakemake 9.3 to 9.27."""
    stored = getattr(file, "flags", {}).get("storage_object")
    return None if stored is None else str(stored.query)


def listen(workflow: Any, nothing_to_do: Callable[[], None]) -> None:
    """Call a function when all files are up to date, as Snakemake then runs no hook, and show files in a dry run.

    Snakemake shows the message of a rule in place of its inputs and outputs. Snakemake 9.3 to 9.27.
    """
    from snakemake.common import NOTHING_TO_BE_DONE_MSG
    from snakemake.logging import logger

    def heard(record: logging.LogRecord) -> bool:
        if record.getMessage() == NOTHING_TO_BE_DONE_MSG:
            nothing_to_do()
        if getattr(record, "rule_msg", None) and workflow.dryrun:
            record.rule_msg = None
        return True

    logger.addFilter(heard)
