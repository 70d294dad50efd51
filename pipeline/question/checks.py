"""Checks of the sections of a question: options that exist, with values that make sense.

A value must have the kind that the files give it: a number stays a number, and a name stays a name. Conditions on
several values (widths that must divide each other) are checked by the workload and the GPU specification.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_type_hints

from pipeline.errors import ConfigError, UnknownNameError, did_you_mean
from pipeline.hardware.spec import is_known_key
from pipeline.question.options import (
    FREE_OPTIONS,
    GROUPS,
    NAMED_BY,
    OPTIONS,
    SECTION_KINDS,
    option_of,
)
from pipeline.question.settings import NO_EDIT, written

SECTIONS = ("gpu", "model", "kernels", "overheads", "predict", "collect", "parallel")
"""Parts of the configuration whose values are checked; `batch_size` has a separate check."""

HALF_PRECISION_DTYPES = ("bf16", "fp16")
"""Half-precision dtypes that a whole model can be cast to (`model.precision=pure`)."""

SECTION_TYPES = {name: get_type_hints(kind) for name, kind in SECTION_KINDS.items()}
"""Types of the sections with a fixed set of keys. The keys of `gpu` and `model` have the type of the file's value."""

EDIT_MARKS = {"remove": "", "substitute": "/"}
"""The character between the parts of each edit."""

_NOT_OPTIONS = ("name", "architecture", "aliases", "sources")
"""Keys of files that say what a file is; they are no options."""


def check_sections(config: Mapping[str, Any]) -> None:
    """Check that files hold the sections and keys that settings are made of, with values of their kinds.

    Raises:
        ConfigError: a section or key is missing, unknown, or of another kind.
    """
    import msgspec  # machines that are measured have none

    for name in (*SECTIONS, "edit"):
        if not isinstance(config.get(name), Mapping):
            raise ConfigError(f"configuration: section {name} has no keys; {COMPARE}")
    for name in GROUPS:
        if not isinstance(config[name].get("name"), str):
            raise ConfigError(f"configuration: {name}.name is missing, the name of its file")
    for name, kinds in SECTION_TYPES.items():
        section = config[name]
        if unknown := [key for key in section if key not in kinds]:
            raise ConfigError(f"configuration: {name}.{unknown[0]}: there is no such option")
        for key, kind in kinds.items():
            if key not in section and key not in HAVE_DEFAULTS and name != "parallel":
                raise ConfigError(f"configuration: {name}.{key} is missing; {COMPARE}")
            value = section.get(key)
            try:
                msgspec.convert(value, kind if key in section else Any)
            except msgspec.ValidationError as error:
                raise ConfigError(
                    f"configuration: {name}.{key}={written(value)}: {error}"
                ) from None
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"configuration: {name}.{key}={value}: a number is needed")


COMPARE = "compare its file with the one that ships"

HAVE_DEFAULTS = ("host_scale", "families")
"""Settings that a file may leave out."""


