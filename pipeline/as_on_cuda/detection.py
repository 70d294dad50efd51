"""Detectors of torchvision on the meta device: their operators, and how many boxes each of their selections keeps.

`model.picked` is the share of candidates that a selection by data keeps: of the boxes of each `nms`, of the detections above the
score threshold, and of the sampled proposals that show an object. What the configuration of a detector fixes is as it says: the
proposals of an image that are sampled, and the anchors that its proposal network learns from. Boxes are large enough to be kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.host_reads import picked_count, share_of_masks
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.shape_operators import apply, is_empty, meta_operators

_BOXES = "Tensor boxes, float scale, int height, int width, int ratio, bool aligned"


@cache
def _operators() -> Any:
    return meta_operators(
        "steptime_boxes",
        {
            "nms(Tensor boxes, Tensor scores, int kept) -> Tensor": lambda boxes, scores, kept: (
                scores.new_empty(kept, dtype=torch.long)
            ),
            f"roi_align(Tensor x, {_BOXES}) -> Tensor": lambda x, boxes, scale, height, width, *_: (
                x.new_empty(boxes.shape[0], x.shape[1], height, width)
            ),
            f"roi_align_backward(Tensor g, {_BOXES}, int[] shape) -> Tensor": lambda g, *rest: (
                g.new_empty(rest[-1])
            ),
        },
    )


class RoiAlign(torch.autograd.Function):
    """Torchvision's `roi_align`: boxes (number, 5), of which the first column is the image."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, boxes: Tensor, *options: Any) -> Any:
        """The features of each box."""
        ctx.save_for_backward(boxes)
        ctx.rest = *options, x.shape
        return _operators().roi_align(x, boxes, *options)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The gradient of the features."""
        (boxes,) = ctx.saved_tensors
        return _operators().roi_align_backward(gradient, boxes, *ctx.rest), *[None] * len(ctx.rest)


@contextmanager
def boxes_as_on_cuda() -> Iterator[None]:
    """While the body runs, detectors of torchvision run on the meta device. Nothing is done if they are not loaded."""
    modules = {
        name.rpartition(".")[2]: module
        for name, module in sys.modules.items()
        if name.startswith(("torchvision.ops.", "torchvision.models.detection."))
    }
    with ExitStack() as stack:
        if {"boxes", "poolers", "roi_heads", "rpn", "_utils"} <= set(modules):
            for owner, functions in _replacements(modules):
                stack.enter_context(replaced(owner, **functions))
        yield


def _replacements(modules: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Modules and classes of torchvision, each with the functions that take the place of its own."""
    boxes, heads, network = (modules[name] for name in ("boxes", "roi_heads", "rpn"))
    align, every = _align(modules["poolers"].roi_align), lambda *_: 1.0
    small = _with_share(boxes.remove_small_boxes, every)
    yield boxes, {"nms": _nms(boxes.nms), "remove_small_boxes": small}
    yield modules["poolers"], {"roi_align": align}
    yield heads, {"roi_align": align}
    yield heads.RoIHeads, {"subsample": _subsample(heads.RoIHeads.subsample)}
    matcher, proposals = modules["_utils"].Matcher, network.RegionProposalNetwork
    name = "set_low_quality_matches_"
    one_each = _with_share(getattr(matcher, name), lambda _, matches, *__: 1.0 / matches.shape[0])
    yield matcher, {name: one_each}
    kept = _with_share(proposals.filter_proposals, every)
    loss = _with_share(proposals.compute_loss, _sampled_share)
    yield proposals, {"filter_proposals": kept, "compute_loss": loss}


def _sampled_share(network: Any, _: Any, __: Any, labels: Any, *___: Any) -> float:
    """The share of anchors from which a proposal network learns."""
    sampled: int = network.fg_bg_sampler.batch_size_per_image
    anchors: int = labels[0].numel()
    return min(1.0, sampled / anchors)


def _nms(usual: Callable[..., Any]) -> Callable[..., Any]:
    def nms(candidates: Tensor, scores: Tensor, threshold: float) -> Any:
        if not is_empty(candidates):
            return usual(candidates, scores, threshold)
        return _operators().nms(
            candidates,
            scores,
            picked_count(candidates.shape[0], "nms"),
        )

    return nms


def _align(usual: Callable[..., Any]) -> Callable[..., Any]:
    def align(
        input: Tensor,
        boxes: Any,
        output_size: Any,
        spatial_scale: float = 1.0,
        sampling_ratio: int = -1,
        aligned: bool = False,
    ) -> Any:
        if not is_empty(input):
            return usual(input, boxes, output_size, spatial_scale, sampling_ratio, aligned)
        if not isinstance(boxes, Tensor):
            images = [
                part.new_full((part.shape[0], 1), number) for number, part in enumerate(boxes)
            ]
            boxes = torch.cat([torch.cat(images), torch.cat(list(boxes))], 1)
        height, width = (output_size, output_size) if isinstance(output_size, int) else output_size
        return apply(RoiAlign, input, boxes, spatial_scale, height, width, sampling_ratio, aligned)

    return align


def _subsample(usual: Callable[..., Any]) -> Callable[..., Any]:
    def subsample(self: Any, labels: Any) -> Any:
        with share_of_masks(1.0):
            most = self.fg_bg_sampler.batch_size_per_image
            return [picked[:most] for picked in usual(self, labels)]

    return subsample


def _with_share(usual: Callable[..., Any], share: Callable[..., float]) -> Callable[..., Any]:
    """A function within which masks are true for a share that its arguments tell."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with share_of_masks(share(*args)):
            return usual(*args, **kwargs)

    return run
