"""Runs small functions through PyTorch's compiler for a GPU, in a process of its own (`lowered`).

The functions and their bytes are those that PyTorch's own tests pin on a GPU (test/inductor/test_perf.py, 2.13), in elements of
fp32.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.as_on_cuda import compiled_launches
from pipeline.as_on_cuda.compiled_launches import Compiled, compiling, quiet_compiler
from pipeline.as_on_cuda.compiled_optimizers import update_of
from pipeline.as_on_cuda.compiler_gpu import Target
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.scheduled_kernels import Launch, describe
from pipeline.as_on_cuda.torch_names import compiler, fake_tensor_mode
from tests.graph.encoder_layer import Encoder

aten = torch.ops.aten
TEN, SQUARE, CUBE = (10,), (10, 10), (10, 10, 10)


@dataclass(frozen=True)
class Case:
    """A function, the shapes of its arguments (a number: so many indices below ten), and the elements that it moves."""

    elements: int
    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    trains: bool = False
    config: dict[str, Any] = field(default_factory=dict)


def mm_of_cos(x: Tensor) -> Tensor:
    """Work before and after a product."""
    x = x.cos()
    return torch.mm(x, x).cos()


def chain_of_norms(a: Tensor) -> Tensor:
    """Reductions that follow each other."""
    for _ in range(3):
        a = a * a.sum(dim=1, keepdim=True)
    return a


def mutation(a: Tensor, b: Tensor, c: Tensor) -> None:
    """Two arguments that change in place."""
    a0 = a.add(c)
    b0 = b.add(a0)
    b.copy_(b0)
    a.copy_(a0)


def choice_of_cos(a: Tensor) -> Tensor:
    """A value that a product and an addition read."""
    c = a.cos()
    return torch.mm(c, c) + c.cos()


def choice_of_sum(a: Tensor) -> Tensor:
    """A value that a product and a reduction read."""
    c = a.cos()
    return torch.mm(c, c) + c.sum(dim=1)


CASES = (
    Case(20, lambda x: x.cos(), (TEN,)),
    Case(210, lambda x, y: x + y, (SQUARE, TEN)),
    Case(200, lambda x: x + x.t(), (SQUARE,)),
    Case(50, lambda a, b, c: (a.cos(), b.sin() + c.sin()), (TEN,) * 3),
    Case(110, lambda x: x.sum(dim=1), (SQUARE,)),
    Case(110, lambda x: x.sum(dim=0), (SQUARE,)),
    Case(200, lambda x: torch.mm(x, x), (SQUARE,)),
    Case(300, torch.mm, (SQUARE,) * 2),
    Case(600, mm_of_cos, (SQUARE,)),
    Case(600, lambda x: torch.mm(x.cos(), x.sin()), (SQUARE,)),
    Case(40, lambda a, b: torch.cat([a.sin(), b.sin()]), (TEN,) * 2),
    Case(30, lambda a: torch.cat([a.cos(), a.sin()]), (TEN,)),
    Case(400, lambda a, b: torch.cat([torch.mm(a, a), b.sin()]), (SQUARE,) * 2),
    Case(600, lambda a, b, c: torch.cat((a + 1, b + 2, c + 3)) + 10, (SQUARE,) * 3),
    Case(2600, lambda a, b: torch.cat([a.sum(dim=0), b.sum(dim=0)]) + 10, (CUBE,) * 2),
    Case(30, lambda a, b: a[b], (TEN, 10)),
    Case(210, lambda a: (a.sum(dim=1), a.cos()), (SQUARE,)),
    Case(120, lambda a: (a.sum(dim=1), a.amax(dim=1)), (SQUARE,)),
    Case(120, lambda a, b: b.cos() + a.sum(dim=1), (SQUARE, TEN)),
    Case(120, lambda a, b: b.cos() + a.sum(dim=0), (SQUARE, TEN)),
    Case(210, lambda a, b: a.sum(dim=1, keepdim=True) * b.cos(), (SQUARE, TEN)),
    Case(110, lambda a: a.cos().sum(dim=1).cos(), (SQUARE,)),
    Case(200, chain_of_norms, (SQUARE,)),
    Case(200, lambda a: torch.softmax(a, dim=1), (SQUARE,)),
    Case(220, lambda x, w, b: F.layer_norm(x, (10,), w, b), (SQUARE, TEN, TEN)),
    Case(200, lambda x: torch.softmax(torch.softmax(x, dim=1), dim=1), (SQUARE,)),
    Case(300, lambda g, o: aten._softmax_backward_data(g, o, 1, torch.float32), (SQUARE,) * 2),
    Case(90, lambda a, b: ((a - b) ** 2).sum(dim=-1).amax(dim=1), ((10, 1, 4), (1, 10, 4))),
    Case(320, lambda a, b: a[b].cos(), (SQUARE, 20)),
    Case(140, lambda a, b: a[b].cos().sum(dim=1), (SQUARE, 20)),
    Case(500, mutation, (SQUARE,) * 3),
    Case(
        700,
        choice_of_cos,
        (SQUARE,),
        config={"pattern_matcher": False, "realize_acc_reads_threshold": None},
    ),
    Case(620, choice_of_sum, (SQUARE,), config={"pattern_matcher": False}),
    Case(300, lambda a, b: a + b.t(), (SQUARE,) * 2),
    Case(4000, lambda a, b, c: a + b.permute(1, 2, 0) + c.permute(2, 0, 1), (CUBE,) * 3),
    Case(50, lambda x: x.cos().cos().cos(), (TEN,), True),
    Case(90, lambda a, b, c, d: (a + b + c + d).cos().cos(), (TEN,) * 4, True),
    Case(450, lambda x: (x < 0) * x, ((100,),), True),
)


def compiled(function: Callable[..., Any], arguments: list[Tensor], target: Target) -> list[Launch]:
    """What the compiler would launch for a function, and for its gradient if an argument has one."""
    torch.compiler.reset()
    found = Compiled()
    result = torch.compile(function, backend=compiling(target, found))(*arguments)
    if any(each.requires_grad for each in arguments):
        result.mean().backward()
    return [launch for part in found.parts for launch in part.launches]


def counted(sizes: list[int]) -> Any:
    """While the body runs, `sizes` gets the bytes of each node of the scheduler by the compiler's own count."""

    def described(node: Any, phase: str) -> list[Launch]:
        sizes.append(node.get_read_write_buffers_sizes())
        return describe(node, phase)

    return replaced(compiled_launches, describe=described)


