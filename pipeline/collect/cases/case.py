"""Parts of a microbenchmark: its specification, its tensors, and the call to time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pipeline.collect.device import FLOAT_BYTES, torch_dtype
from pipeline.errors import MeasurementError
from pipeline.schemas import DIMS


class UnsupportedCallError(MeasurementError):
    """A kernel call that no builder can run by itself."""


@dataclass(frozen=True)
class Spec:
    """One kernel call of known size, as in a row of the calls table."""

    family: str
    op: str
    phase: str
    dtype: str
    dims: Mapping[str, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, dim: str) -> int:
        """A dimension that the family requires.

        Raises:
            UnsupportedCallError: the call does not state the dimension.
        """
        value = self.dims.get(dim)
        if value is None:
            raise UnsupportedCallError(f"{self.family} {self.op}: dimension {dim} is missing")
        return value

    def get(self, dim: str, default: int) -> int:
        """A dimension, or the default if the call does not state it."""
        return self.dims.get(dim, default)

    @property
    def name(self) -> str:
        """The op without namespace, in-place mark and overload: `aten::add_` and `add.Tensor` are `add`."""
        return self.op.split("::")[-1].split(".")[0].strip().rstrip("_").lower()

    @property
    def backward(self) -> bool:
        """Whether the call computes a gradient of what `name` computes forward."""
        return self.name.endswith(("_backward", "_gradient")) or self.phase == "backward"

    @property
    def element_bytes(self) -> int:
        """Bytes of one element; integers of calls are 64-bit row numbers."""
        return FLOAT_BYTES.get(self.dtype, 8)

    @property
    def key(self) -> tuple[Any, ...]:
        """Key that is equal for calls with the same measurement."""
        attributes = json.dumps(self.attributes, sort_keys=True)
        return (self.family, self.op, self.phase, self.dtype, tuple(self.dims.items()), attributes)

    def chosen(self, operations: Mapping[str, Any], name: str | None = None) -> Any:
        """The entry of a table of operations for this call's op, or for another name.

        Raises:
            UnsupportedCallError: the table does not have it; the message lists the names.
        """
        name = self.name if name is None else name
        if name not in operations:
            raise UnsupportedCallError(
                f"{self.family} {self.op}: known are {', '.join(map(str, operations))}"
            )
        return operations[name]


@dataclass
class Case:
    """One runnable call.

    Attributes:
        run: the call to time; its result is kept until the next repetition.
        produced: inputs that the previous op would have just written. They are touched before each repetition.
            Parameters and saved activations are not touched, so the other cases may have evicted them from the cache.
        prepare: runs before each repetition, outside the measured time.
        note: facts to record in the sample's attributes.
    """

    spec: Spec
    run: Callable[[], Any]
    produced: tuple[Tensor, ...] = ()
    prepare: Callable[[], Any] | None = None
    note: dict[str, Any] = field(default_factory=dict)


def differentiable(
    spec: Spec,
    make: Maker,
    forward: Callable[[], Tensor],
    wrt: Sequence[Tensor],
    produced: tuple[Tensor, ...] = (),
) -> Case:
    """The forward call, or its gradients with respect to some tensors by autograd.

    Direct calls of the backward operators are fragile, because they need cuDNN's reserve and saved indices.

    Args:
        spec: the call.
        make: makes the gradient of the result.
        forward: the forward call.
        wrt: tensors that get gradients.
        produced: inputs that the previous op would have just written; by default the first of `wrt`.
    """
    if not spec.backward:
        return Case(spec, forward, produced or (wrt[0],))
    for tensor in wrt:
        tensor.requires_grad_()
    with torch.enable_grad():
        out = forward()
    grad = make.tensor(*out.shape, dtype=spec.dtype)
    return Case(spec, lambda: torch.autograd.grad(out, wrt, grad, retain_graph=True), (grad,))


class Maker:
    """Random tensors on the device, reproducible by seed; counts the bytes of the tensors."""

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        self.device = device
        self.bytes = 0
        self._generator = torch.Generator(device=device).manual_seed(seed)

    def tensor(self, *shape: int, dtype: str = "fp32") -> Tensor:
        """Uniform values in [-1, 1); integers from 0 to 99 for integer dtypes, 0 or 1 for bool."""
        kind = torch_dtype(dtype)
        if kind.is_floating_point:
            values = torch.empty(shape, device=self.device, dtype=kind).uniform_(
                -1, 1, generator=self._generator
            )
        else:
            high = 2 if kind is torch.bool else 100
            values = torch.randint(high, shape, device=self.device, generator=self._generator).to(
                kind
            )
        return self.counted(values)

    def indices(self, rows: int, count: int, distribution: str = "uniform") -> Tensor:
        """Row numbers, `uniform` or `zipf:ALPHA`; frequent rows are scattered over the table.

        Raises:
            UnsupportedCallError: the distribution is unknown.
        """
        kind, _, parameter = distribution.partition(":")
        if kind == "uniform":
            numbers = torch.randint(rows, (count,), device=self.device, generator=self._generator)
        elif kind == "zipf":
            numbers = self._zipf(rows, count, float(parameter or 1.05))
        else:
            raise UnsupportedCallError(
                f"unknown index distribution {distribution!r}: choose uniform or zipf:ALPHA"
            )
        return self.counted(numbers)

    def counted(self, tensor: Tensor) -> Tensor:
        """Count the bytes of a tensor that was made elsewhere."""
        self.bytes += tensor.numel() * tensor.element_size()
        return tensor

    def _zipf(self, rows: int, count: int, alpha: float) -> Tensor:
        """Inverse of the continuous distribution function of x^-alpha on 1 to rows + 1."""
        alpha = alpha if abs(alpha - 1) > 1e-3 else 1.001  # the closed form has a pole at 1
        u = torch.rand(count, device=self.device, dtype=torch.float64, generator=self._generator)
        rank = (
            (u * ((rows + 1.0) ** (1 - alpha) - 1) + 1)
            .pow_(1 / (1 - alpha))
            .long()
            .sub_(1)
            .clamp_(0, rows - 1)
        )
        scattered: Tensor = rank.mul_(2654435761).remainder_(
            rows
        )  # Knuth's multiplicative hash scatters the ranks
        return scattered


def spec_from_row(row: Mapping[Any, Any]) -> Spec:
    """The specification in a row (as a dict) of a calls or samples table; missing dims are left out."""
    dims = {name: int(row[name]) for name in DIMS if name in row and pd.notna(row[name])}
    text = row.get("attributes")
    attributes = json.loads(text) if isinstance(text, str) and text else {}
    return Spec(
        str(row["family"]), str(row["op"]), str(row["phase"]), str(row["dtype"]), dims, attributes
    )
