"""Reads overrides and composes configurations with Hydra.

Each text is parsed once. Hydra composes each file of a group (GPU, model, kernels, overheads) once, with one choice of the
other groups: a file's values do not depend on them. The other overrides of a point are applied to a copy of the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.digest import module_digest
from pipeline.errors import ConfigError, UnknownNameError, did_you_mean, shown
from pipeline.model_files import DIGEST_KEY, read_json, write_json
from pipeline.paths import config_dir
from pipeline.user_cache import kept
from pipeline.yaml_text import YamlError, load_yaml

if TYPE_CHECKING:
    from omegaconf import DictConfig

GROUPS = ("gpu", "model", "kernels", "overheads")
"""Config groups: folders under `config/` of which a point takes one file each."""


Chosen = tuple[tuple[str, str | None], ...]
"""Pairs of a config group and the name of its file; None leaves the group out."""

Composed = tuple[dict[str, Any], tuple[str, ...]]
"""Plain values, and the keys without a value."""

_VALUE = r"(?:[A-Za-z_][\w-]*|[1-9]\d{0,17})"
_PLAIN = re.compile(rf"(?P<key>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=(?P<values>{_VALUE}(?:,{_VALUE})*)", re.ASCII)
"""Overrides with plain names and whole numbers only. They need no parser: importing Hydra takes 0.1 s."""

_OTHER_WORDS = frozenset(("true", "false", "null", "inf", "nan"))
"""Words that are values of another kind for Hydra."""


@dataclass(frozen=True)
class Override:
    """One parsed override with a single value: `model.dim=32`, or `+gpu.pcie_lanes=8` that adds a key."""

    key: str
    value: Any = field(compare=False)
    text: str
    """The override as it can be given again."""
    plus: str = ""
    """`+` if the key is new, `++` if it may be."""


def forget() -> None:
    """Forget what was composed in this process, so that changed files are read again."""
    _KNOWN.clear()
    _changed.cache_clear()


def choices(group: str) -> list[str]:
    """Names that exist in a config group, in alphabetical order."""
    return sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))


def parse_grid(texts: Sequence[str]) -> list[tuple[Override, ...]]:
    """The overrides of each point of a sweep, in the order of the sweep.

    Raises:
        ConfigError: an override cannot be read, or its values cannot be listed.
    """
    return list(product(*(_values(text) for text in texts)))


def experiment_overrides(name: str) -> dict[str, str]:
    """The sweeps of an experiment: values separated by commas, by key.

    Raises:
        UnknownNameError: there is no such experiment.
    """
    from omegaconf import OmegaConf

    if name not in choices("experiment"):
        raise UnknownNameError("experiment", name, choices("experiment"))
    _checked(file := config_dir() / "experiment" / f"{name}.yaml")
    sweeps = OmegaConf.select(OmegaConf.load(file), "hydra.sweeper.params")
    return {str(key): str(value) for key, value in sweeps.items()}


def default_choices() -> dict[str, str]:
    """The file of each group that is used if none is chosen, as `config/config.yaml` states it."""
    return _default_choices(config_dir())


@lru_cache(maxsize=8)
def _default_choices(directory: Path) -> dict[str, str]:
    values = _checked(file := directory / "config.yaml")
    stated = values.get("defaults") if isinstance(values, dict) else None
    named = [each for each in stated if isinstance(each, dict)] if isinstance(stated, list) else []
    found = {group: name for each in named for group, name in each.items()}
    if wrong := [group for group in GROUPS if not isinstance(found.get(group), str)]:
        raise ConfigError(
            f"{file}: its list `defaults` names no file of {wrong[0]}; write for example `- {wrong[0]}: NAME`"
        )
    return found


def _checked(file: Path) -> Any:
    """The values of a configuration file; Hydra would take minutes for a few lines of aliases of aliases.

    Raises:
        ConfigError: it cannot be read, or is not YAML.
    """
    try:
        return load_yaml(_text_of(file))
    except YamlError as error:
        raise ConfigError(f"{file}: not readable as YAML ({_first_line(error)})") from None


def _text_of(file: Path) -> str:
    """The text of a configuration file.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not readable ({getattr(error, 'strerror', None) or error})") from None


