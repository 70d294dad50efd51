"""Detectors of torchvision: their operators, and how many boxes each of their selections keeps."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.answers.engine import STEPS
from pipeline.as_on_cuda.torchvision_operators import declare_torchvision_operators
from pipeline.errors import InputError, SteptimeWarning
from pipeline.graph.opmap import Rule
from pipeline.graph.sizes import SIZES
from pipeline.graph.table import Node, Tensor
from pipeline.workloads.user_steps import questions_about
from steptime import predict

detectors = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="needs torchvision"
)


@pytest.fixture(autouse=True)
def shallow_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-18 in place of ResNet-50: the detectors have the same heads, and half of the operators."""
    if importlib.util.find_spec("torchvision") is None:
        return
    declare_torchvision_operators()
    from torchvision.models import resnet18

    for part in ("faster_rcnn", "mask_rcnn", "retinanet", "fcos"):
        monkeypatch.setattr(f"torchvision.models.detection.{part}.resnet50", resnet18)


def detector(name: str, **options: Any) -> Any:
    def make() -> nn.Module:
        from torchvision.models import detection

        size = {} if name.startswith("ssd") else {"min_size": 128, "max_size": 128}
        model: nn.Module = getattr(detection, name)(
            weights=None, weights_backbone=None, **size, **options
        )
        return model

    return make


NAMES = (
    "maskrcnn_resnet50_fpn",
    "ssd300_vgg16",
    "fasterrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
)


def batch(size: int) -> Any:
    boxes, labels = torch.rand(8, 4), torch.ones(8, dtype=torch.long)
    side = {"boxes": boxes, "labels": labels, "masks": torch.zeros(8, 128, 128)}
    return [torch.rand(3, 128, 128) for _ in range(size)], [dict(side) for _ in range(size)]


def predicted(name: str, mode: str = "train", picked: float | None = 0.25) -> Any:
    given = batch(2) if mode == "train" else batch(2)[:1]
    options = {"model__picked": picked, "model__mode": mode}
    return predict("V100", model=detector(name), batch=given, batch_size=2, **options)


@detectors
def test_faster_rcnn_trains_on_as_many_proposals_as_it_says() -> None:
    """An image has 3 x (32² + 16² + 8² + 4² + 2²) anchors, of which at most 2,000 a level go on: 3,020. A tenth stays, and eight
    boxes of the target join them: 310. The box head multiplies them by 256 x 7 x 7 features.
    """
    options = {"batch": batch(2), "batch_size": 2, "model__picked": 0.1}
    with questions_about("V100", detector("fasterrcnn_resnet50_fpn"), options) as (question,):
        calls = STEPS.calls(question)
    heads = calls.query("family == 'gemm' and phase == 'forward' and N == 12544")
    assert list(heads["M"]) == [2 * 310]


@detectors
@pytest.mark.parametrize(
    "name",
    [*NAMES[:2], *(pytest.param(name, marks=pytest.mark.nightly) for name in NAMES[2:])],
)
def test_a_detector_trains_and_every_operator_has_a_model(name: str) -> None:
    """Faster R-CNN trains above, and as a part of Mask R-CNN: there of 763 boxes, 512 are sampled."""
    p = predicted(name)
    assert p.lower_bound == () and {"forward", "backward", "optimizer"} <= set(p.calls["phase"])
    align = p.calls["name"].str.contains("RoiAlign").sum()
    levels = 0 if "rcnn" not in name else 4 * (2 if "mask" in name else 1)
    assert (align > 0) == (levels > 0)
    products = p.calls.query("family == 'gemm' and phase == 'forward'")
    sampled = products["flops"] == 2 * (2 * 512) * (256 * 7 * 7) * 1024
    assert sampled.sum() == ("rcnn" in name)
    assert align >= 2 * levels, "forward and backward of each level of the pyramid"


@detectors
@pytest.mark.parametrize(
    "name", [NAMES[1], NAMES[3], pytest.param(NAMES[4], marks=pytest.mark.nightly)]
)
def test_a_detector_infers_and_suppresses_boxes(name: str) -> None:
    """Faster R-CNN infers below, as a part of Mask R-CNN."""
    p = predicted(name, "inference", 0.01)
    assert p.lower_bound == () and (p.calls["name"] == "torchvision::nms").any()


@detectors
def test_the_inference_of_mask_rcnn_leaves_out_what_depends_on_the_size_of_each_box() -> None:
    words = ["mode=inference", "picked=0.1", "image_size=256", "name=maskrcnn_resnet50_fpn"]
    options = dict(f"model__{word}".split("=") for word in words)
    said = "pasting them into the image is missing, so the time is a lower bound"
    with pytest.warns(SteptimeWarning, match=said):
        p = predict("V100", "torchvision", batch_size=2, **options)
    assert {"aten::sigmoid", "torchvision::nms"} <= set(p.calls["name"])


@detectors
@pytest.mark.parametrize(
    "name, mode", [("fasterrcnn_resnet50_fpn", "train"), ("retinanet_resnet50_fpn", "inference")]
)
def test_without_a_share_it_is_asked_for(name: str, mode: str) -> None:
    with pytest.raises(InputError, match=r"give the share that is true, model__picked=0.5"):
        predicted(name, mode, None)


def test_the_number_of_true_values_may_be_read_and_compared_where_their_share_is_given() -> None:
    seen = set()

    def loss(y: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        true = y > 0
        seen.add((true.sum().item(), bool(true.sum() > 3), bool(true.sum() > 1000)))
        return y.sum() / max(1, true.sum())  # type: ignore[call-overload, no-any-return]

    given: Any = {"model": nn.Linear(8, 8), "batch": (torch.rand(16, 8),) * 2, "loss": loss}
    predict("V100", **given, model__picked=0.25)
    assert seen == {(32, True, False)}
    with pytest.raises(InputError, match=r"item\(\) cannot be called"):
        predict("V100", **given)


def test_the_kernels_of_nms_by_hand() -> None:
    boxes, scores = Tensor((1000, 4), "fp32"), Tensor((1000,), "fp32")
    kept = Tensor((250,), "int64")
    node = Node(0, "torchvision::nms", inputs=(boxes, scores), outputs=(kept,))
    works = SIZES["nms"](node, Rule("index", "index_select", "nms")) or ()
    assert sum(w.written for w in works if w.op == "compare") == 1000 * 16 * 8 / 2 + 1000
    assert sum(work.blocking for work in works) == 1, "the host reads how many are kept"
