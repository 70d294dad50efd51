"""Options that do not exist, and names that cannot be changed, refused in one line that says what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError, did_you_mean
from pipeline.hardware.spec import is_known_key
from pipeline.question.compose import GROUPS, Override
from pipeline.question.sections import FREE_OPTIONS, flatten

_MAX_LISTED = 32
"""A message lists the options of a section up to this number."""
_NOT_OPTIONS = ("name", "architecture", "aliases", "sources")
"""Keys of files that say what a file is; they are no options."""


def refuse_new_keys(config: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    """Refuse new keys: a misspelt `+model.atention=fused` would be ignored, and the answer would not show this.

    New keys of a GPU are checked by its specification. Workloads that the user or a library defines have free options.

    Raises:
        ConfigError: a key was added that nothing reads.
    """
    free = ("gpu.", FREE_OPTIONS.get(str(config["model"].get("architecture")), "gpu."))
    keys_of_files = {*flatten(base), "batch_size"}
    for key in flatten(config):
        if key not in keys_of_files and not key.startswith(free):
            raise ConfigError(unknown_option(key, base))


def refuse_other_names(values: Sequence[Override], named: bool) -> None:
    """Refuse `model.name=...`, unless it names a model of a library: results are stored under the name of the file.

    Raises:
        ConfigError: an override changes the name of a group's file.
    """
    for override in values:
        group, _, key = override.key.partition(".")
        if group in GROUPS and key == "name" and not (group == "model" and named):
            raise ConfigError(f"{override.text}: choose a file of config/{group}/ with {group}=NAME")


def unknown_option(key: str, base: Mapping[str, Any]) -> str:
    """One line that says which options there are; `base` is the configuration of the chosen files."""
    section, options = key.partition(".")[0], list(flatten(base))
    chosen = f" of {section}={base[section]['name']}" if section in GROUPS and "." in key else ""
    if section == "gpu" and is_known_key(key.removeprefix("gpu.")):
        return f"{key}: the file{chosen} does not state it: add it with +{key}=..."
    if key == "global_batch":
        return f"{key}: give batch_size, the samples of one GPU: the global batch divided by devices"
    close = did_you_mean(key, options) or did_you_mean(key, (*GROUPS, "experiment", "results"))
    in_section = sorted(option.partition(".")[2] for option in options if option.startswith(f"{section}."))
    listed = [name for name in in_section if not name.startswith(_NOT_OPTIONS)]
    there = f"its options are {', '.join(listed)}" if 0 < len(listed) <= _MAX_LISTED else "see config/README.md"
    if section == "edit" and f"model.{key.partition('.')[2]}" in options:
        return f"{key}: this is an option of {base['model']['name']}: write {key.replace('edit.', 'model.')}=..."
    section_of_free = FREE_OPTIONS.get(str(base["model"].get("architecture"))) if section == "model" else None
    free = f"; options of its own: {section_of_free}{key.rpartition('.')[2]}=..." if section_of_free else ""
    return f"unknown option {key!r}{chosen}: {close}{there}{free}"
