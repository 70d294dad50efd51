"""YAML as plain values, parsed by libyaml where PyYAML has it: ten times sooner than in Python."""

from __future__ import annotations

from functools import cache
from typing import Any


def load_yaml(text: str) -> Any:
    """The plain values of a YAML document.

    Raises:
        yaml.YAMLError: the text is no YAML, or names a key twice.
    """
    import yaml  # a machine that only measures may lack it

    return yaml.load(text, Loader=_loader())


@cache
def _loader() -> Any:
    """A safe loader that refuses a key given twice, of which PyYAML takes the last without a word."""
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
