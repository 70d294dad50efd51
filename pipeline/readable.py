"""Numbers as short text for people, a time that people wrote as a number, and rows of text as an HTML table for notebooks."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from pipeline.errors import InputError

Item = TypeVar("Item")


def in_ms(us: float) -> str:
    """Time in ms with three significant digits, or all whole ones, without the unit."""
    ms = us / 1000
    digits = 3 if ms < 0.9995 else 2 if ms < 9.995 else 1 if ms < 99.95 else 0
    return f"{ms:,.{digits}f}"


def milliseconds(us: float) -> str:
    """Time in ms with three significant digits, or all whole ones."""
    return f"{in_ms(us)} ms"


def three_digits(number: float) -> str:
    """A number with three significant digits, or all whole ones, without an exponent; nothing for 0."""
    if number == 0:
        return ""
    magnitude = math.floor(math.log10(abs(float(f"{number:.2e}"))))
    return f"{number:,.{min(max(2 - magnitude, 0), 4)}f}" if magnitude > -5 else "0"


def short_time(us: float) -> str:
    """Time in µs below a millisecond, else in ms, with three digits or all whole ones; for labels in figures."""
    if us < 999.5:
        return f"{us:.3g} µs"
    ms = us / 1000
    return f"{ms:.2f} ms" if ms < 9.995 else f"{ms:.1f} ms" if ms < 99.95 else f"{ms:,.0f} ms"


def rate(per_second: float) -> str:
    """Samples per second with three significant digits; large models need seconds per sample."""
    return f"{float(f'{per_second:.3g}'):,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def prefix_of(number: float) -> tuple[str, float]:
    """The prefix of a large count, B from 1e9 on, and its factor, such as M and 1e6; below 1,000 none and 1."""
    prefixes = (("B", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
    return next((prefix for prefix in prefixes if number >= 0.9995 * prefix[1]), prefixes[-1])


def compact(number: float) -> str:
    """A large number with three digits, such as `306M`; below 1,000 as `rate`."""
    prefix, factor = prefix_of(number)
    return f"{number / factor:.3g}{prefix}" if prefix else rate(number)


def in_gib(size: float) -> str:
    """Bytes in GiB with three significant digits, without the unit."""
    return f"{size / 2**30:.3g}"


def amount(money: float) -> str:
    """An amount of money or of hours: three digits or all whole ones; from 1 to 100 two decimals."""
    return f"{money:,.0f}" if money >= 100 else f"{money:.2f}" if money >= 1 else f"{money:.3g}"


def gibibytes(size: float) -> str:
    """Bytes as KiB, MiB or GiB."""
    if size >= 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"


KINDS = {"pack": "shipped fits", "transferred": "scaled from others", "roofline": "formulas"}
"""Words for kinds of evidence whose names say little to a newcomer; `docs/glossary.md` has both."""


def kind_words(kind: str) -> str:
    """A kind of evidence in words: `shipped fits extrapolated` of `pack extrapolated`."""
    name, space, rest = kind.partition(" ")
    return KINDS.get(name, name) + space + rest


def shares(parts: Mapping[str, float]) -> str:
    """Shares as text such as `fitted 92%, formulas 8%`, largest first."""
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    texts = [f"{kind_words(name)} {share:.0%}" for name, share in ordered if share >= 0.005]
    return ", ".join(texts) or "none"


def span(low: float, high: float, unit: str = "") -> str:
    """A range as text, such as `3 to 5 %`; one number where both are the same text."""
    one, two = (
        f"{value:.0f}" if abs(value) >= 9.95 or value == 0 else f"{value:.1f}"
        for value in (low, high)
    )
    return f"{one}{unit}" if one == two else f"{one} to {two}{unit}"


def distinct(items: Iterable[Item]) -> list[Item]:
    """Items in their order, each once."""
    return list(dict.fromkeys(items))


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


MOST_CARDS = 5
"""Number of GPUs up to which titles and lines below tables name each; of more, figures show the best."""


def few(names: Sequence[str]) -> str:
    """Some names, separated by commas; the number of many."""
    return ", ".join(names) if len(names) <= MOST_CARDS else f"{len(names)} GPUs"


UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
"""Units of time, in seconds."""


def seconds(text: str) -> float:
    """Seconds of a text such as `90s`, `30min`, `2h` or `1.5d`.

    Raises:
        InputError: the text is no time.
    """
    parts = re.fullmatch(r"([\d.]+) ?(d|h|min|s)", text.strip())
    try:
        return float(parts[1]) * UNITS[parts[2]] if parts else float("")
    except ValueError:
        raise InputError(f"{text!r} is no time: write for example 90s, 30min, 2h or 1.5d") from None


PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
"""Factors of the letters that people write behind a number."""


def number_of(text: str, option: str = "") -> float:
    """The number of a text such as `1281167`, `1,281,167`, `1.2M`, `300B`, `1e9` or `$20`; an error names its option.

    Raises:
        InputError: the text is no number above 0.
    """
    number = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+(?:e\+?\d+)?"
    parts = re.fullmatch(rf"\$?({number}) ?([kKMGBT]?)", str(text).strip())
    value = float(parts[1].replace(",", "")) * PREFIXES[parts[2]] if parts else 0.0
    if not 0 < value < math.inf:
        raise InputError(
            f"{option}{text!r} is no number above 0: write for example 1281167, 1.2M or $20"
        )
    return value


def duration(time_s: float) -> str:
    """A time as text in days, hours, minutes or seconds."""
    unit = next((unit for unit, size in UNITS.items() if time_s >= 2 * size), "s")
    return f"{time_s / UNITS[unit]:.3g} {unit}"


def html_table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Rows of text as an HTML table with a caption, for notebooks."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    lines = [
        "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
        for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in ([head] if head else []) + lines)
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"


def html_rows(title: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Rows with a column per key, as `html_table`."""
    cells = [list(row.values()) for row in rows]
    return html_table(title, cells, list(rows[0]) if rows else ())
