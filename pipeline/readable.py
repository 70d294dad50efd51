"""Numbers as short text for people, a time that people wrote as a number, and rows of text as an HTML table for notebooks."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from pipeline.errors import InputError


def milliseconds(us: float) -> str:
    """Time in ms with about three significant digits."""
    ms = us / 1000
    return f"{ms:.3f} ms" if ms < 1 else f"{ms:.2f} ms" if ms < 100 else f"{ms:,.0f} ms"


def short_time(us: float) -> str:
    """Time in µs below a millisecond, else in ms, with three digits or all whole ones; for labels in figures."""
    if us < 999.5:
        return f"{us:.3g} µs"
    ms = us / 1000
    return f"{ms:.2f} ms" if ms < 9.995 else f"{ms:.1f} ms" if ms < 99.95 else f"{ms:,.0f} ms"


def rate(per_second: float) -> str:
    """Samples per second: a whole number from 100 on, else three digits, as large models need seconds per sample."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def compact(number: float) -> str:
    """A large number with three digits, such as `306M`; below 1,000 as `rate`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return rate(number)


def amount(money: float) -> str:
    """An amount of money: two decimals, below 1 three digits."""
    return f"{money:,.2f}" if money >= 1 else f"{money:.3g}"


def gibibytes(size: float) -> str:
    """Bytes as KiB, MiB or GiB."""
    if size >= 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{size / 2**20:.0f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"


def shares(parts: Mapping[str, float]) -> str:
    """Shares as text such as `fitted 92%, roofline 8%`, largest first."""
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in ordered if share >= 0.005) or "none"


def span(low: float, high: float, unit: str = "") -> str:
    """A range as text, such as `3 to 5 %`; one number where both are the same text."""
    one, two = (f"{value:.0f}" if abs(value) >= 9.95 or value == 0 else f"{value:.1f}" for value in (low, high))
    return f"{one}{unit}" if one == two else f"{one} to {two}{unit}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


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


def duration(time_s: float) -> str:
    """A time as text in days, hours, minutes or seconds."""
    unit = next((unit for unit, size in UNITS.items() if time_s >= 2 * size), "s")
    return f"{time_s / UNITS[unit]:.3g} {unit}"


def html_table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Rows of text as an HTML table with a caption, for notebooks."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    lines = ["".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in ([head] if head else []) + lines)
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"
