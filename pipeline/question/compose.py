"""Reads overrides with Hydra, and composes the files of `config/` with them: `config.yaml` and one file of each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, UnknownNameError, did_you_mean, first_line, shown
from pipeline.hardware.spec import RUN_AT
from pipeline.paths import config_dir, config_files, files_by_name, name_of_config
from pipeline.question.checks import flatten
from pipeline.question.options import GROUPS, SYNONYMS, with_defaults
from pipeline.question.settings import written
from pipeline.yaml_text import read_mapping

ROOT = "config"
"""The file that names the default of each group, and holds the sections that are no group."""

NAMES = (*GROUPS, "host", "cluster", "experiment")
"""Options whose values are names of files, so that a pattern may stand for several."""

SWEPT = (*GROUPS, "host", "cluster", "devices", "nodes", "batch_size")
"""Options for which a list in Python or in the file of an experiment is a sweep."""

WORDS = (
    *SWEPT, "experiment", "overrides", "results",
    "step", "batch", "loss", "optimizer", "procedure",
)  # fmt: skip
"""Options without a dot, and objects that Python's `predict` takes."""


@dataclass(frozen=True)
class Override:
    """One parsed override with a single value: `model.dim=32`, or `+gpu.pcie_lanes=8` that adds a key."""

    key: str
    value: Any = field(compare=False)
    text: str
    """The override as it can be given again."""
    plus: str = ""
    """`+` if the key is new, `++` if it may be."""


Point = tuple[Override, ...]
Completed = Callable[[Point], Iterable[Point]]
"""What gives the points that a point of a grid stands for."""


def forget() -> None:
    """Forget what was composed in this process, so that changed files are read again."""
    _SECTIONS.clear()
    _read_shipped.cache_clear()
    files_by_name.cache_clear()


def choices(group: str) -> list[str]:
    """Names that exist in a config group, in alphabetical order."""
    return sorted(config_files(group))


def parse_grid(texts: Sequence[str]) -> list[tuple[Override, ...]]:
    """The overrides of each point of a sweep, in the order of the sweep.

    Raises:
        ConfigError: an override cannot be read, or its values cannot be listed.
    """
    return list(product(*(_values(text) for text in texts)))


def experiments(text: str) -> list[dict[str, str]]:
    """The sweeps of each experiment that `experiment=...` names: values separated by commas, by key.

    Raises:
        UnknownNameError: there is no such experiment.
        ConfigError: a file cannot be read, or is not that of an experiment.
    """
    return [_experiment(override.text.partition("=")[2]) for override in _values(text)]


def _experiment(named: str, below: tuple[Path, ...] = ()) -> dict[str, str]:
    """The sweeps of one experiment, in the order of its defaults list, its values, and `hydra.sweeper.params`."""
    name, files = name_of_config("experiment", named, _sweeps_in), config_files("experiment")
    if name not in files:
        raise UnknownNameError("experiment", named, list(files))
    file = files[name]
    content = _sweeps_in(file)
    sweeps: dict[str, str] = {}
    if file in below:
        raise ConfigError(f"{file}: builds on itself")
    stated = content.pop("defaults", None) or []
    for entry in stated if isinstance(stated, list) else [stated]:
        if isinstance(entry, str) and entry != "_self_":
            sweeps |= _experiment(entry.removeprefix("/experiment/"), (*below, file))
        for key, value in entry.items() if isinstance(entry, dict) else ():
            group = str(key).removeprefix("override ").removeprefix("/")
            if group not in GROUPS or not value:
                raise ConfigError(
                    f"{file}: defaults: {entry}: write `override /GROUP: NAME` for one of"
                    f" {', '.join(GROUPS)}"
                )
            sweeps[group] = sweep(group, value)
    swept: Any = content.pop("hydra", None)
    for key in ("sweeper", "params"):
        swept = swept.get(key) if isinstance(swept, dict) else swept
    if not isinstance(swept or {}, dict):
        raise ConfigError(f"{file}: hydra.sweeper.params: write KEY: VALUE,VALUE in it")
    return sweeps | {
        key: sweep(key, value) for key, value in {**flatten(content), **(swept or {})}.items()
    }


def _sweeps_in(file: Path) -> dict[str, Any]:
    wanted = "sweeps, so it is not the file of an experiment: write for example `defaults: "
    return read_mapping(file, wanted + "[override /gpu: V100]`")


