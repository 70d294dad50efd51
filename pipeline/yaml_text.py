"""Reads YAML as plain values, with libyaml where PyYAML has it: ten times faster than PyYAML's Python parser."""

from __future__ import annotations

from functools import cache
from typing import Any


class YamlError(ValueError):
    """A text is no YAML."""


def load_yaml(text: str) -> Any:
    """The plain values of a YAML document.

    Raises:
        YamlError: the text is not YAML, or it has a key twice.
    """
    import yaml  # may be absent on a machine that only measures

    try:
        return yaml.load(text, Loader=_loader())
    except yaml.YAMLError as error:
        raise YamlError(str(error)) from None


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
