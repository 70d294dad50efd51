"""A fingerprint of library code, so that Snakemake reruns a rule when code that it imports has changed."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def code_digest(*rooms: str) -> str:
    """Hash of every module of the named rooms (`"graph"`) or single modules (`"schemas.py"`) of the package.

    `tests/workflow/test_rule_code.py` says what a rule uses and does not name.

    Raises:
        FileNotFoundError: no such room or module; a typing error in a rule.
    """
    root = Path(__file__).resolve().parent
    files: list[Path] = []
    for room in rooms:
        place = root / room
        if not place.exists():
            raise FileNotFoundError(f"pipeline/{room}: a rule names code that does not exist")
        files += [place] if place.is_file() else [p for p in place.rglob("*") if p.suffix in (".py", ".yaml", ".csv")]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
