"""The configuration of the files that overrides choose, and of the values that they change, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.hardware import find_gpu
from pipeline.hardware.find_gpu import LOCAL, list_gpus, load_gpu
from pipeline.hardware.spec import has_bf16
from pipeline.question.checks import (
    check_sections,
    example,
    flatten,
    models_of_libraries,
    refuse_new_keys,
)
from pipeline.question.compose import (
    Override,
    choices,
    configuration,
    default_choices,
)
from pipeline.question.options import GROUPS, NAMED_BY
from pipeline.yaml_text import check_name


def composed(
    chosen: Mapping[str, str], values: Sequence[Override]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration of a question, and that of its files alone."""
    files = {
        group: None if (group, name) == ("gpu", LOCAL) else name for group, name in chosen.items()
    }
    # the values of `local` come from the machine
    local = {"gpu": {"name": LOCAL}} if chosen.get("gpu") == LOCAL else {}
    base = configuration(files) | local
    check_sections(base)
    for group, name in chosen.items():  # a copied file must get a name of its own
        check_name(f"config/{group}/{name}.yaml", base[group]["name"], name)
    config = configuration(files, values)
    if local:
        config["gpu"] = {**local["gpu"], **config.get("gpu", {})}
    added = [override.key for override in values if override.plus and not local]
    refuse_new_keys(config, base, added)
    model, architecture = config["model"]["name"], config["model"].get("architecture")
    if architecture != base["model"].get("architecture"):
        raise ConfigError(
            f"model.architecture={architecture}: model={model} is of another; take model=NAME of"
            " that architecture (steptime models), or copy its file to a name of your own"
        )
    named_by = NAMED_BY.get(str(architecture), "")
    _refuse_other_names(values, named_by)
    nameless = named_by == "model.name" and not any(
        override.key == "model.name" for override in values
    )
    missing = sorted(key for key, value in flatten(config).items() if value == "???")
    if absent := [*(key for key in missing if key != "batch_size"), *["model.name"] * nameless]:
        raise ConfigError("; ".join(f"give a value for {key}{example(key)}" for key in absent))
    return config, base


def _refuse_other_names(values: Sequence[Override], named_by: str) -> None:
    """Refuse `model.name=...`, unless it names a model of a library: results are stored under the name of the file."""
    for override in values:
        group, _, key = override.key.partition(".")
        if group in GROUPS and key == "name" and override.key != named_by:
            remedy = (
                f"give {named_by}{example(named_by)}"
                if named_by and group == "model"
                else f"choose a file of config/{group}/ with {group}=NAME"
            )
            raise ConfigError(f"{override.text}: {remedy}")


def with_half(overrides: Sequence[Override]) -> tuple[list[Override], list[str]]:
    """Overrides with the GPU's half precision in place of `half`, and a sentence on what that is.

    It is bf16 where the GPU computes in bf16, which needs no scaling of the loss, else fp16.
    """
    if not any(
        override.key == "model.dtype" and override.value == "half" for override in overrides
    ):
        return list(overrides), []
    named = [str(override.value) for override in overrides if override.key == "gpu"]
    gpu = load_gpu(named[-1] if named else default_choices()["gpu"])
    dtype = "bf16" if has_bf16(gpu) else "fp16"
    half = Override("model.dtype", dtype, f"model.dtype={dtype}")
    understood = "model.dtype=half is bf16 where a GPU computes in it, else fp16"
    return [half if each.key == half.key else each for each in overrides], [understood]


def name_in_group(override: Override) -> str:
    """The file that `gpu=`, `model=`, `kernels=` or `overheads=` names; an alias of a GPU and a path become its name."""
    group, stated = override.key, override.value
    name = stated if isinstance(stated, str) else override.text.partition("=")[2]
    parts = name.replace(",", " ").split()
    several = len(parts) > 1 and isinstance(stated, str)
    if several and (
        group != "gpu" or all(map(find_gpu.is_known, parts))
    ):  # `NVIDIA A10G` is one GPU
        raise ConfigError(
            f"{group}={name}: write several values with commas and no spaces:"
            f" {group}={','.join(parts)}"
        )
    if group == "gpu":
        return name if name == LOCAL else load_gpu(name).name
    if name not in choices(group):
        nearest = models_of_libraries(name) if group == "model" else ""
        raise UnknownNameError(group, name, choices(group), nearest)
    return name


def ambiguous_gpu(override: Override) -> str:
    """A sentence where an alias such as `A100` also begins the names of other GPUs; else an empty text."""
    stated = override.text.partition("=")[2]
    if override.key != "gpu" or stated == LOCAL:
        return ""
    name = load_gpu(stated).name
    named = [spec.name for spec in list_gpus() if spec.name.startswith(f"{stated}-")]
    others = ", ".join(each for each in named if each != name)
    return f"gpu={stated} is {name}; others: {others}" if others and name != stated else ""
