"""Training steps of known models, ready to run on a GPU, on the CPU, or on the meta device.

`make_step(config, batch_size, device)` gives a `Step`; `config` is the plain content of `config/model/<name>.yaml`
after overrides. Importing this package imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError, InputError, UnknownNameError
from pipeline.question.checks import check_precision
from pipeline.question.options import NAMED_BY, OPTIONS

if TYPE_CHECKING:
    from pipeline.workloads.training_step import Step

ARCHITECTURES = (
    "dlrm", "resnet", "inception", "dcgan", "transformer", "gnmt", "bert", "gpt2", "opt", "gpt",
    "llama", "hstu", *NAMED_BY, "custom",
)  # fmt: skip
"""Allowed values of `architecture` in a model's config."""

Builder = Callable[[Mapping[str, Any], int, str], "Step"]
"""A function that builds a step from a model's config, a batch size and a device."""

CHOICES = {
    key.removeprefix("model."): option.values
    for key, option in OPTIONS.items()
    if key.startswith("model.") and option.values
}
"""Allowed values of each option of a model that has a fixed set of them."""


def make_step(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the training (or inference) step of a model.

    Args:
        config: content of a model's file: `architecture`, its sizes, and options (mode, optimizer, dtype and others).
        batch_size: samples per step.
        device: "cuda", "cpu", or "meta" (nothing is computed or allocated).

    Raises:
        UnknownNameError: an option or architecture does not exist; the message lists the choices.
        ConfigError: the batch size or another value is not valid.
        InputError: a library that the model needs is not installed.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size={batch_size!r}: must be a whole number of at least 1")
    for option, choices in CHOICES.items():
        if config.get(option) is not None and config[option] not in choices:
            raise UnknownNameError(f"model.{option}", config[option], list(choices))
    check_precision(config)
    name = config.get("architecture")
    if name not in ARCHITECTURES:
        raise UnknownNameError("model.architecture", name, list(ARCHITECTURES))
    try:
        build = builder(str(name))
    except ModuleNotFoundError as error:
        raise InputError(
            f"model {config.get('name', name)} needs {error.name}: pip install {error.name}"
        ) from None
    return build(config, batch_size, device)


def builder(architecture: str) -> Builder:
    """The function that builds a step of an architecture; importing its module imports torch."""
    match architecture:
        case "dlrm":
            from pipeline.workloads.dlrm import build
        case "resnet" | "inception":
            from pipeline.workloads.vision import build_classifier as build
        case "dcgan":
            from pipeline.workloads.vision import build_dcgan as build
        case "transformer" | "gnmt":
            from pipeline.workloads.translation import build
        case "bert" | "gpt2" | "opt":
            from pipeline.workloads.language_models import build
        case "gpt" | "llama":
            from pipeline.workloads.parallel_decoder import build
        case "hstu":
            from pipeline.workloads.hstu import build
        case "timm":
            from pipeline.workloads.image_libraries import build_timm as build
        case "torchvision":
            from pipeline.workloads.image_libraries import build_torchvision as build
        case "transformers":
            from pipeline.workloads.transformers_library import build
        case "custom":
            from pipeline.workloads.custom import build
        case _:
            raise InputError(
                f"architecture {architecture!r} has no builder in pipeline/workloads/__init__.py"
            )
    return build
