"""Files that describe one named thing, a cluster or a host: their values are checked as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.yaml_text import read_mapping


class NamedFile:
    """The values of a file.

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
