"""Reads YAML as plain values, with libyaml where PyYAML has it: ten times faster than PyYAML's Python parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import ConfigError

Read = TypeVar("Read")

MAX_VALUES = 100_000
"""Largest number of values of a document with aliases. A few lines of aliases of aliases can stand for billions."""


NAME = r"[A-Za-z0-9_\-]+"
"""Pattern of names of files that describe one named thing. Snakemake's rules find their folders by this pattern."""


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


def kept_while_unchanged(read: Callable[[Path], Read]) -> Callable[[Path], Read]:
    """A reader of files that reads a file again only when its date has changed."""

    @lru_cache(maxsize=256)
    def known(path: Path, _stamp: int) -> Read:
        return read(path)

    return lambda path: known(path, path.stat().st_mtime_ns if path.is_file() else 0)


@dataclass(frozen=True)
class Kind:
    """Which values a key may have, and what to do about others."""

    fits: Callable[[Any], bool]
    remedy: str


TEXT = Kind(lambda value: isinstance(value, str) and value != "", "give a text")
SOURCES = Kind(lambda value: isinstance(value, dict), "map figures to texts")


def number(remedy: str, most: float, zero: bool = False) -> Kind:
    """Numbers above 0 (or from 0 on) up to `most`."""

    def fits(value: Any) -> bool:
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        return known and 0 <= value <= most and (value > 0 or zero)

    return Kind(fits, remedy)


def names(what: str) -> Kind:
    """Lists of names."""
    return Kind(lambda value: isinstance(value, list), f"give a list of {what}")


def read_named(
    path: Path, kind: str, example: str, keys: Mapping[str, Kind], required: Sequence[str]
) -> dict[str, Any]:
    """The values of a file that describes one named thing, a cluster or a host, without those that are null.

    Args:
        path: the file.
        kind: what it describes, a folder of `config/`.
        example: the name of a file that is right.
        keys: all keys that it may have.
        required: those without which it is refused.

    Raises:
        ConfigError: it cannot be read, a key is unknown, or a value is missing or makes no sense.
    """
    stated = read_mapping(path, f"values, as in config/{kind}/{example}.yaml")
    if unknown := [repr(key) for key in stated if key not in keys]:
        raise ConfigError(
            f"{path}: unknown key {', '.join(unknown)}; a {kind} has {', '.join(keys)}"
        )
    values = {key: value for key, value in stated.items() if value is not None}
    if missing := [key for key in required if key not in values]:
        raise ConfigError(f"{path}: {', '.join(missing)} is missing")
    for key, value in values.items():
        if not keys[key].fits(value):
            raise ConfigError(f"{path}: {key} is {value!r}: {keys[key].remedy}")
    check_name(path, values["name"], path.stem)
    return values


def check_name(where: str | Path, name: str, of_file: str) -> None:
    """Check the name that a file states, which folders of artifacts get.

    Raises:
        ConfigError: it is not the name of the file, or has other characters than `NAME`.
    """
    if name != of_file:
        raise ConfigError(f"{where}: name is {name!r}, expected {of_file!r}, the name of the file")
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"{where}: folders get this name: give it letters, digits, - and _ alone")


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