def configuration(
    chosen: Mapping[str, str | None], overrides: Iterable[Override] = ()
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The plain values of a configuration, and the keys that still have no value. The values are shared: do not change them.

    Args:
        chosen: name of the file of each group that is not the default; None leaves the group out.
        overrides: values for other keys.

    Raises:
        KeyError: an override names a key that the configuration does not have, without a plus.
        ConfigError: a file cannot be composed, or an override cannot be applied.
    """
    return _configuration(tuple(chosen.items()), tuple(overrides), config_dir().resolve())


def _configuration(chosen: Chosen, overrides: tuple[Override, ...], directory: Path) -> Composed:
    values, missing = _of_files(chosen, directory)
    if not overrides:
        return values, missing
    names = {**_default_choices(directory), **dict(chosen)}
    touched = {_section(each.key) for each in overrides}
    if any("$" in each.text for each in overrides):  # such a value may come from any section
        touched = set(values)
    files = tuple((each, names.get(each)) for each in sorted(touched))
    changed, absent = _changed(files, overrides, directory)
    kept = [key for key in missing if _section(key) not in touched]
    return {**values, **changed}, tuple(sorted({*kept, *absent}))


def _section(key: str) -> str:
    return key.partition(".")[0]


@lru_cache(maxsize=4096)
def _changed(files: Chosen, overrides: tuple[Override, ...], directory: Path) -> Composed:
    """Sections after overrides; `files` are their names, each with the name of its file if it is a group."""
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

    rest = _KNOWN[directory, "", None][0]
    whole = {section: _KNOWN[directory, section, name][0] if name else rest[section]
             for section, name in files if name or section in rest}  # fmt: skip
    config = OmegaConf.create(whole)
    OmegaConf.set_struct(config, True)
    try:
        for each in overrides:
            exists = OmegaConf.select(config, each.key, throw_on_missing=False) is not None
            if each.plus == "+" and exists and not isinstance(each.value, (dict, list)):
                raise ConfigError(f"{each.text}: the configuration has {each.key}: write it without the plus")
            if isinstance(OmegaConf.select(config, each.key), Mapping) and not isinstance(each.value, dict):
                raise ConfigError(f"{each.text}: {each.key} is a section: write {each.key}.KEY=value")
            # no file lists the options of the user's own step: they need no plus
            free = bool(each.plus) or f"{each.key}.".startswith("model.options.")
            try:
                OmegaConf.update(config, each.key, each.value, merge=True, force_add=free)
            except (ConfigAttributeError, ConfigKeyError):
                raise KeyError(each.key) from None
        return _plain(config)
    except OmegaConfBaseException as error:
        raise ConfigError(f"configuration: {_first_line(error)}") from None


_KNOWN: dict[tuple[Path, str, str | None], tuple[Any, tuple[str, ...]]] = {}
"""Values of each file of a group that was composed, and its keys without a value; the rest has the group `""`."""


def _of_files(chosen: Chosen, directory: Path) -> Composed:
    """The configuration of the chosen files, put together from files that were composed before where all were."""
    names: dict[str, str | None] = {"": None, **_default_choices(directory), **dict(chosen)}
    places = [(directory, group, name) for group, name in names.items()]
    if not all(place in _KNOWN for place in places):
        values, missing = _files_alone(chosen, directory)
        for place in places:
            inside = [key for key in missing if (key.partition(".")[0] if "." in key else "") == place[1]]
            own = values.get(place[1]) if place[1] else {key: values[key] for key in values if key not in GROUPS}
            _KNOWN[place] = own, tuple(inside)
    found = [_KNOWN[place] for place in places]
    groups = {place[1]: part for place, (part, _) in zip(places, found, strict=True) if place[1] and place[2]}
    return {**groups, **found[0][0]}, tuple(sorted(key for _, inside in found for key in inside))


def _files_alone(chosen: Chosen, directory: Path) -> Composed:
    """The configuration of the chosen files, kept between runs while the files are unchanged."""
    names = {**_default_choices(directory), **dict(chosen)}
    files = [directory / "config.yaml", *(directory / group / f"{name}.yaml" for group, name in names.items() if name)]
    parts = {
        "files": [_text_of(file) for file in files if file.is_file()],
        "chosen": chosen,
        "code": module_digest("pipeline.compose"),
    }

    def composed() -> Composed:
        for file in files:
            if file.is_file():
                _checked(file)
        return _plain(_compose(chosen, directory))

    return kept("config.json", parts, composed, _read, _write)


def _read(path: Path) -> Composed:
    stored = read_json(path, "it is made anew", (DIGEST_KEY, "values", "missing"))
    return stored["values"], tuple(stored["missing"])


def _write(made: Composed, path: Path) -> None:
    write_json(path, {"values": made[0], "missing": made[1]}, sealed=True)


def _plain(config: DictConfig) -> Composed:
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}, tuple(sorted(OmegaConf.missing_keys(config)))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def refuse_repeated(overrides: Sequence[str]) -> None:
    """Refuse a repeated key: `batch_size=512 batch_size=1024` would be answered for only one of the two.

    Raises:
        ConfigError: a key is given twice, taken away, or missing.
    """
    given: dict[str, str] = {}
    for text in overrides:
        key = text.partition("=")[0].lstrip("+")
        if not key.strip():
            raise ConfigError(f"{text!r} names no option: write key=value, for example gpu=V100")
        if key.startswith("~"):
            raise ConfigError(f"{text}: every option has a value: write {key[1:]}=value")
        if key in given:
            raise ConfigError(f"{given[key]} and {text}: give {key} once, several values as {key}=a,b")
        given[key] = text


def _values(text: str) -> list[Override]:
    """One override for each value of a text.

    Raises:
        ConfigError: the text cannot be read, or its values cannot be listed.
    """
    if plain := _PLAIN.fullmatch(text):
        key, values = plain["key"], plain["values"].split(",")
        if not any(value.lower() in _OTHER_WORDS for value in values):
            return [Override(key, int(value) if value.isdecimal() else value, f"{key}={value}") for value in values]
    from hydra.core.override_parser.types import Glob

    parsed = _parse(text)
    key, plus = parsed.key_or_group, "++" if parsed.is_force_add() else "+" if parsed.is_add() else ""
    if not parsed.is_sweep_override():
        written = parsed.get_value_element_as_str().replace("\\:", ":")  # Hydra writes `zipf:1.05` as `zipf\:1.05`
        written = written.lower() if isinstance(parsed.value(), bool) else written  # Hydra writes `true` as `True`
        return [Override(key, parsed.value(), f"{plus}{key}={written}", plus)]
    if isinstance(pattern := parsed.value(), Glob):
        names = pattern.filter(choices(key)) if key in GROUPS else []
        if not names:
            raise ConfigError(f"{text}: no name fits this pattern, which {' and '.join(GROUPS)} may have")
        return [Override(key, name, f"{key}={name}", plus) for name in names]
    if not parsed.is_discrete_sweep():
        raise ConfigError(f"{text}: a range without steps; write several values as a,b")
    texts = [f"{plus}{key}={value}" for value in parsed.sweep_string_iterator()]
    return [single for each in texts for single in _values(each)]


@lru_cache(maxsize=4096)
def _parse(text: str) -> Any:
    """Hydra's override of a text.

    Raises:
        ConfigError: the text cannot be read.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except (HydraException, ValueError, RecursionError):  # Python converts no number of thousands of digits
        key, options = text.partition("=")[0], (*GROUPS, "experiment", "batch_size", "overrides", "results")
        close = "" if key in options else did_you_mean(key, options)
        raise ConfigError(
            f"cannot read the override {shown(text)}: {close}write key=value, several values as a,b"
        ) from None


def _compose(chosen: Chosen, directory: Path) -> DictConfig:
    """The chosen files, composed by Hydra; None leaves a group out.

    Raises:
        ConfigError: a file is missing or damaged.
    """
    import yaml
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(directory), version_base="1.3"):
            return compose("config", overrides=[f"~{key}" if name is None else f"{key}={name}" for key, name in chosen])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"configuration: {_first_line(error)}") from None
    except (yaml.YAMLError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        names = ", ".join(f"{group}/{name}.yaml" for group, name in chosen if name)
        raise ConfigError(
            f"{directory}: {names or 'a file'} is damaged ({' '.join(str(error).split())[:300]})"
        ) from None
