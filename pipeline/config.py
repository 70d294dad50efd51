"""Turns command-line overrides into a grid of typed, fully resolved configurations.

Vocabulary:
  override: a Hydra override, `model.embedding=sparse`; several values (`batch_size=512,1024`) make a sweep.
  experiment: a named set of sweeps under `config/experiment/`.
  point: one GPU, one model and one batch size, with all other settings resolved.
  variant: short name of all overrides that change the result, except GPU, model and batch size.
  workload: the training step that runs: model, overrides of the model, batch size. It is the same for all methods.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.compose import (
    GROUPS,
    Override,
    choices,
    configuration,
    default_choices,
    experiment_overrides,
    parse_grid,
    refuse_repeated,
)
from pipeline.config_checks import check_sections, check_values, example, flatten
from pipeline.errors import ConfigError, UnknownNameError, did_you_mean
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import is_known_key
from pipeline.paths import config_dir
from pipeline.settings import KernelSettings, OverheadSettings, Settings
from pipeline.settings import section as plain_section
from pipeline.yaml_text import load_yaml

LOCAL_GPU = "local"
"""Name of the device of this machine: its CUDA GPU, or its CPU if it has no CUDA GPU."""

_METHODS = ("kernels", "overheads")
_NOT_IN_VARIANT = ("gpu", "model", "batch_size")
NAME = r"[A-Za-z0-9_\-]+"
"""Pattern of names of GPUs and models. Folders have these names, and Snakemake rules find them by this pattern."""
_MAX_LISTED = 32
"""A message lists the options of a section up to this number."""
_NOT_OPTIONS = ("name", "architecture", "aliases", "sources")
"""Keys of files that say what a file is; they are no options."""
_APPLIED_LATER = ("host_scale", "workers")
"""Settings of a method that do not change its fitted models and statistics."""


@dataclass(frozen=True)
class Point:
    """One grid point: what to predict, fully resolved."""

    gpu: str
    model: str
    variant: str
    batch_size: int
    settings: Settings
    overrides: tuple[str, ...]
    model_variant: str
    """The part of `variant` that belongs to the model; measured steps have it in their names."""
    edit_variant: str = ""
    """The part of `variant` that belongs to edits of the operators; empty without edits."""

    @property
    def workload(self) -> str:
        """Name of this workload in a host's overheads and in a campaign's steps."""
        return f"{self.model}/{self.model_variant}/b{self.batch_size}"

    @property
    def local(self) -> bool:
        """Whether this point is measured on this machine."""
        return self.gpu == LOCAL_GPU

    def section(self, name: str) -> dict[str, Any]:
        """One part of the configuration, as plain values."""
        return self.settings.section(name)


def method_label(settings: KernelSettings | OverheadSettings) -> str:
    """Label of a method's models or statistics: its file's name, and a hash of the settings that differ from that file.

    Two points never share models or statistics that were made with different settings.

    Args:
        settings: section `kernels` or `overheads` of a point.
    """
    name, section = settings.name, "kernels" if isinstance(settings, KernelSettings) else "overheads"
    usual = _read_once(config_dir() / section / f"{name}.yaml")
    differs = {key: value for key, value in sorted(plain_section(settings).items())
               if key not in _APPLIED_LATER and value != usual.get(key)}  # fmt: skip
    return f"{name}-{hashlib.sha256(repr(differs).encode()).hexdigest()[:8]}" if differs else name


@cache
def _read_once(path: Path) -> dict[str, Any]:
    """The content of a file of the configuration. Each point of a grid asks for the same ones."""
    content: dict[str, Any] = load_yaml(path.read_text(encoding="utf-8"))
    return content


def expand(overrides: Sequence[str]) -> list[Point]:
    """All points of a grid, in the order of the sweep.

    Args:
        overrides: Hydra overrides; several values separated by commas make a sweep, `experiment=NAME` a named one.

    Raises:
        UnknownNameError: a GPU, model, experiment or option does not exist.
        ConfigError: an override cannot be read, or a value makes no sense.
    """
    refuse_repeated(overrides)
    named = [text.partition("=")[2] for text in overrides if text.startswith("experiment=")]
    rest = [text for text in overrides if not text.startswith("experiment=")]
    if named:
        given = {text.partition("=")[0].lstrip("+") for text in rest}
        sweeps = experiment_overrides(named[0])
        rest = [f"{key}={values}" for key, values in sweeps.items() if key not in given] + rest
    shared: dict[tuple[str, ...], _Shared] = {}
    seen: dict[tuple[str, str, str, int], Point] = {}
    for one in parse_grid(rest):
        others = tuple(each for each in one if each.key != "batch_size")
        texts = tuple(each.text for each in others)
        if texts not in shared:
            shared[texts] = _all_but_batch_size(others)
        found = _at_batch_size(shared[texts], one)
        seen.setdefault((found.gpu, found.model, found.variant, found.batch_size), found)
    return list(seen.values())


def point(overrides: Sequence[str]) -> Point:
    """The single point that overrides without sweeps describe.

    Raises:
        UnknownNameError: a GPU, model or option does not exist.
        ConfigError: an override cannot be read, is a sweep, or a value makes no sense.
    """
    refuse_repeated(overrides)
    first, *others = parse_grid(overrides)
    if others:
        raise ConfigError(f"{' '.join(overrides)}: {len(others) + 1} points; give each option one value")
    return _point(first)


def _point(given: Sequence[Override]) -> Point:
    return _at_batch_size(_all_but_batch_size(tuple(each for each in given if each.key != "batch_size")), given)


def _at_batch_size(shared: _Shared, given: Sequence[Override]) -> Point:
    sizes = [each.value for each in given if each.key == "batch_size"]
    batch = _batch_size(*sizes or [shared.usual_batch])
    kept = tuple(each.text for each in given if each.key not in _NOT_IN_VARIANT)
    return Point(
        shared.settings.gpu["name"], shared.settings.model["name"], shared.variant, batch, shared.settings, kept,
        shared.model_variant, shared.edit_variant,
    )  # fmt: skip


@dataclass(frozen=True)
class _Shared:
    """What points that differ in their batch size have in common."""

    settings: Settings
    variant: str
    model_variant: str
    edit_variant: str
    usual_batch: Any
    """Batch size of the model's file, or None."""


