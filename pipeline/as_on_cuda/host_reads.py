"""What a step asks the device, where nothing is computed: values that the host reads, and the sizes of selections.

The host waits for a value (`loss.item()`) until the device has finished the work before it. Loops that only log read
the loss at the end of a step; facebookresearch/dlrm reads it before the backward pass. A stand-in operator replaces the
read. A value that a custom step reads gets the answer of a run without problems. If there is no such usual answer, the
read is an error.

The number of elements that a mask selects (`x[mask]`, `torch.nonzero`, `torch.where(mask)`) depends on the data as well.
The user gives the share of selected elements (`model.picked`). Without it, PyTorch raises its usual error.
"""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.known_values import known
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.shape_operators import is_empty, is_fake, meta_operators
from pipeline.as_on_cuda.torch_names import (
    PACKING,
    RECURRENT_FUNCTIONS,
    assumes_all_nonzero,
)
from pipeline.errors import ConfigError, warn


def _compared(name: str) -> Callable[[float, Any], bool]:
    """A comparison of `float` with a warning."""

    def compare(self: float, other: Any) -> bool:
        warn(
            f"the step compares a number that it has read, taken as {self}, with {other}; a run may"
            " go another way"
        )
        return bool(getattr(float, name)(self, other))

    return compare


class AssumedNumber(float):
    """The assumed value of a number that a step has read, which says so where the step's way depends on it."""

    __lt__, __le__, __gt__, __ge__ = map(_compared, ("__lt__", "__le__", "__gt__", "__ge__"))


ASSUMED_NUMBER = AssumedNumber(1.0)
"""Assumed value, without unit, of a floating-point number that a step reads: finite and positive."""

ASSUMED_CHECKS = {
    "all": True,
    "any": False,
    "isfinite": True,
    "isnan": False,
    "isinf": False,
    "_is_all_true": True,
    "_is_any_true": False,
}
"""Assumed result of each check, as in a run without problems: values are valid and finite, and no error flag is set."""


READS: dict[str, Callable[[Any], Any]] = {
    "item": lambda value: value,
    "__bool__": bool,
    "__float__": float,
}
"""Methods by which the host reads a number -> the type of what they return."""


WITH_VALUES = ("tolist", "__int__", "__index__")
"""Methods by which the host reads whole numbers, if it can know them."""


