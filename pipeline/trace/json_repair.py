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
from collections.abc import Callable
from functools import partial
from typing import Any

_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NOT_A_NUMBER = re.compile(r'("\s*:\s*)-?(?:nan|inf)(?=\s*[,}])')
_NAME = re.compile(
    r'("name":\s*")(.*?)("\s*,\s*"(?:pid|tid|ts|ph|cat|args|dur|id|s)"\s*:)', re.DOTALL
)
_LONE_QUOTE = re.compile(r'(?<!\\)"')


def _with_escaped_quotes(match: re.Match[str]) -> str:
    return match[1] + _LONE_QUOTE.sub(r'\\"', match[2]) + match[3]


_MENDS: tuple[Callable[[str], str], ...] = (
    str,  # as it is
    partial(_NOT_A_NUMBER.sub, r"\1null"),
    partial(_BAD_ESCAPE.sub, r"\\\\"),
    partial(_NAME.sub, _with_escaped_quotes),
)
"""Repairs, each of a text after those before it."""


def parse_loosely(text: bytes) -> tuple[Any, str]:
    """Parse JSON text and repair the common faults. Returns (value, "") or (None, the error)."""
    plain = text.decode("utf-8", errors="replace")
    problem = ""
    for mend in _MENDS:
        plain = mend(plain)
        try:
            return json.loads(plain, strict=False), ""
        except json.JSONDecodeError as error:
            excerpt = ascii(plain[max(0, error.pos - 20) : error.pos + 20])
            problem = problem or f"{error.msg} in {excerpt}"
        except (RecursionError, ValueError) as error:
            # too deep nesting; integers beyond Python's digit limit
            return None, str(error).splitlines()[0]
    return None, problem
