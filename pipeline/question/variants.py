"""Names of variants and methods: what of a question differs from the files, as short text for folders, tables and caches."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipeline.question.checks import flatten
from pipeline.question.compose import Override, default_choices
from pipeline.question.options import GROUPS

_APPLIED_LATER = ("host_scale", "workers")
"""Settings of a method that do not change its fitted models and statistics."""


def changed_values(config: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Values that differ from those of the files, without the number of processes of a fit, which changes no result."""
    values, usual = flatten(config), flatten(base)
    return {
        key: values.get(key)
        for key in sorted(values.keys() | usual.keys())
        if values.get(key) != usual.get(key) and key != "kernels.workers"
    }


def chosen_methods(base: Mapping[str, Any]) -> list[str]:
    """The parts of a variant's name for files of methods that are not the default: `kernels-roofline`."""
    usual = default_choices()
    names = {key: base[key]["name"] for key in ("kernels", "overheads")}
    return [f"{key}-{name}" for key, name in names.items() if name != usual[key]]


def variant_name(
    config: Mapping[str, Any], base: Mapping[str, Any], methods: Sequence[str] = ()
) -> str:
    """Name of a variant: `default`, or the named methods and the settings that differ from the defaults.

    The defaults are those of the methods and of the model. A long name is replaced by a hash.
    """
    differing = changed_values(config, base)
    words = [
        f"{key.removeprefix('model.')}-"
        + (str(value).replace("::", ".") if key.startswith("edit.") else str(value))
        for key, value in differing.items()
    ]
    text = "_".join([*methods, *words]) or "default"
    if len(text) <= 48 and re.fullmatch(r"[A-Za-z0-9_.\-]+", text):
        return text
    return "v" + hashlib.sha256(repr((list(methods), differing)).encode()).hexdigest()[:10]


def method_label(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Label of a method's models or statistics: its file's name, and a hash of the settings that differ from that file.

    Two questions never share models or statistics that were made with different settings.
    """
    differing = {
        key: value
        for key, value in sorted(settings.items())
        if key not in _APPLIED_LATER and value != usual.get(key)
    }
    digest = hashlib.sha256(repr(differing).encode()).hexdigest()[:8]
    return f"{settings['name']}-{digest}" if differing else str(settings["name"])


def effective(overrides: Sequence[Override], changed: Collection[str]) -> tuple[str, ...]:
    """The overrides that make a variant, sorted: those that state a default or come in another order ask the same."""
    return tuple(sorted(override.text for override in overrides if _changes(override, changed)))


def unchanged(overrides: Sequence[Override], changed: Collection[str]) -> tuple[str, ...]:
    """The other overrides: those that state a default, sorted."""
    others = (each for each in overrides if each.key not in GROUPS and not _changes(each, changed))
    return tuple(sorted(override.text for override in others))


def _changes(override: Override, changed: Collection[str]) -> bool:
    return override.key in changed or any(
        key.startswith(f"{override.key}.") for key in changed if "." in override.key
    )