def with_rows(args: Any, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keywords of `repeat_interleave` with the number of rows that it finds, for which the host waits, if it is known."""
    counts = kwargs.get("repeats", args[min(1, len(args) - 1)])
    values = known(counts) if isinstance(counts, Tensor) else None
    if values is None or kwargs.get("output_size") is not None:
        return kwargs
    read(counts)
    return {**kwargs, "output_size": int(values.sum())}


INDEXING = ("getitem", "setitem")
SELECTIONS = (*INDEXING, "nonzero", "argwhere", "where")
"""Names, without underscores, of functions that find the true elements of a mask, also where it is an index."""


def selected(func: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The result of one of `SELECTIONS`: masks find as many elements as their values have, where these are known."""
    if name in INDEXING:
        return func(args[0], _found_by(args[1]), *args[2:], **kwargs)
    with _share_of(args[0]) if len(args) == 1 else nullcontext():
        return func(*args, **kwargs)


def _found_by(key: Any) -> Any:
    """An index with what its masks find in place of those whose values are known, as on CUDA."""
    found: list[Any] = []
    for part in key if isinstance(key, tuple) else (key,):
        mask = isinstance(part, Tensor) and part.dtype == torch.bool and part.dim() > 0
        if mask and not _SHARE and known(part) is not None:
            with _share_of(part):
                found += part.nonzero().unbind(1)
        else:
            found.append(part)
    return tuple(found) if isinstance(key, tuple) or found[0] is not key else key


@contextmanager
def _share_of(mask: Tensor) -> Iterator[None]:
    """While the body runs, masks are true as often as this one is, if its values are known and the user gave no share."""
    values = None if _SHARE else known(mask)
    if values is None:
        yield
        return
    _replace_nonzero()
    _SHARE.append(Fraction(int(values.count_nonzero()), max(values.numel(), 1)))
    try:
        yield
    finally:
        _SHARE.pop()


def read(value: Tensor) -> None:
    """Read a tensor of one element on the host."""
    if is_empty(value):
        with torch.no_grad():
            _read_operator().read(value)
    else:
        value.item()


@contextmanager
def assumed_reads() -> Iterator[None]:
    """While the body runs, the host waits for each number or check that a step reads, and gets an assumed answer.

    The answers are `ASSUMED_NUMBER` and `ASSUMED_CHECKS`. A copy to the host (`.cpu()`) is also a wait; it returns only the shape,
    and ones to NumPy. Numbers that follow from those of the host, such as the lengths of sequences, are what they are.

    Other floating-point numbers are mostly logged or checked to be finite. Other integers (which become sizes) and results
    of comparisons have no usual answer, so PyTorch raises its error for them.
    """
    usual: Any = {
        name: getattr(Tensor, name) for name in (*READS, *WITH_VALUES, "cpu", "numpy", "__format__")
    }

    def answering(name: str, kind: Callable[[Any], Any]) -> Callable[[Tensor], Any]:
        def answer(self: Tensor) -> Any:
            check = hasattr(self, "_steptime_usual")  # passes, whatever the values of the batch
            if not check and (values := known(self)) is not None:
                read(self)
                return usual[name](values)
            assumed = None if name in WITH_VALUES else _answer(self)
            return kind(usual[name](self) if assumed is None else assumed)

        return answer

    def cpu(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not is_empty(self) or is_fake(self):
            return usual["cpu"](self, *args, **kwargs)
        read(self)  # the copy has all bytes; later work on the result is on the host
        return self.view_as(self) if (values := known(self)) is None else values.clone()

    def shown(self: Tensor, spec: str) -> str:
        if not is_empty(self) or self.dim():
            return str(usual["__format__"](self, spec))
        read(self)  # a text changes no step: any number will do
        return format(ASSUMED_NUMBER if self.is_floating_point() else int(ASSUMED_NUMBER), spec)

    def numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        assumed = known(self) if is_empty(self) else self
        if assumed is None and self.is_floating_point() and not is_fake(self):
            warn("the step computes with NumPy; its numbers are taken as 1, its time as none")
            assumed = torch.ones(self.shape, dtype=self.dtype, device="cpu")
        return usual["numpy"](self if assumed is None else assumed, *args, **kwargs)

    kinds = READS | dict.fromkeys(WITH_VALUES, lambda value: value)
    with ExitStack() as stack:
        answers: dict[str, Any] = {name: answering(name, kind) for name, kind in kinds.items()}
        stack.enter_context(replaced(Tensor, cpu=cpu, numpy=numpy, __format__=shown, **answers))
        stack.enter_context(_known_lengths())
        for owner in (torch, Tensor):
            checks = {name: usual for name, usual in ASSUMED_CHECKS.items() if hasattr(owner, name)}
            wrapped = {
                name: _with_assumed_result(getattr(owner, name), usual)
                for name, usual in checks.items()
            }
            select: Any = vars(owner).get("masked_select", Tensor.masked_select)
            stack.enter_context(replaced(owner, masked_select=_by_index(select), **wrapped))
        yield


def _known_lengths() -> AbstractContextManager[None]:
    """While the body runs, sequences are packed by their lengths on the host, if these are known."""
    packing = getattr(RECURRENT_FUNCTIONS, PACKING)

    def pack(x: Tensor, lengths: Tensor, *options: Any) -> Any:
        on_host = known(lengths)
        return packing(x, lengths if on_host is None else on_host, *options)

    return replaced(RECURRENT_FUNCTIONS, **{PACKING: pack})


def _answer(value: Tensor) -> bool | float | int | None:
    """The assumed value of a tensor, after the host has waited for it.

    None if the tensor has a real value, or if there is no usual answer.
    """
    usual: bool | int | None = getattr(value, "_steptime_usual", None)
    has_value = (
        not is_empty(value) or getattr(value, "constant", None) is not None
    )  # a fake tensor with a known number
    if has_value or value.numel() != 1 or (usual is None and not value.is_floating_point()):
        return None
    read(value)
    return ASSUMED_NUMBER if usual is None else usual


def _with_assumed_result(check: Callable[..., Any], usual: bool) -> Callable[..., Any]:
    """Wrap a check so that its result carries the usual answer."""

    def with_answer(*args: Any, **kwargs: Any) -> Any:
        result = check(*args, **kwargs)
        if isinstance(result, Tensor) and is_empty(result):
            result._steptime_usual = usual  # type: ignore[attr-defined]
        return result

    return with_answer


@cache
def _read_operator() -> Any:
    return meta_operators("steptime_loss", {"read(Tensor value) -> ()": lambda value: None})


_SHARE: list[float | Fraction] = []
"""Shares that are currently set: the user's, then those of functions for their own masks, then that of a mask whose values are
known. The last one is used for masks."""


@contextmanager
def share_of_masks(share: float) -> Iterator[None]:
    """While the body runs, this share of the elements of every mask is true, if the user gave a share at all."""
    before = len(_SHARE)
    _SHARE.extend([share] * bool(_SHARE))
    try:
        yield
    finally:
        del _SHARE[before:]


def picked_count(candidates: int, what: str) -> int:
    """How many of the candidates of an operator the user's share keeps.

    Raises:
        NotImplementedError: the user gave none.
    """
    if not _SHARE:
        raise NotImplementedError(f"{what}: the number of elements that it finds depends on data")
    return math.ceil(candidates * _SHARE[0])


@contextmanager
def assuming_true_share(share: object) -> Iterator[None]:
    """While the body runs, assume that this share of the elements of every mask is true.

    None: selections by masks raise an error on the meta device.

    Raises:
        ConfigError: the share is not above 0 and at most 1.
    """
    if share is None:
        yield
        return
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigError(
            f"model.picked={share}: give the share of mask elements that are true, above 0 and at"
            " most 1"
        )
    _replace_nonzero()
    with ExitStack() as stack:
        for owner in (torch, Tensor):
            stack.enter_context(replaced(owner, sum=_counting(owner.sum)))
        comparisons = {
            name: _of_counts(getattr(Tensor, name), getattr(operator, name)) for name in COMPARISONS
        }
        stack.enter_context(replaced(Tensor, **comparisons))
        _SHARE.append(float(share))
        try:
            yield
        finally:
            _SHARE.pop()


COMPARISONS = ("__gt__", "__ge__", "__lt__", "__le__")
"""Methods by which a step compares the number of selected elements with another number."""


def _counting(usual: Any) -> Any:
    """`sum`, whose result for a whole mask tells how many elements are true."""

    def count(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = usual(x, *args, **kwargs)
        if is_empty(x) and x.dtype == torch.bool and not args and not kwargs:
            result._steptime_usual = math.ceil(x.numel() * _SHARE[-1])
        return result

    return count


def _of_counts(usual: Any, compare: Callable[[Any, Any], bool]) -> Any:
    """A comparison, whose result is known for a number of selected elements."""

    def answer(x: Tensor, other: Any) -> Any:
        result, count = usual(x, other), getattr(x, "_steptime_usual", None)
        if count is not None and isinstance(other, int | float):
            result._steptime_usual = compare(count, other)
        return result

    return answer


def _by_index(usual: Any) -> Any:
    """`masked_select` as on CUDA: both tensors are broadcast, then the mask is used as an index (IndexKernel.cpp)."""

    def select(x: Tensor, mask: Tensor, **kwargs: Any) -> Any:
        if not is_empty(x):
            return usual(x, mask, **kwargs)
        shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
        return x.expand(shape)[mask.expand(shape)]

    return select


@cache
def _replace_nonzero() -> Any:
    """Register a shape function of `nonzero` for the meta device."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def nonzero(x: Tensor) -> Tensor:
        if not _SHARE and not assumes_all_nonzero():
            raise NotImplementedError(
                "torch.nonzero: the number of elements that it finds depends on data"
            )
        count = math.ceil(x.numel() * (_SHARE[-1] if _SHARE else 1.0))
        return torch.empty_strided(
            (count, x.dim()), (1, max(count, 1)), dtype=torch.long, device=x.device
        )

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the warning that PyTorch's own function, which only raises, is replaced
        try:
            library.impl("nonzero", nonzero, "Meta", allow_override=True)
        except TypeError:  # this PyTorch version has no `allow_override` and always overrides
            library.impl("nonzero", nonzero, "Meta")
    return library


@contextmanager
def whole_sequences() -> Iterator[None]:
    """While the body runs, `transformers` does not read two facts from the device, for which the host would wait.

    * Whether sequences are packed: they are not.
    * Whether a mask hides any token: a mask that a step gives is assumed to do so, as in a batch with padding.

    Nothing is done if `transformers` is not loaded, or is older than its module of masks.
    """
    masking_utils: Any = sys.modules.get("transformers.masking_utils")
    with ExitStack() as stack:
        if hasattr(masking_utils, "find_packed_sequence_indices"):
            stack.enter_context(
                replaced(masking_utils, find_packed_sequence_indices=lambda position_ids: None)
            )
        if hasattr(masking_utils, "is_tracing"):
            asked = masking_utils.is_tracing

            def is_tracing(tensor: Tensor | None = None) -> bool:
                return bool(asked(tensor)) or (tensor is not None and tensor.device.type == "meta")

            stack.enter_context(replaced(masking_utils, is_tracing=is_tracing))
        yield
