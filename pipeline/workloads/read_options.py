"""Records which options of a configuration the user's step reads, so that unread ones can be reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.errors import did_you_mean

OWN = ("options", "seq_len")
"""Keys of `model=custom` that only the user's function reads; all other keys are read by `Step` and by the capture."""


class MissingOptionError(KeyError):
    """The user's step reads an option that was not given; the message says how to give it."""

    def __str__(self) -> str:
        return str(self.args[0])


class ReadOptions(dict[str, Any]):
    """A dict that remembers which of its keys were read; nested mappings remember theirs.

    Iteration (`**options`, `items()`, a copy) counts as reading every key.

    Args:
        values: the configuration.
        name: what comes before a key in an override.
    """

    def __init__(self, values: Mapping[str, Any], name: str = "model") -> None:
        super().__init__(
            {
                key: ReadOptions(each, f"{name}.{key}") if isinstance(each, Mapping) else each
                for key, each in values.items()
            }
        )
        self.name = name
        self.read: set[str] = set()

    def __missing__(self, key: str) -> Any:
        close = did_you_mean(key, map(str, super().keys()))
        if self.name == "model":
            raise MissingOptionError(
                f"there is no {self.name}.{key}: {close}a step's own options are in config['options']"
            )
        given = f"{close}give {self.name}.{key}=..., or read it with .get({key!r}, default)"
        raise MissingOptionError(f"no option {key!r} was given: {given}")

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, which counts as read."""
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key, which counts as read."""
        self.read.add(key)
        return super().pop(key, *default)

    def __iter__(self) -> Iterator[str]:
        self.read.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        """All keys, which count as read."""
        self.read.update(super().keys())
        return super().keys()

    def values(self) -> Any:
        """All values, which count as read."""
        self.read.update(super().keys())
        return super().values()

    def items(self) -> Any:
        """All keys and values, which count as read."""
        self.read.update(super().keys())
        return super().items()

    def unread(self, prefix: str = "") -> list[str]:
        """Dotted names of the keys that nothing has read; a nested mapping is one name if nothing read it."""
        found: list[str] = []
        for key, value in dict.items(self):
            if key not in self.read:
                found.append(prefix + key)
            elif isinstance(value, ReadOptions):
                found += value.unread(f"{prefix}{key}.")
        return found


def unread_options(config: ReadOptions) -> list[str]:
    """Names, as in an override, of the options that were given for the user's step and that it never read."""
    empty = [key for key in OWN if dict.get(config, key) in (None, {})]
    return [f"model.{key}" for key in config.unread() if key.partition(".")[0] in OWN and key not in empty]
