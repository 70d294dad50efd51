"""Reads YAML as plain values, with libyaml where PyYAML has it: ten times faster than PyYAML's Python parser."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import inf, isfinite
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


class NamedFile:
    """The values of a file that describes one named thing, a cluster or a host. They are checked as they are read.

    Args:
        path: the file.
        kind: what it describes, a folder of `config/`.
        example: the name of a file that is right.
        texts: keys whose values are texts.
        required: further keys without which it is refused.
        optional: all other keys.

    Raises:
        ConfigError: it cannot be read, a key is unknown, or one is missing.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        example: str,
        texts: Sequence[str],
        required: Sequence[str],
        optional: Sequence[str],
    ) -> None:
        self.path = path
        self.values = read_mapping(path, f"values, as in config/{kind}/{example}.yaml")
        known = *texts, *required, *optional
        if unknown := [repr(key) for key in self.values if key not in known]:
            names = ", ".join(unknown)
            raise ConfigError(f"{path}: unknown key {names}; a {kind} has {', '.join(known)}")
        stated = {key for key, value in self.values.items() if value is not None}
        if missing := [key for key in texts if not self._is_text(key)]:
            raise ConfigError(f"{path}: {', '.join(missing)} is missing; give a text for each")
        if missing := [key for key in required if key not in stated]:
            raise ConfigError(f"{path}: {', '.join(missing)} is missing")
        if not all(character.isalnum() or character in "-_" for character in self.values["name"]):
            raise ConfigError(
                f"{path}: folders get this name: give it letters, digits, - and _ alone"
            )

    def _is_text(self, key: str) -> bool:
        value = self.values.get(key)
        return isinstance(value, str) and value != ""

    def error(self, key: str, remedy: str) -> ConfigError:
        """The error of a value that makes no sense."""
        return ConfigError(f"{self.path}: {key} is {self.values[key]!r}: {remedy}")

    def text(self, key: str) -> str | None:
        """A text that may be absent."""
        if self.values.get(key) is not None and not self._is_text(key):
            raise self.error(key, "give a text")
        return self.values.get(key)

    def number(self, key: str, remedy: str, most: float, zero: bool = False) -> float | None:
        """A number above 0 (or from 0 on) up to `most`; None if it is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        usable = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
        if not usable or not 0 <= value <= most or (value == 0 and not zero):
            raise self.error(key, remedy)
        return float(value)

    def names(self, key: str, what: str) -> tuple[str, ...]:
        """A list of names, empty if it is absent."""
        value = self.values.get(key) or ()
        if not isinstance(value, (list, tuple)):
            raise self.error(key, f"give a list of {what}")
        return tuple(map(str, value))

    def refuse_other_name(self) -> None:
        """Refuse a file whose name is not that of what it describes."""
        name = self.values["name"]
        if name != self.path.stem:
            raise ConfigError(
                f"{self.path}: name is {name!r}, expected {self.path.stem!r}, the name of the file"
            )


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
