"""Steps of models of timm and torchvision, by name: `model=timm model.name=vit_base_patch16_224`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.workloads.libraries import classes_of, made, numbers, part_of_batch, refused, sides
from pipeline.workloads.model_names import imported, unknown_name
from pipeline.workloads.training_step import Step

CLASSES = 1000
"""Classes of a model that has no number of its own: those of ImageNet."""

AUXILIARY = 0.4
"""Weight of the losses of auxiliary heads, as torchvision's references train Inception v3."""

IGNORED = 255
"""Label of pixels without a class, in torchvision's references."""

BOXES = 8
"""Objects of an image for detection: images of COCO have 7.3 in the mean (Lin et al. 2014)."""

FRAMES = 16
"""Frames of a video, as torchvision's references cut them."""


def build_timm(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a classifier of timm."""
    timm = imported("timm")
    name = str(config["name"])
    if not timm.is_model(name):
        raise unknown_name("model.name", name, "timm")
    known = timm.get_pretrained_cfg(name)
    options = dict(config.get("options") or {})
    classes = int(config.get("classes") or (known and known.num_classes) or CLASSES)
    with _attention(timm.layers, config.get("attention")):
        model, size = _sized(
            lambda **sized: timm.create_model(name, **{"num_classes": classes, **sized, **options}),
            ("img_size",), config, device,
        )  # fmt: skip
    if config.get("checkpointing"):
        try:
            model.set_grad_checkpointing(True)  # type: ignore[operator]
        except AssertionError:
            raise refused("model.checkpointing=true", f"timm's {name} has no gradient checkpointing") from None
    own = model.pretrained_cfg["input_size"]  # type: ignore[index]
    height, width = size or own[1:]
    samples = part_of_batch(config, batch_size)
    images = numbers(samples, options.get("in_chans", own[0]), height, width, device=device)
    batch = images, classes_of(classes, samples, device=device)
    return Step([model], [batch], lambda x, y: model(x), classification_loss, device, config)


@contextmanager
def _attention(layers: Any, attention: str | None) -> Iterator[None]:
    """Make models of timm with `eager` or `fused` attention, or as timm chooses."""
    before = layers.use_fused_attn()
    layers.set_fused_attn(before if attention is None else attention == "fused")
    try:
        yield
    finally:
        layers.set_fused_attn(before)


def _sized(
    make: Callable[..., nn.Module], arguments: Sequence[str], config: Mapping[str, Any], device: str
) -> tuple[nn.Module, tuple[int, int] | None]:
    """A model, and the size of images that the configuration asks for.

    Constructors that need to know the size are told; `arguments` are the names under which they may take it.
    """
    asked = config.get("image_size")
    if asked is None:
        return made(make, device), None
    size = sides(asked)
    for argument in arguments:
        try:
            return made(partial(make, **{argument: size[0] if argument == "image_size" else size}), device), size
        except TypeError as error:
            if argument not in str(error):
                raise
    return made(make, device), size


def classification_loss(output: Any, _: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of a classifier's output, and of the outputs of its auxiliary heads."""
    losses = [F.cross_entropy(logits, labels) for logits in _tensors(output)]
    return losses[0] if len(losses) == 1 else losses[0] + AUXILIARY * sum(losses[1:])


def _tensors(output: Any) -> list[Tensor]:
    """The tensors of an output, the main one first."""
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, Mapping) else output
    return [tensor for part in parts if part is not None for tensor in _tensors(part)]
