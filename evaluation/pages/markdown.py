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


def parts_of(page: Path) -> list[Path]:
    """The files of a page: itself, then those in the folder of its name (`accuracy.md`, `accuracy/*.md`)."""
    return [page, *sorted(page.with_suffix("").glob("*.md"))]


def whole_text(page: Path) -> str:
    """The texts of all files of a page (`parts_of`), one after the other."""
    return "\n".join(part.read_text(encoding="utf-8") for part in parts_of(page))


def rewrite(page: Path, blocks: Mapping[str, str]) -> None:
    """Replace the named blocks of a page (see `replaced`), each in that of its files which has the markers.

    Raises:
        InputError: not exactly one file of the page has the markers of a name.
    """
    texts = {part: part.read_text(encoding="utf-8") for part in parts_of(page)}
    changed = {}
    for name, block in blocks.items():
        places = [part for part, text in texts.items() if f"<!-- {name} -->" in text]
        try:
            (part,) = places
            texts[part] = changed[part] = replaced(texts[part], name, block)
        except (KeyError, ValueError):
            raise InputError(
                f"{page}: must have the lines <!-- {name} --> and <!-- /{name} --> exactly once"
            ) from None
    for part, text in changed.items():
        with atomic_path(part) as new:
            new.write_text(text, encoding="utf-8")