def sweep(key: str, value: Any) -> str:
    """A value of an experiment or of Python as it is typed; a list is a sweep, but one list where the option itself is a list."""
    swept = isinstance(value, (list, tuple)) and key in SWEPT
    return ",".join(map(str, value)) if swept else written(value)


def from_snakemake(config: Mapping[str, Any]) -> list[str]:
    """Hydra overrides from Snakemake's `--config` values; `overrides="a=1 b.c=2"` carries keys that it rejects."""
    texts = []
    for key, value in config.items():
        if key == "overrides":
            texts += str(value).split()
        elif isinstance(value, Mapping):
            raise ConfigError(
                f'--config {key}=...: give dotted keys as overrides="{key}.name=value"'
            )
        else:
            texts.append(f"{key}={sweep(key, value)}")
    return texts


def default_choices() -> dict[str, str]:
    """The file of each group that is used if none is chosen, as `config/config.yaml` states it."""
    file = config_dir() / f"{ROOT}.yaml"
    stated = _read_shipped(file).get("defaults")
    entries = stated if isinstance(stated, list) else []
    defaults = dict(pair for entry in entries if isinstance(entry, dict) for pair in entry.items())
    if unnamed := [group for group in GROUPS if not isinstance(defaults.get(group), str)]:
        raise ConfigError(
            f"{file}: its list `defaults` names no file of {unnamed[0]}; write for example `-"
            f" {unnamed[0]}: NAME`"
        )
    return defaults


def configuration(
    chosen: Mapping[str, str | None], overrides: Sequence[Override] = ()
) -> dict[str, Any]:
    """The plain values of a configuration; `???` is that of a key that still has none.

    Args:
        chosen: name of the file of each group that is not the default; None leaves the group out.
        overrides: values for other keys, new ones too.

    Raises:
        ConfigError: a file cannot be read, or an override cannot be applied.
    """
    directory, defaults = config_dir(), default_choices()
    names, of_user = {**defaults, **chosen}, {}
    for group, name in names.items():
        file = None if name is None else config_files(group).get(name)
        if file and file.parent != directory / group:
            # Hydra does not see a user's file, which may be edited while this process runs
            of_user[group], names[group] = _yaml_in(file), defaults[group]
    sections = {**_composed(directory, names), **of_user}
    if "model" in sections:
        sections["model"] = with_defaults(sections["model"])
    if "gpu" in sections:  # how a card is run: options of every GPU
        sections["gpu"] = {**dict.fromkeys(RUN_AT), **sections["gpu"]}
    touched = {override.key.partition(".")[0] for override in overrides}
    if any("$" in each.text for each in overrides) or "${" in repr(sections):  # to any section
        touched |= set(sections)
    if touched:
        changed = {name: values for name, values in sections.items() if name in touched}
        sections |= _with_overrides(changed, overrides)
    return sections


def _with_overrides(sections: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """Sections after overrides. Errors are those of `configuration`."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = OmegaConf.create(dict(sections))
        for override in overrides:
            _apply(override, config)
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"configuration: {first_line(error)}") from None
    return {str(name): values for name, values in plain.items()}


def _apply(override: Override, config: Any) -> None:
    """Set the value of one override."""
    from omegaconf import OmegaConf

    key, value = override.key, override.value
    present = OmegaConf.select(config, key, throw_on_missing=False)
    if override.plus == "+" and present is not None and not isinstance(value, (dict, list)):
        raise ConfigError(
            f"{override.text}: the configuration has {key}: write it without the plus"
        )
    if isinstance(present, Mapping) and not isinstance(value, dict):
        raise ConfigError(f"{override.text}: {key} is a section: write {key}.KEY=value")
    OmegaConf.update(config, key, value, merge=True, force_add=True)


_SECTIONS: dict[tuple[Path, str, str | None], Any] = {}
"""What Hydra composed from the file of a group; sections of `config.yaml` that are no group have the name None."""


def _composed(directory: Path, names: Mapping[str, str | None]) -> dict[str, Any]:
    """The sections that Hydra composes. Each file is composed once: its values do not depend on the choice of other groups.

    Args:
        directory: the folder of the configuration.
        names: the file of each group; None leaves the group out.
    """
    if any(name and (directory, group, name) not in _SECTIONS for group, name in names.items()):
        for section, values in _compose(directory, names).items():
            _SECTIONS.setdefault((directory, section, names.get(section)), values)
    return {
        section: values
        for (folder, section, name), values in _SECTIONS.items()
        if folder == directory and name == names.get(section)
    }


def _compose(directory: Path, names: Mapping[str, str | None]) -> dict[str, Any]:
    """What Hydra composes from files, by section, without interpolation."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for group, name in [*default_choices().items(), *names.items()]:
        if name is not None:  # Hydra would take minutes for a few lines of aliases of aliases
            _read_shipped(directory / group / f"{name}.yaml")
    GlobalHydra.instance().clear()
    chosen = [f"~{group}" if name is None else f"{group}={name}" for group, name in names.items()]
    try:
        with initialize_config_dir(str(directory.resolve()), version_base="1.3"):
            composed: Any = OmegaConf.to_container(compose(ROOT, overrides=chosen), resolve=False)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"configuration: {first_line(error)}") from None
    return {str(section): values for section, values in composed.items()}


