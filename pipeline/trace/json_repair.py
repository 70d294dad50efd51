"""Reads invalid JSON that profilers write, for example when a name contains a quote or a control character.

Four faults are common. They are repaired in this order, and any other fault is an error:

1. raw control characters and invalid UTF-8 in names;
2. `nan` and `inf` as C++ writes them;
3. backslashes that start no escape;
4. quotes that were not escaped.
"""

from __future__ import annotations

import json
import re
from typing import Any

_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NOT_A_NUMBER = re.compile(r'("\s*:\s*)-?(?:nan|inf)(?=\s*[,}])')
_NAME = re.compile(
    r'("name":\s*")(.*?)("\s*,\s*"(?:pid|tid|ts|ph|cat|args|dur|id|s)"\s*:)', re.DOTALL
)
_LONE_QUOTE = re.compile(r'(?<!\\)"')


def parse_loosely(text: bytes) -> tuple[Any, str]:
    """Parse JSON text and repair the common faults. Returns (value, "") or (None, the error)."""
    plain = text.decode("utf-8", errors="replace")
    problem = ""
    for mend in (_as_is, _repair_numbers, _repair_escapes, _repair_quotes):
        mended = mend(plain)
        try:
            return json.loads(mended, strict=False), ""
        except json.JSONDecodeError as error:
            problem = problem or f"{error.msg} in {_excerpt(mended, error.pos)}"
        except (
            RecursionError,
            ValueError,
        ) as error:  # too deep nesting; integers beyond Python's digit limit
            return None, str(error).splitlines()[0]
    return None, problem


def _as_is(text: str) -> str:
    return text


def _repair_numbers(text: str) -> str:
    """Replace `nan`, `-nan` and `inf`, which C++ writes and which are not valid JSON."""
    return _NOT_A_NUMBER.sub(r"\1null", text)


def _repair_escapes(text: str) -> str:
    return _BAD_ESCAPE.sub(r"\\\\", _repair_numbers(text))


def _repair_quotes(text: str) -> str:
    return _NAME.sub(
        lambda m: m[1] + _LONE_QUOTE.sub(r"\\" + '"', m[2]) + m[3], _repair_escapes(text)
    )


def _excerpt(text: str, position: int) -> str:
    return ascii(text[max(0, position - 20) : position + 20])