def check_values(config: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    """Check every value that differs from the value in the files.

    Args:
        config: the composed configuration, nested.
        base: the configuration of the same groups without any other override.

    Raises:
        UnknownNameError: an option has no such choice.
        ConfigError: a value is not of the file's kind, is not a plausible number, or conflicts with another value.
    """
    flat, usual = flatten(config), flatten(base)
    for key in usual:
        if key not in flat and key.partition(".")[0] in SECTIONS:
            raise ConfigError(f"{key}: give a value, not a section")
    for key, option in OPTIONS.items():
        stated = flat.get(key) is not None or usual.get(key) is not None
        if option.values and stated and flat[key] not in option.values:
            raise UnknownNameError(key, flat[key], list(option.values))
    check_precision({key: flat.get(f"model.{key}") for key in ("dtype", "precision")})
    check_edit(config.get("edit", {}))
    for key, default in usual.items():
        value = flat.get(key, default)
        # 0 equals False
        differs = value != default or isinstance(value, bool) != isinstance(default, bool)
        if differs and key.partition(".")[0] in SECTIONS:
            _check(key, value, default)


def refuse_new_keys(
    config: Mapping[str, Any], base: Mapping[str, Any], added: Sequence[str]
) -> None:
    """Refuse new keys: a misspelt `model.atention=fused` would be ignored, and the answer would not show this.

    New keys of a GPU need a plus, and its specification checks them. Workloads that the user or a library defines have free
    options.

    Args:
        config: the composed configuration.
        base: that of its files alone.
        added: keys that were given with a plus.

    Raises:
        ConfigError: a key is new that nothing reads.
    """
    free = FREE_OPTIONS.get(str(config["model"].get("architecture")))
    known = {*flatten(base), *(key for key in added if key.startswith("gpu."))}
    for key in flatten(config):
        if key not in known and not (free and key.startswith(free)):
            raise ConfigError(unknown_option(key, base))


def unknown_option(key: str, base: Mapping[str, Any]) -> str:
    """One line that says which options there are; `base` is the configuration of the chosen files."""
    section, dot, name = key.partition(".")
    options = list(flatten(base))
    chosen = f" of {section}={base[section]['name']}" if dot and section in GROUPS else ""
    if section == "gpu" and is_known_key(name):
        return f"{key}: the file{chosen} does not state it: add it with +{key}=..."
    if key == "parallel.ep":
        return f"{key}: experts that are spread over GPUs are not predicted"
    if key == "global_batch":
        return (
            f"{key}: give batch_size, the samples of one GPU: the global batch divided by devices"
        )
    if section == "edit" and f"model.{name}" in options:
        return f"{key}: this is an option of {base['model']['name']}: write model.{name}=..."
    more = [
        group for group in (*GROUPS, "experiment", "results") if not key.startswith(f"{group}_")
    ]
    of_section = sorted(
        each.partition(".")[2] for each in options if each.startswith(f"{section}.")
    )
    listed = [each for each in of_section if not each.startswith(_NOT_OPTIONS)]
    there = f"its options are {', '.join(listed)}" if listed else "see config/README.md"
    of_free = FREE_OPTIONS.get(str(base["model"].get("architecture"))) if section == "model" else ""
    free = f"; options of its own: {of_free}{key.rpartition('.')[2]}=..." if of_free else ""
    return f"unknown option {key!r}{chosen}: {did_you_mean(key, [*options, *more])}{there}{free}"


_MODEL_FILES = {
    "timm": "models/*.py", "torchvision": "models/**/*.py",
    "transformers": "models/*/configuration_*.py",
}  # fmt: skip
"""Where a library defines its models."""


def models_of_libraries(name: str) -> str:
    """How to ask for a model that installed libraries have; their files are read, as an import would take seconds."""
    defined = re.compile(rf"^(?:def|class) {re.escape(name.partition('.')[0])}\(", re.MULTILINE)
    having = []
    for library, option in NAMED_BY.items():
        spec = find_spec(library)
        files = Path(str(spec.origin)).parent.glob(_MODEL_FILES[library]) if spec else ()
        if any(defined.search(file.read_text("utf-8")) for file in files):
            having.append(f"model={library} {option}={name}")
    return f"write {' or '.join(having)}; else " if having else ""


def check_precision(model: Mapping[str, Any]) -> None:
    """Refuse a model with half-precision parameters whose dtype is not a half precision.

    Raises:
        ConfigError: `precision` is pure, and `dtype` is neither bf16 nor fp16.
    """
    if model.get("precision") == "pure" and model.get("dtype") not in HALF_PRECISION_DTYPES:
        raise ConfigError(
            "model.precision=pure: it needs half precision, but"
            f" model.dtype={model.get('dtype') or 'default'}; set model.dtype=bf16 or fp16"
        )


def check_edit(section: Mapping[str, Any]) -> None:
    """Check the form of edits. Whether the step has such operators is known when the step is captured.

    Raises:
        ConfigError: a value is not a name or a list of names, or an edit lacks a part.
    """
    for key, value in section.items():
        option, mark = option_of(f"edit.{key}"), EDIT_MARKS[key]
        for name in value if isinstance(value, list) and value else [value]:
            parts = name.split(mark) if isinstance(name, str) and mark else [name]
            whole = name in option.words or (len(parts) > 1) == bool(mark)
            several = mark == "/" and len(parts) > 2
            if not isinstance(name, str) or not all(parts) or not whole or several:
                form = f"write edit.{key}={option.example}, or several as [a,b]"
                raise ConfigError(f"edit.{key}={written(value)}: {form}")
        if isinstance(value, list) and NO_EDIT in value:
            raise ConfigError(f"edit.{key}={written(value)}: {NO_EDIT} stands alone")


def example(key: str) -> str:
    """The end of a message: an example of a key that has no default, or an empty text."""
    given = option_of(key).example
    return f", for example {key}={given}" if given else ""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def _check(key: str, value: Any, default: Any) -> None:
    """Check a value against the kind of the file's: true or false, numbers, names, or lists of these."""
    option = option_of(key)
    listed = isinstance(default, list)
    first = default[0] if listed and default else default
    each = value if isinstance(value, list) else [value]
    if first in option.words and isinstance(value, int):
        first = 1
    # a number may stand where the file has none; image_size may be a list, too
    if first is None and option.whole:
        first, listed = 1, key == "model.image_size" and isinstance(value, list)
    as_usual = bool(each) and (option.each or isinstance(value, list) == listed)
    if isinstance(first, bool):
        fine = isinstance(value, bool) or value in option.words
        wanted = " or ".join(("true", "false", *option.words))
    elif isinstance(first, (int, float)):
        fits, wanted = _numbers(key, first)
        fine = as_usual and all(map(fits, each))
        wanted += " in brackets" * listed
    elif listed or isinstance(first, str):
        fine = (isinstance(value, list) or not listed) and bool(each)
        fine = fine and all(isinstance(name, str) for name in (each if listed else [value]))
        wanted = "names in brackets" if listed else "a name"
        wanted += example(key) or f", for example {key}={written(default)}"
    else:
        return
    if not fine:
        raise ConfigError(f"{key}={written(value)}: give {wanted}")


def _numbers(key: str, default: float) -> tuple[Callable[[Any], bool], str]:
    """Whether a value is a number that an option takes, and such numbers in words."""
    option = option_of(key)
    section, _, name = key.partition(".")
    usual_kind = SECTION_TYPES[section][name] if section in SECTION_TYPES else type(default)
    whole = option.whole if option.whole is not None else usual_kind is int and section != "gpu"
    least = option.least

    def fits(value: Any) -> bool:
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not known or not math.isfinite(value) or (whole and value != int(value)):
            return False
        return bool(value > 0 if least is None else value >= least) and value <= option.most

    above = "above 0" if least is None else f"{least:g} or above"
    below = f", at most {option.most:,g}" if option.most < math.inf else ""
    return fits, f"a {'whole ' if whole else ''}number {above}{below}"


def checked_batch_size(value: object) -> int:
    """A batch size that makes sense.

    Raises:
        ConfigError: it is no whole number of samples, or beyond what models cover.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"batch_size={value}: give a whole number of samples, 1 or more")
    if value > 10_000_000:
        raise ConfigError(
            f"batch_size={value}: more than 10,000,000 samples a step is beyond what the models"
            " cover"
        )
    return value