@lru_cache(maxsize=1024)
def _read_shipped(file: Path) -> dict[str, Any]:
    return _yaml_in(file)


def _yaml_in(file: Path) -> dict[str, Any]:
    return read_mapping(file, "options and their values")


def with_names_of_today(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides with the names that options have today, and a sentence on each that has got another."""
    old, new = "ddp.", "parallel."
    keys = [text.partition("=")[0] for text in texts]
    notes = [f"{key} is called {new}{key[len(old) :]}" for key in keys if key.startswith(old)]
    texts = [new + text[len(old) :] if text.startswith(old) else text for text in texts]
    loading = [f"predict.{text}".replace("/s", "") for text in texts if text.startswith("loader=")]
    return [text for text in texts if not text.startswith("loader=")] + loading, notes


def refuse_repeated(texts: Sequence[str]) -> None:
    """Refuse a repeated key: `batch_size=512 batch_size=1024` would be answered for only one of the two.

    Raises:
        ConfigError: a key is given twice, taken away, or missing.
    """
    text_of: dict[str, str] = {}
    for text in texts:
        key = text.partition("=")[0].lstrip("+")
        if not key.strip():
            raise ConfigError(f"{text!r} names no option: write key=value, for example gpu=V100")
        if key.startswith("~"):
            raise ConfigError(f"{text}: every option has a value: write {key[1:]}=value")
        if key in text_of:
            raise ConfigError(
                f"{text_of[key]} and {text}: give {key} once, several values as {key}=a,b"
            )
        text_of[key] = text


def _values(text: str) -> list[Override]:
    """One override for each value of a text."""
    from hydra.core.override_parser.types import Glob

    parsed = _parse(text)
    key = parsed.key_or_group
    plus = "++" if parsed.is_force_add() else "+" if parsed.is_add() else ""
    if not parsed.is_sweep_override():
        # Hydra writes `zipf:1.05` as `zipf\:1.05`, and `true` as `True`
        typed = parsed.get_value_element_as_str().replace("\\:", ":")
        typed = typed.lower() if isinstance(parsed.value(), bool) else typed
        value = SYNONYMS.get(key, {}).get(typed, parsed.value())
        return [Override(key, value, f"{plus}{key}={typed}", plus)]
    if isinstance(pattern := parsed.value(), Glob):
        if key not in NAMES:
            raise ConfigError(f"{text}: only {', '.join(NAMES)} may have a pattern")
        if not (names := pattern.filter(choices(key))):
            raise ConfigError(
                f"{text}: no {key} has a name like this; choose among {', '.join(choices(key))}"
            )
        return [Override(key, name, f"{key}={name}", plus) for name in names]
    if not parsed.is_discrete_sweep():
        raise ConfigError(f"{text}: a range without steps; write several values as a,b")
    return [
        single
        for value in parsed.sweep_string_iterator()
        for single in _values(f"{plus}{key}={value}")
    ]


@lru_cache(maxsize=4096)
def _parse(text: str) -> Any:
    """Hydra's override of a text."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    # a ValueError: Python converts no number of thousands of digits
    except (HydraException, ValueError, RecursionError):
        key = text.partition("=")[0]
        close = "" if key in WORDS else did_you_mean(key, WORDS)
        raise ConfigError(
            f"cannot read the override {shown(text)}: {close}write key=value, several values as a,b"
        ) from None