def _all_but_batch_size(given: tuple[Override, ...]) -> _Shared:
    chosen = {each.key: _name_in_group(each) for each in given if each.key in GROUPS}
    values = [each for each in given if each.key not in GROUPS]
    config, base = _composed(chosen, values)
    usual_batch = config["model"].get("batch_size")
    for each in (config, base):
        each.pop("batch_size", None)
        each["model"] = {key: value for key, value in each["model"].items() if key != "batch_size"}
    gpu = str(config["gpu"]["name"])
    if config["model"].get("architecture") != base["model"].get("architecture"):
        raise ConfigError(
            f"model.architecture={config['model'].get('architecture')}: model={config['model']['name']} is of another; "
            "take model=NAME of that architecture (steptime models), or copy its file to a name of your own"
        )
    check_values(config, base)
    usual = default_choices()
    named = [f"{key}-{base[key]['name']}" for key in _METHODS if base[key]["name"] != usual[key]]
    model_variant = _variant({"model": config["model"]}, {"model": base["model"]})
    settings = Settings.of(config)
    if settings.edit and gpu == LOCAL_GPU:
        raise ConfigError(f"{settings.edit.texts[0]}: gpu=local is measured as it is; name a GPU, such as gpu=V100")
    edit_variant = _variant({"edit": config["edit"]}, {"edit": base["edit"]}) if settings.edit else ""
    return _Shared(settings, _variant(config, base, named), model_variant, edit_variant, usual_batch)


def from_snakemake(config: Mapping[str, Any]) -> list[str]:
    """Hydra overrides from Snakemake's `--config` values; `overrides="a=1 b.c=2"` carries keys that it rejects."""
    texts = []
    for key, value in config.items():
        if key == "overrides":
            texts += str(value).split()
        elif isinstance(value, Mapping):
            raise ConfigError(f'--config {key}=...: give dotted keys as overrides="{key}.name=value"')
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            texts.append(f"{key}={','.join(str(v) for v in values)}")
    return texts


