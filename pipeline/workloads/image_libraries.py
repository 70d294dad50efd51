"""Steps of models of timm and torchvision, by name: `model=timm model.name=vit_base_patch16_224`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ConfigError, SteptimeWarning
from pipeline.workloads.libraries import classes_of, made, numbers, part_of_batch, sides
from pipeline.workloads.model_names import imported, unknown_name
from pipeline.workloads.training_step import Step, is_dry

CLASSES = 1000
"""Classes of a model that has no number of its own: those of ImageNet."""

AUXILIARY = 0.4
"""Weight of the losses of auxiliary heads, as torchvision's references train Inception v3."""

IGNORED = 255
"""Label of pixels without a class, in torchvision's references, which add half of the loss of an auxiliary head."""

BOXES = 8
"""Objects of an image for detection: images of COCO have 7.3 in the mean (Lin et al. 2014)."""

KEYPOINTS = 17
"""Points of a person in COCO."""

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
            ("img_size",),
            config,
            device,
        )
    if config.get("checkpointing"):
        try:
            model.set_grad_checkpointing(True)  # type: ignore[operator]
        except AssertionError:
            raise ConfigError(
                f"model.checkpointing=true: timm's {name} has no gradient checkpointing"
            ) from None
    own = model.pretrained_cfg["input_size"]  # type: ignore[index]
    height, width = size or own[1:]
    samples = part_of_batch(config, batch_size)
    images = numbers(
        samples,
        options.get("in_chans", own[0]),
        height,
        width,
        device=device,
    )
    batch = images, classes_of(classes, samples, device=device)
    return Step(
        [model],
        [batch],
        lambda x, y: model(x),
        classification_loss,
        device,
        config,
    )


def build_torchvision(config: Mapping[str, Any], batch_size: int, device: str) -> Step:
    """Build the step of a classifier, segmenter, video model or detector of torchvision."""
    models = imported("torchvision.models")
    name = str(config["name"])
    if name not in models.list_models():
        raise unknown_name("model.name", name, "torchvision")
    kind = (*models.get_model_builder(name).__module__.split("."), "")[
        2
    ]  # torchvision.models.video.resnet
    if kind == "optical_flow":
        raise ConfigError(
            f"model.name={name}: models of optical flow are not built by name; use model=custom"
        )
    given = {"num_classes": config.get("classes"), **(config.get("options") or {})}
    arguments = {key: value for key, value in given.items() if value is not None}
    if kind in ("segmentation", "detection"):
        arguments["weights_backbone"] = None
    make = partial(models.get_model, name, weights=None, **arguments)
    model, size = _sized(make, ("image_size", "input_size"), config, device)
    height, width = size or _own_size(models, name, model)
    samples = part_of_batch(config, batch_size)
    images = numbers(samples, 3, height, width, device=device)
    if kind == "detection":
        return _detection_step(model, images, config, device)
    classes = int(arguments.get("num_classes") or _outputs(model))
    if kind == "segmentation":
        batch = images, classes_of(classes, samples, height, width, device=device)
        loss = partial(classification_loss, auxiliary=0.5, ignored=IGNORED)
        return Step([model], [batch], lambda x, _: model(x), loss, device, config)
    if kind == "video":
        images = numbers(
            samples, 3, int(config.get("frames") or FRAMES), height, width, device=device
        )
    batch = images, classes_of(classes, samples, device=device)
    return Step(
        [model],
        [batch],
        lambda x, _: model(x),
        classification_loss,
        device,
        config,
    )


def _own_size(models: Any, name: str, model: Any) -> tuple[int, int]:
    """Size of the images that a model of torchvision is made for: what it was built for, or its weights were trained with."""
    if built := getattr(
        model, "image_size", None
    ):  # vit_h_14 is built for 224 pixels, and its weights are for 518
        return sides(built)
    if transform := getattr(model, "transform", None):  # of detectors
        return sides(transform.fixed_size or transform.min_size[-1])
    trained = models.get_model_weights(name).DEFAULT.transforms()
    return sides(getattr(trained, "crop_size", None) or trained.resize_size)


def _outputs(model: nn.Module) -> int:
    """Number of classes of a classifier or segmenter: the outputs of its last layer."""
    last = [
        part for part in model.modules() if isinstance(part, nn.Linear | nn.Conv2d | nn.Conv3d)
    ][-1]
    return int(last.out_features if isinstance(last, nn.Linear) else last.out_channels)


def _detection_step(model: Any, images: Tensor, config: Mapping[str, Any], device: str) -> Step:
    """The step of a detector, which computes its losses itself."""
    samples, _, height, width = images.shape
    corners = numbers(samples, BOXES, 2, 2, device=device)
    boxes = (corners if is_dry(device) else corners.cumsum(2) * min(height, width) / 2).flatten(2)
    batch = [images, boxes, classes_of(2, samples, BOXES, device=device)]
    heads = getattr(model, "roi_heads", None)
    if getattr(heads, "mask_predictor", None) is not None:
        batch.append(classes_of(2, samples, BOXES, height, width, device=device, dtype=torch.uint8))
        if config["mode"] == "inference":
            _leave_masks_small(model)
    if getattr(heads, "keypoint_predictor", None) is not None:
        batch.append(numbers(samples, BOXES, KEYPOINTS, 3, device=device))
    names = ("boxes", "labels", "masks" if batch[-1].dtype == torch.uint8 else "keypoints")

    def forward(x: Tensor, *targets: Tensor) -> Any:
        if not model.training:
            return model(list(x))
        losses = model(
            list(x), [dict(zip(names, parts, strict=False)) for parts in zip(*targets, strict=True)]
        )
        return torch.stack(list(losses.values())).sum()

    return Step([model], [tuple(batch)], forward, None, device, config)


def _leave_masks_small(model: Any) -> None:
    """Let Mask R-CNN return masks as its head makes them: the host would read the size of each box to paste its mask."""
    text = (
        "masks are predicted as the head makes them; pasting them into the image is missing, so the"
        " time is a lower bound"
    )
    warnings.warn(text, SteptimeWarning, stacklevel=2)
    finish = model.transform.postprocess

    def postprocess(detections: list[dict[str, Tensor]], *sizes: Any) -> list[dict[str, Tensor]]:
        masks = [detection.pop("masks") for detection in detections]
        return [
            {**detection, "masks": mask}
            for detection, mask in zip(finish(detections, *sizes), masks, strict=True)
        ]

    model.transform.postprocess = postprocess


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
            return (
                made(
                    partial(make, **{argument: size[0] if argument == "image_size" else size}),
                    device,
                ),
                size,
            )
        except TypeError as error:
            if argument not in str(error):
                raise
    return made(make, device), size


def classification_loss(
    output: Any, _: Tensor, labels: Tensor, auxiliary: float = AUXILIARY, ignored: int = -100
) -> Tensor:
    """Cross entropy of a classifier's output, and that of the outputs of its auxiliary heads."""
    losses = [F.cross_entropy(logits, labels, ignore_index=ignored) for logits in _tensors(output)]
    return losses[0] if len(losses) == 1 else losses[0] + auxiliary * sum(losses[1:])


def _tensors(output: Any) -> list[Tensor]:
    """The tensors of an output, the main one first."""
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, Mapping) else output
    return [tensor for part in parts if part is not None for tensor in _tensors(part)]
