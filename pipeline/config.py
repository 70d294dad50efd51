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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.config_checks import check_values, flatten
from pipeline.errors import ConfigError, UnknownNameError, did_you_mean
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import may_state
from pipeline.paths import config_dir
from pipeline.settings import KernelSettings, OverheadSettings, Settings
from pipeline.settings import section as plain_section
from pipeline.yaml_text import load_yaml

LOCAL_GPU = "local"
"""Name of the device of this machine: its CUDA GPU, or its CPU if it has no CUDA GPU."""

_PLAIN_BATCH = re.compile(r"batch_size=[1-9][0-9]*")
_GROUPS = ("gpu", "model", "kernels", "overheads")
_METHODS = ("kernels", "overheads")
_NOT_IN_VARIANT = ("gpu", "model", "batch_size")
NAME = r"[A-Za-z0-9_\-]+"
"""Pattern of names of GPUs and models. Folders have these names, and Snakemake rules find them by this pattern."""
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


def choices(group: str) -> list[str]:
    """Names that exist in a config group, in alphabetical order."""
    return sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))


def method_label(settings: KernelSettings | OverheadSettings) -> str:
    """Label of a method's models or statistics: its file's name, and a hash of the settings that differ from that file.

    Two points never share models or statistics that were made with different settings.

    Args:
        settings: section `kernels` or `overheads` of a point.
    """
    name, section = settings.name, "kernels" if isinstance(settings, KernelSettings) else "overheads"
    usual = load_yaml((config_dir() / section / f"{name}.yaml").read_text(encoding="utf-8"))
    differs = {key: value for key, value in sorted(plain_section(settings).items())
               if key not in _APPLIED_LATER and value != usual.get(key)}  # fmt: skip
    return f"{name}-{hashlib.sha256(repr(differs).encode()).hexdigest()[:8]}" if differs else name


def expand(overrides: Sequence[str]) -> list[Point]:
    """All points of a grid, in the order of the sweep.

    Args:
        overrides: Hydra overrides; several values separated by commas make a sweep, `experiment=NAME` a named one.

    Raises:
        UnknownNameError: a GPU, model, experiment or option does not exist.
        ConfigError: an override cannot be read, or a value makes no sense.
    """
    _refuse_repeated(overrides)
    full = _with_experiment(list(overrides))
    points = [point(batch) for batch in _split(full)]
    seen: dict[tuple[str, str, str, int], Point] = {}
    for each in points:
        seen.setdefault((each.gpu, each.model, each.variant, each.batch_size), each)
    return list(seen.values())


def point(overrides: Sequence[str]) -> Point:
    """The single point that overrides without sweeps describe.

    Raises:
        UnknownNameError: a GPU, model or option does not exist.
        ConfigError: an override cannot be read, or a value makes no sense.
    """
    given = tuple(_canonical(text) for text in overrides)
    config = _compose(given)
    _check_names(given, config)
    batch = config.get("batch_size")
    if batch is None:
        batch = config["model"].get("batch_size")
    config["batch_size"] = _batch_size(batch)
    config["model"].pop("batch_size", None)
    gpu, model = str(config["gpu"]["name"]), str(config["model"]["name"])
    # Hydra changes a given `zipf:1.05` to `zipf\\:1.05`
    rest = tuple(text.replace("\\:", ":") for text in given if text.split("=", 1)[0] not in _NOT_IN_VARIANT)
    # a value that the user must give (`model.target`) has no default, so neither configuration needs to be complete
    plain = _compose(tuple(text for text in given if text.split("=", 1)[0] in ("gpu", "model")), complete=False)
    base = _compose(tuple(text for text in given if text.split("=", 1)[0] in _GROUPS), complete=False)
    _refuse_new_keys(config, base, given)
    if config["model"].get("architecture") != base["model"].get("architecture"):
        raise ConfigError(
            f"model.architecture={config['model'].get('architecture')}: model={model} is of another; take model=NAME of "
            "that architecture (steptime models), or copy its file to a name of your own"
        )
    check_values(config, base)
    named = [f"{key}-{base[key]['name']}" for key in _METHODS if base[key]["name"] != plain[key]["name"]]
    model_variant = _variant({"model": config["model"]}, {"model": base["model"]})
    return Point(
        gpu, model, _variant(config, base, named), config["batch_size"], Settings.of(config), rest, model_variant
    )


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


def _refuse_repeated(overrides: Sequence[str]) -> None:
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


def _with_experiment(overrides: list[str]) -> list[str]:
    """Replace `experiment=NAME` by its sweeps; the other overrides have priority over them."""
    names = [text.split("=", 1)[1] for text in overrides if text.startswith("experiment=")]
    rest = [text for text in overrides if not text.startswith("experiment=")]
    if not names:
        return rest
    from omegaconf import OmegaConf

    if names[-1] not in choices("experiment"):
        raise UnknownNameError("experiment", names[-1], choices("experiment"))
    loaded = OmegaConf.to_container(OmegaConf.load(config_dir() / "experiment" / f"{names[-1]}.yaml"))
    assert isinstance(loaded, dict)
    sweeps = loaded["hydra"]["sweeper"]["params"]
    given = {text.split("=", 1)[0].lstrip("+") for text in rest}
    return [f"{key}={value}" for key, value in sweeps.items() if key not in given] + rest


