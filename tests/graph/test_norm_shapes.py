"""Norms and dropout on the meta device, by this project's shape functions, have results as those on a real device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.as_on_cuda.emulation import run_as_on_cuda

IMAGES, ROWS = (4, 6, 5, 5), (4, 7, 6)
NORMS = [
    (nn.BatchNorm2d, 6, {}, IMAGES),
    (nn.BatchNorm2d, 6, {"affine": False}, IMAGES),
    (nn.BatchNorm2d, 6, {"track_running_stats": False}, IMAGES),
    (nn.BatchNorm1d, 7, {}, ROWS),
    (nn.LayerNorm, 6, {}, ROWS),
    (nn.LayerNorm, (7, 6), {"bias": False}, ROWS),
    (nn.LayerNorm, 6, {"elementwise_affine": False}, ROWS),
    (lambda share, device: nn.Dropout(share), 0.5, {}, IMAGES),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize(("norm", "size", "options", "shape"), NORMS)
def test_results_and_gradients_have_the_shapes_of_real_ones(
    norm: Any, size: Any, options: dict[str, Any], shape: tuple[int, ...], last: bool, dtype: Any
) -> None:
    kinds = []
    for device in ("cpu", "meta"):
        made = norm(size, **options, device=device)
        x = torch.ones(shape, device=device, dtype=dtype, requires_grad=True)
        given = x.contiguous(memory_format=torch.channels_last) if last and x.dim() == 4 else x
        with run_as_on_cuda():
            results = [made.to(dtype).train(training)(given) for training in (True, False)]
        torch.autograd.backward(results, [torch.ones_like(result) for result in results])
        kinds.append([kind(each) for each in (*results, x.grad, *made.parameters())])
    assert kinds[0] == kinds[1]


def kind(tensor: Tensor) -> tuple[Any, ...]:
    """What tensors without data know of themselves and of their gradients."""
    gradient = None if tensor.grad_fn or tensor.grad is None else kind(tensor.grad)
    return tensor.shape, tensor.dtype, tensor.stride(), gradient
