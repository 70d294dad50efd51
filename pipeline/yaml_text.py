"""Reads YAML as plain values, with libyaml where PyYAML has it: ten times faster than PyYAML's Python parser."""

from __future__ import annotations

from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

MAX_VALUES = 100_000
"""Largest number of values of a document with aliases. A few lines of aliases of aliases can stand for billions."""


class YamlError(ValueError):
    """A text is no YAML."""


def load_yaml(text: str) -> Any:
    """The plain values of a YAML document.

    Raises:
        YamlError: the text is not YAML, it has a key twice, or its aliases stand for too many values.
    """
    import yaml  # may be absent on a machine that only measures

    try:
        values = yaml.load(text, Loader=_loader())
    except (yaml.YAMLError, RecursionError) as error:
        raise YamlError(str(error)) from None
    if "*" in text and _count(values, {}) > MAX_VALUES:
        raise YamlError(f"its aliases stand for more than {MAX_VALUES:,} values")
    return values


def read_mapping(path: Path, expected: str) -> dict[str, Any]:
    """The values of a YAML file that holds a mapping; `expected` says of what, for the message.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or holds something else.
    """
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise ConfigError(f"{path}: not readable as YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of {expected}")
    return values


def _count(value: Any, known: dict[int, float]) -> float:
    """Number of values with every alias written out; infinite if a value holds itself."""
    if not isinstance(value, (dict, list, tuple)):
        return 1
    if id(value) not in known:
        known[id(value)] = inf
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(each, known) for each in inner)
    return known[id(value)]


@cache
def _loader() -> Any:
    """A safe loader that refuses a repeated key; PyYAML takes its last value without a warning."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.tag != "tag:yaml.org,2002:merge" and isinstance(key.value, str):
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"{key.value!r} is given twice", key.start_mark
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    return Loader