def _split(overrides: Sequence[str]) -> list[list[str]]:
    """One list of overrides per point of the sweep."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Glob
    from hydra.errors import HydraException

    parser, parsed = OverridesParser.create(), []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException:
            key, options = text.partition("=")[0], (*_GROUPS, "experiment", "batch_size", "overrides", "results")
            close = "" if key in options else did_you_mean(key, options)
            raise ConfigError(
                f"cannot read the override {text!r}: {close}write key=value, several values as a,b"
            ) from None
        if parsed[-1].is_sweep_override() and isinstance(pattern := parsed[-1].value(), Glob):
            group = parsed[-1].key_or_group
            names = pattern.filter(choices(group)) if group in _GROUPS else []
            if not names:
                raise ConfigError(f"{text}: no name fits this pattern, which {' and '.join(_GROUPS)} may have")
            parsed[-1] = parser.parse_override(f"{group}={','.join(names)}")
    texts: dict[str, list[str]] = {}
    for override in parsed:  # the last value of a repeated key is used
        key = override.get_key_element()
        if not override.is_sweep_override():
            texts[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            texts[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise ConfigError(f"{override.input_line}: a range without steps; write several values as a,b")
    return [list(point) for point in product(*texts.values())]


def _canonical(text: str) -> str:
    """The override with GPU aliases replaced; an unknown name of a group is refused with the choices in the message."""
    key, _, value = text.partition("=")
    if key == "gpu":
        return text if value == LOCAL_GPU else f"gpu={load_gpu(value).name}"
    if key in _GROUPS and value not in choices(key):
        raise UnknownNameError(key, value, choices(key))
    return text


def _check_names(given: Iterable[str], config: Mapping[str, Any]) -> None:
    """Check that a copied file states its own name: artifacts are stored in folders of that name."""
    for group, _, value in (text.partition("=") for text in given):
        if group not in _GROUPS:
            continue
        where, name = f"config/{group}/{value}.yaml", str(config[group]["name"])
        if name != value:
            raise ConfigError(f"{where}: name is {name!r}, expected {value!r} as the file is called")
        if not re.fullmatch(NAME, name):
            raise ConfigError(f"{where}: folders get this name: give it letters, digits, - and _ alone")


def _refuse_new_keys(config: Mapping[str, Any], base: Mapping[str, Any], given: Sequence[str]) -> None:
    """Refuse new keys: a misspelt `+model.atention=fused` would be ignored, and the answer would not show this.

    New keys of a GPU are checked by its specification. New keys of the user's own workload are allowed.

    Raises:
        ConfigError: a key was added that nothing reads.
    """
    free = ("gpu.", "model.") if config["model"].get("architecture") == "custom" else ("gpu.",)
    known = flatten(base)
    for key in flatten(config):
        if key not in known and key != "batch_size" and not key.startswith(free):
            raise ConfigError(_unknown_option(key, known, given))


@lru_cache(maxsize=256)
def _compose_text(overrides: tuple[str, ...], directory: str) -> tuple[str, tuple[str, ...]]:
    """The composed configuration as YAML, and the keys that have no value yet."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(directory, version_base="1.3"):
            composed = compose("config", overrides=list(overrides))
            missing = OmegaConf.missing_keys(composed) - {"batch_size"}
            if OmegaConf.is_missing(composed, "batch_size"):
                composed.batch_size = None
            return OmegaConf.to_yaml(composed, resolve=True), tuple(sorted(missing))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error, _known_keys(overrides, directory), overrides)) from None


def _known_keys(overrides: tuple[str, ...], directory: str) -> list[str]:
    """Every key of the configuration with the chosen groups, for a suggestion in an error message."""
    groups = tuple(text for text in overrides if text.split("=", 1)[0] in _GROUPS)
    if groups == overrides:  # the choice of groups itself failed
        return []
    return list(flatten(load_yaml(_compose_text(groups, directory)[0])))


def _compose(overrides: tuple[str, ...], complete: bool = True) -> dict[str, Any]:
    local = f"gpu={LOCAL_GPU}" in overrides  # has no file: its values come from the machine, not from the configuration
    # nothing refers to the batch size, so points that differ only in it are composed once
    sizes = [text for text in overrides if _PLAIN_BATCH.fullmatch(text)]
    asked = tuple("~gpu" if text == f"gpu={LOCAL_GPU}" else text for text in overrides if text not in sizes)
    text, missing = _compose_text(asked, str(Path(config_dir()).resolve()))
    if missing and complete:
        raise ConfigError(f"give a value for {', '.join(missing)}")
    loaded: dict[str, Any] = load_yaml(text)
    if sizes:
        loaded["batch_size"] = int(sizes[-1].partition("=")[2])
    return loaded | ({"gpu": {"name": LOCAL_GPU}} if local else {})


def _explain(error: Exception, keys: Iterable[str], overrides: Iterable[str]) -> str:
    """Hydra's message as one line with a remedy; `keys` are those that exist for the groups among `overrides`."""
    text = str(error)
    key = re.search(r"Could not override '([^']+)'", text)
    return _unknown_option(key.group(1), keys, overrides) if key else f"configuration: {_first_line(error)}"


def _unknown_option(key: str, keys: Iterable[str], overrides: Iterable[str]) -> str:
    section = key.partition(".")[0]
    chosen = next((each for each in overrides if each.startswith(f"{section}=") and section in _GROUPS), None)
    if section == "gpu" and may_state(key.removeprefix("gpu.")):
        return f"{key}: the file{f' of {chosen}' if chosen else ''} does not state it: add it with +{key}=..."
    close = did_you_mean(key, keys) or did_you_mean(key, (*_GROUPS, "experiment"))
    owner = f" of {chosen}" if chosen else ""
    add = f"; add a new key with +{key}=..." if chosen == "model=custom" else ""
    return f"unknown option {key!r}{owner}: {close}see config/README.md{add}"


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
    text = "_".join([*named, *(f"{key.removeprefix('model.')}-{value}" for key, value in differs.items())])
    if len(text) <= 48 and re.fullmatch(r"[A-Za-z0-9_.\-]+", text):
        return text
    return "v" + hashlib.sha256(repr((list(named), differs)).encode()).hexdigest()[:10]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
