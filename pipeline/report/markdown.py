"""Markdown tables, and documents of which a part is written by a command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipeline.errors import InputError
from pipeline.schemas import atomic_path


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def replaced(text: str, name: str, block: str) -> str:
    """A text with the block between `<!-- name -->` and `<!-- /name -->` exchanged.

    Raises:
        KeyError: the text has no such markers.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise KeyError(name)
    head, rest = text.split(begin)
    return f"{head}{begin}\n{block.strip()}\n{end}{rest.split(end)[1]}"


def rewrite(path: Path, blocks: Mapping[str, str]) -> None:
    """Exchange blocks of a document by name (see `replaced`).

    Raises:
        InputError: the document has no markers of a name.
    """
    text = path.read_text(encoding="utf-8")
    for name, block in blocks.items():
        try:
            text = replaced(text, name, block)
        except KeyError:
            raise InputError(f"{path}: needs the lines <!-- {name} --> and <!-- /{name} --> once each") from None
    with atomic_path(path) as part:
        part.write_text(text, encoding="utf-8")