def _composed(chosen: Mapping[str, str], values: Sequence[Override]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration of a point, and that of its files alone.

    Raises:
        ConfigError: an option does not exist, or has no value.
    """
    files = {group: None if (group, name) == ("gpu", LOCAL_GPU) else name for group, name in chosen.items()}
    # the values of `local` come from the machine
    local = {"gpu": {"name": LOCAL_GPU}} if chosen.get("gpu") == LOCAL_GPU else {}
    base = configuration(files)[0] | local
    check_sections(base)
    _check_names(chosen, base)
    try:
        found, missing = configuration(files, values)
    except KeyError as error:
        raise ConfigError(_unknown_option(error.args[0], base)) from None
    config = found | local
    _refuse_new_keys(config, base)
    _refuse_other_names(values)
    if absent := [key for key in missing if key != "batch_size"]:
        raise ConfigError("; ".join(f"give a value for {key}{example(key)}" for key in absent))
    return config, base


def _name_in_group(given: Override) -> str:
    """The file that `gpu=`, `model=`, `kernels=` or `overheads=` names; an alias of a GPU becomes its name.

    Raises:
        UnknownNameError: there is no such file.
        ConfigError: the value holds several names without commas.
    """
    group, name = given.key, given.value if isinstance(given.value, str) else given.text.partition("=")[2]
    if len(parts := name.replace(",", " ").split()) > 1 and isinstance(given.value, str):
        raise ConfigError(f"{group}={name}: write several values with commas and no spaces: {group}={','.join(parts)}")
    if group == "gpu":
        return name if name == LOCAL_GPU else load_gpu(name).name
    if name not in choices(group):
        raise UnknownNameError(group, name, choices(group))
    return name


def _check_names(chosen: Mapping[str, str], config: Mapping[str, Any]) -> None:
    """Check that a copied file states its own name: artifacts are stored in folders of that name."""
    for group, value in chosen.items():
        where, name = f"config/{group}/{value}.yaml", str(config[group]["name"])
        if name != value:
            raise ConfigError(f"{where}: name is {name!r}, expected {value!r} as the file is called")
        if not re.fullmatch(NAME, name):
            raise ConfigError(f"{where}: folders get this name: give it letters, digits, - and _ alone")


def _refuse_new_keys(config: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    """Refuse new keys: a misspelt `+model.atention=fused` would be ignored, and the answer would not show this.

    New keys of a GPU are checked by its specification. The user's own workload has free options below `model.options`.

    Raises:
        ConfigError: a key was added that nothing reads.
    """
    free = ("gpu.", "model.options.") if config["model"].get("architecture") == "custom" else ("gpu.",)
    known = {*flatten(base), "batch_size"}
    for key in flatten(config):
        if key not in known and not key.startswith(free):
            raise ConfigError(_unknown_option(key, base))


def _refuse_other_names(values: Sequence[Override]) -> None:
    """Refuse `model.name=...`: results would be stored under a name that is not the one of the file.

    Raises:
        ConfigError: an override changes the name of a group's file.
    """
    for each in values:
        group, _, key = each.key.partition(".")
        if group in GROUPS and key == "name":
            raise ConfigError(f"{each.text}: choose a file of config/{group}/ with {group}=NAME")


def _unknown_option(key: str, base: Mapping[str, Any]) -> str:
    """One line that says which options there are; `base` is the configuration of the chosen files."""
    section, known = key.partition(".")[0], list(flatten(base))
    chosen = f" of {section}={base[section]['name']}" if section in GROUPS and "." in key else ""
    if section == "gpu" and is_known_key(key.removeprefix("gpu.")):
        return f"{key}: the file{chosen} does not state it: add it with +{key}=..."
    close = did_you_mean(key, known) or did_you_mean(key, (*GROUPS, "experiment", "results"))
    own = sorted(each.partition(".")[2] for each in known if each.startswith(f"{section}."))
    listed = [each for each in own if not each.startswith(_NOT_OPTIONS)]
    there = f"its options are {', '.join(listed)}" if 0 < len(listed) <= _MAX_LISTED else "see config/README.md"
    if section == "edit" and f"model.{key.partition('.')[2]}" in known:
        return f"{key}: this is an option of {base['model']['name']}: write {key.replace('edit.', 'model.')}=..."
    own_step = base["model"].get("architecture") == "custom" and section == "model"
    free = f"; options of your own step: model.options.{key.rpartition('.')[2]}=..." if own_step else ""
    return f"unknown option {key!r}{chosen}: {close}{there}{free}"


def _batch_size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"batch_size={value}: give a whole number of samples, 1 or more")
    if value > 10_000_000:
        raise ConfigError(f"batch_size={value}: more than 10,000,000 samples a step is beyond what the models cover")
    return value


def _variant(config: Mapping[str, Any], base: Mapping[str, Any], named: Sequence[str] = ()) -> str:
    """Name of a variant: `default`, or the named methods and the settings that differ from the defaults.

    The defaults are those of the methods and of the model. A long name is replaced by a hash.
    """
    mine, theirs = flatten(config), flatten(base)
    ignored = {"batch_size", "model.batch_size"}
    differs = {k: mine.get(k) for k in sorted(mine.keys() | theirs.keys()) if mine.get(k) != theirs.get(k)}
    differs = {k: v for k, v in differs.items() if k not in ignored}
    if not differs and not named:
        return "default"
    short = {key: str(value).replace("::", ".") if key.startswith("edit.") else value for key, value in differs.items()}
    text = "_".join([*named, *(f"{key.removeprefix('model.')}-{value}" for key, value in short.items())])
    if len(text) <= 48 and re.fullmatch(r"[A-Za-z0-9_.\-]+", text):
        return text
    return "v" + hashlib.sha256(repr((list(named), differs)).encode()).hexdigest()[:10]
