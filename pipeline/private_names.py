"""Names of Snakemake, Hydra and MLflow that their documents do not promise, with the versions for which they were read.

Each has one function here, so that a new version of a library changes one file. PyTorch's are apart.
"""

from __future__ import annotations

from typing import Any


def storage_query(file: Any) -> str | None:
    """Address of a file that Snakemake keeps in an object store; None for a file on this machine. Snakemake 9.3 to 9.27."""
    stored = getattr(file, "flags", {}).get("storage_object")
    return None if stored is None else str(stored.query)
