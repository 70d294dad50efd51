"""YAML as plain values, parsed by libyaml where PyYAML has it: ten times sooner than in Python."""

from __future__ import annotations

from typing import Any


def load_yaml(text: str) -> Any:
    """The plain values of a YAML document.

    Raises:
        yaml.YAMLError: the text is no YAML.
    """
    import yaml  # a machine that only measures may lack it

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
