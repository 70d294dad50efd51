"""Reads and writes Markdown tables, and documents with blocks that a command generates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipeline.errors import InputError
from pipeline.schemas import atomic_path


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def replaced(text: str, name: str, block: str) -> str:
    """A text with the block between `<!-- name -->` and `<!-- /name -->` replaced.

    Raises:
        KeyError: the text does not have each marker once, in this order.
    """
    head, _, tail = _parted(text, name)
    return f"{head}\n{block.strip()}\n{tail}"


def block(text: str, name: str) -> str:
    """The text between `<!-- name -->` and `<!-- /name -->`.

    Raises:
        KeyError: the text does not have each marker once, in this order.
    """
    return _parted(text, name)[1].strip()


def _parted(text: str, name: str) -> tuple[str, str, str]:
    """The text up to the first marker with it, between the markers, and from the second marker on."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise KeyError(begin)
    head, _, rest = text.partition(begin)
    inside, _, tail = rest.partition(end)
    return head + begin, inside, end + tail


def table_rows(text: str) -> list[dict[str, str]]:
    """Rows of the first Markdown table of a text, by column name. Cells with an escaped `|` are not supported."""
    lines = [line.strip() for line in text.splitlines()]
    first = next((place for place, line in enumerate(lines) if line.startswith("|")), len(lines))
    last = next(
        (place for place in range(first, len(lines)) if not lines[place].startswith("|")),
        len(lines),
    )
    cells = [
        [cell.strip() for cell in line[1:].removesuffix("|").split("|")]
        for line in lines[first:last]
    ]
    return [
        dict(zip(cells[0], row, strict=True)) for row in cells[2:]
    ]  # cells[1] is the line of dashes


def rewrite(path: Path, blocks: Mapping[str, str]) -> None:
    """Replace the named blocks of a document (see `replaced`).

    Raises:
        InputError: the document has no markers for a name.
    """
    text = path.read_text(encoding="utf-8")
    for name, block in blocks.items():
        try:
            text = replaced(text, name, block)
        except KeyError:
            raise InputError(
                f"{path}: must have the lines <!-- {name} --> and <!-- /{name} --> exactly once"
            ) from None
    with atomic_path(path) as part:
        part.write_text(text, encoding="utf-8")
