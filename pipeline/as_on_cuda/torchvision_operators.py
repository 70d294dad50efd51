"""Torchvision's operators, for a torchvision whose binary does not load beside the installed PyTorch.

The registry's torchvision for CUDA does not load beside a CPU build of PyTorch. Its import then fails, and with it that of
timm, transformers and peft, because its Python code gives shape functions to operators that nothing has declared.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    (
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt"
        " pooled_width, int sampling_ratio, bool aligned) -> Tensor"
    ),
    (
        "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height,"
        " SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width, int"
        " sampling_ratio, bool aligned) -> Tensor"
    ),
)
"""Schemas in torchvision/csrc/ops of the operators that its Python code gives shapes (0.21 to 0.28)."""

_LIBRARIES: list[Any] = []
"""Keeps the declarations alive."""


def declare_torchvision_operators() -> None:
    """Declare torchvision's operators, if torchvision is installed and its binary does not. Call before its import."""
    spec = None if _LIBRARIES else find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    import torch

    try:
        for binary in Path(spec.origin).parent.glob("_C*"):
            torch.ops.load_library(str(binary))  # type: ignore[no-untyped-call]
    except OSError:
        pass
    if not hasattr(torch.ops.torchvision, "nms"):
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for schema in SCHEMAS:
            library.define(schema)
        _LIBRARIES.append(library)