def argument(shape: Any, trains: bool) -> Tensor:
    """Numbers of a shape, or so many indices below ten."""
    if isinstance(shape, int):
        return torch.randint(10, (shape,), dtype=torch.int32)
    return torch.randn(shape, requires_grad=trains)


OPTIMIZERS = (
    partial(torch.optim.SGD, lr=0.1),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    torch.optim.Adam,
    torch.optim.AdamW,
    partial(torch.optim.Adagrad, lr=0.1),
    torch.optim.RMSprop,
)


def optimizers(kinds: Sequence[Callable[..., Any]], target: Target) -> list[Any]:
    """Bytes read, bytes written and elements of each optimizer's compiled step: of the compiler, and in closed form.

    On the compiler's GPU, one more kernel counts steps, which the host does: it has an element for each parameter.
    """
    found = []
    for make in kinds:
        weights = [nn.Parameter(torch.empty(size)) for size in ((32, 16), (16,))]
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        optimizer = make(weights, foreach=True)
        optimizer.step()  # makes the states
        found_by = compiled(optimizer.step, [], target)
        updates = [each for each in found_by if each.rows > len(weights)], update_of(optimizer)
        found.append(
            [
                [
                    sum(getattr(each, name) for each in launches)
                    for name in ("read", "written", "rows")
                ]
                for launches in updates
            ]
        )
    return found


def lowered(part: int, _: int) -> dict[str, Any]:
    """Of every second case and optimizer, what it moves; in the second part the launches of the encoder, too."""
    logging.getLogger("torch._inductor").setLevel(logging.ERROR)
    a100, moved = Target(8.0, 108), []
    with quiet_compiler(), fake_tensor_mode(allow_non_fake_inputs=True):
        for case in CASES[part::2]:
            arguments = [argument(shape, case.trains) for shape in case.shapes]
            sizes: list[int] = []
            with compiler("_inductor.config").patch(case.config), counted(sizes):
                found = compiled(case.function, arguments, a100)
            own = sum(each.read + each.written for each in found)
            calls = sum(each.inputs is not None for each in found)
            moved.append((sum(sizes) / 4, own / 4, calls))
        updates = optimizers(OPTIMIZERS[part::2], a100)
        batch = [torch.randn(4, 4, 4), torch.randn(4, 4, 4)]
        layer = compiled(Encoder(), batch, a100) if part else []
    fused = sum(each.inputs is None for each in layer)
    return {"moved": moved, "encoder": [fused, len(layer) - fused], "optimizers": updates}
