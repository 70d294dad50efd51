"""A training step: copy of inputs, forward, loss, backward, optimizer; each phase runs under an annotation.

The annotations (`## data ##`, `## forward ##`...) are TorchRec's. Profiler traces and execution traces contain them, so
that captured and measured steps have the same phases.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from pipeline.as_on_cuda.fully_sharded import held_bytes
from pipeline.as_on_cuda.host_reads import read
from pipeline.as_on_cuda.mixed_precision import DTYPES, autocast
from pipeline.as_on_cuda.shape_operators import is_fake
from pipeline.errors import ConfigError, InputError
from pipeline.question.embedding_tables import table_optimizer
from pipeline.workloads.step_optimizers import OPTIMIZER_STATES, make_optimizers, sparse_lookups

Batch = tuple[Tensor, ...]
"""Tensors of one batch, on the host."""


PROCEDURE = (
    "procedure(batch, optimizers), with the tuple of the batch's tensors (x, y = batch) and the"
    " list of optimizers"
)
"""How a step calls its procedure, for messages."""


def phase(name: str) -> AbstractContextManager[Any]:
    """Annotate a phase of the step."""
    return record_function(f"## {name} ##")


@dataclass
class Step:
    """One step of a workload, which can be run repeatedly.

    Args:
        modules: all modules with parameters.
        pool: batches on the host, used in turn; `model.copies=none` puts them on the device beforehand.
        forward: (device tensors of a batch) -> output; runs under `## forward ##`.
        loss: (output, device tensors) -> scalar; None if `forward` already returns the loss.
        device: "cuda", "cpu" or "meta".
        config: the configuration of the step.
        in_kernel: parameters that the backward pass itself updates; they have neither gradient nor optimizer state.
        procedure: replaces the whole step after the copies, for workloads with several backward passes; called as
            `procedure(batch, optimizers)`, with the tuple of the batch's tensors on the device and the list of optimizers.
        own_optimizers: take the place of those that the configuration names.
        picked: share of the elements of a mask that select data, where `model.picked` does not say it.
        seq_len: tokens of a sample, where it is a sequence of tokens and `model.seq_len` does not say it.
    """

    modules: Sequence[nn.Module]
    pool: Sequence[Batch]
    forward: Callable[..., Any]
    loss: Callable[..., Tensor] | None
    device: str
    config: Mapping[str, Any]
    in_kernel: Sequence[Tensor] = ()
    procedure: Callable[[Batch, Sequence[torch.optim.Optimizer]], None] | None = None
    own_optimizers: Sequence[torch.optim.Optimizer] = ()
    picked: float | None = None
    seq_len: int | None = None
    optimizers: list[torch.optim.Optimizer] = field(init=False)
    dtype: str = field(init=False)
    precision_read: bool = field(init=False, default=False)
    """Whether the step has used its dtype: by `autocast`, or cast as a whole."""
    without_exchange: Callable[[], Any] = field(init=False, default=nullcontext)
    """The context of a pass whose gradients ranks do not exchange."""
    after_forward: Callable[[], Any] = field(init=False, default=nullcontext)
    """Called between forward and backward pass."""

    def __post_init__(self) -> None:
        _check_pool(self.pool)
        self.training = self.config.get("mode", "train") == "train"
        self._check_arguments()
        self.dtype = str(self.config.get("dtype", "fp32"))
        self.pure = self.config.get("precision") == "pure"
        self.waits = self.config.get("copies") == "pageable"
        self.copies = self.config.get("copies") != "none"
        self.reads = str(self.config.get("read_loss") or "never")
        self.parts = int(self.config.get("accumulation") or 1) if self.training else 1
        if self.reads != "never" and not self.training:
            raise ConfigError(
                f"model.read_loss={self.reads}: inference has no loss; set model.read_loss=never"
            )
        for module in self.modules:
            module.train(self.training)
            if not self.training:  # in training, parameters that the user froze stay frozen
                module.requires_grad_(False)
        dry = is_dry(self.device)
        if self.pure:
            self._cast(stored_dtype(self.config))
        if self.config.get("memory_format") == "channels_last":
            for module in self.modules:
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.pool = [
                tuple(channels_last(tensor, dry) for tensor in batch) for batch in self.pool
            ]
        if not self.copies:
            self.pool = [
                tuple(to_device(tensor, self.device) for tensor in batch) for batch in self.pool
            ]
        elif self.device == "cuda" and not self.waits:
            self.pool = [tuple(tensor.pin_memory() for tensor in batch) for batch in self.pool]
        name = str(self.config.get("optimizer", "sgd")) if self.training else "none"
        foreach = self.config.get("foreach", True)
        made = [
            one for module in self.modules for one in make_optimizers(name, module, dry, foreach)
        ]
        self.optimizers = (
            list(self.own_optimizers) if self.own_optimizers and self.training else made
        )

    def _check_arguments(self) -> None:
        """Refuse what is no list of modules, what cannot be called, and a forward pass that is missing."""
        if not isinstance(self.modules, Iterable) or not all(
            isinstance(part, nn.Module) for part in self.modules
        ):
            raise InputError("Step: modules must be a list of torch modules, such as [model]")
        for name in ("forward", "loss", "procedure"):
            if (given := getattr(self, name)) is not None and not callable(given):
                raise InputError(f"Step: {name} must be a function, not {type(given).__name__}")
        if self.forward is None and (self.procedure is None or not self.training):
            raise InputError(
                "Step: forward is None: give a function (a procedure may replace it, in training"
                " alone)"
            )
        check_procedure(self.procedure)

    def run(self, number: int = 0) -> None:
        """Run one step on batch `number` of the pool (modulo its length)."""
        if self.training and self.procedure is None:
            self._train(number)
            return
        batch = self._copied(number)
        if self.procedure is not None and self.training:
            with phase("forward"):
                pass  # the inputs are there: what follows is no copy of them
            try:
                self.procedure(batch, self.optimizers)
            except (TypeError, AttributeError) as error:
                if "tuple" in str(error) or "list" in str(
                    error
                ):  # its arguments were taken for single tensors
                    error.add_note(f"a Step calls {PROCEDURE}")
                raise
        else:
            with torch.no_grad(), self.autocast(), phase("forward"):
                self.forward(*batch)

    def _copied(self, number: int) -> Batch:
        """The tensors of batch `number` of the pool on the device."""
        batch = self.pool[number % len(self.pool)]
        if not self.copies:
            return batch
        with phase("data"):
            return tuple(to_device(tensor, self.device, self.waits) for tensor in batch)

    @property
    def ignores_half_precision(self) -> bool:
        """Whether half precision is asked for, and nothing in the step has used it so far: no cast, no parameter."""
        asked = DTYPES.get(self.dtype)
        return (
            asked is not None
            and not self.precision_read
            and all(p.dtype != asked for p in self.parameters())
        )

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of mixed precision for the step's dtype; the meta device follows the rules of CUDA."""
        self.precision_read = True
        return (
            autocast(self.device, self.dtype)
            if self.dtype in DTYPES and not self.pure
            else nullcontext()
        )

    def _cast(self, dtype: torch.dtype) -> None:
        """Cast modules, parameters in `in_kernel` and inputs from fp32 to `dtype`; indices are not cast."""
        dry = is_dry(self.device)
        self.precision_read = True
        for module in self.modules:
            if any(map(is_fake, module.parameters())):
                _replace_parameters(module, dtype)
            else:
                module.to(dtype)
        for tensor in self.in_kernel:
            tensor.data = tensor.data.to(dtype)
        self.pool = [tuple(_lowered(tensor, dtype, dry) for tensor in batch) for batch in self.pool]

    def _train(self, number: int) -> None:
        """One update, from `parts` batches of the pool. Ranks exchange the gradients of the last one, which hold them all."""
        for part in range(self.parts):
            with self.without_exchange() if part < self.parts - 1 else nullcontext():
                value = self._gradients(self._copied(number * self.parts + part), part == 0)
        with phase("optimizer"):
            for optimizer in self.optimizers:
                optimizer.step()
        self.read(value, "at_end")

    def _gradients(self, batch: Batch, first: bool) -> Tensor:
        """The loss of a batch after its backward pass; before the first batch, gradients are deleted."""
        if self.optimizers and first:
            self.zero_grad(self.optimizers)
        with self.autocast():
            with phase("forward"):
                value: Tensor = self.forward(*batch)
            if self.loss is not None:
                with phase("loss"):
                    value = self.loss(value, *batch)
        if self.parts > 1:
            with phase("loss"):
                value = value / self.parts
        self.read(value, "before_backward")
        self.after_forward()
        with phase("backward"):
            value.backward()  # type: ignore[no-untyped-call]
        return value

    def zero_grad(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Delete gradients, or fill them with zeros if the configuration says so."""
        with phase("zero_grad"):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=self.config.get("set_to_none", True))

    def read(self, loss: Tensor, when: str) -> None:
        """Read the loss on the host if the configuration says so for this point of the step (`model.read_loss`)."""
        if self.reads == when:
            with phase("loss"):
                read(loss)

    def parameters(self) -> list[Tensor]:
        """Parameters of all modules, each once."""
        return list({id(p): p for module in self.modules for p in module.parameters()}.values())

    @property
    def parameters_bytes(self) -> int:
        """Bytes of all weights, including those that the backward pass itself updates."""
        weights = [held_bytes(t) for t in self.parameters()]
        return sum(weights) + sum(t.nbytes for t in self.in_kernel)

    @property
    def buffers_bytes(self) -> int:
        """Bytes of the buffers of all modules (running statistics, masks)."""
        return sum(b.nbytes for module in self.modules for b in module.buffers())

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that exist at the same time; a sparse gradient counts the rows that a batch uses."""
        if not self.training:
            return 0
        sparse = self._sparse_weights()
        dense = sum(
            held_bytes(t) for t in self.parameters() if t.requires_grad and id(t) not in sparse
        )
        return dense + self.sparse_gradient_bytes

    @property
    def sparse_gradient_bytes(self) -> int:
        """Bytes of the sparse gradients alone."""
        return sum(self._sparse_weights().values()) if self.training else 0

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state."""
        if not self.training:
            return 0
        own = [t for t in self.parameters() if t.requires_grad]
        dense = OPTIMIZER_STATES[str(self.config.get("optimizer", "sgd"))]
        tables = OPTIMIZER_STATES[table_optimizer(self.config)]
        return dense * sum(map(held_bytes, own)) + tables * sum(map(held_bytes, self.in_kernel))

    @property
    def input_bytes(self) -> int:
        """Bytes of one batch on the device."""
        return sum(tensor.nbytes for tensor in self.pool[0])

    def _sparse_weights(self) -> dict[int, int]:
        """Ids of the weights with sparse gradients -> bytes of such a gradient (values and int64 indices)."""
        parts = [part for module in self.modules for part in sparse_lookups(module)]
        looked_up = max(
            (t.numel() for t in self.pool[0] if not t.is_floating_point()), default=0
        )  # by all tables
        return {
            id(part.weight): (
                looked_up // len(parts) * (part.embedding_dim * part.weight.element_size() + 8)
            )
            for part in parts
        }


def _check_pool(pool: object) -> None:
    """Check that the pool is a list of batches, each a tuple of tensors."""
    if not isinstance(pool, Sequence) or all(isinstance(batch, Tensor) for batch in pool):
        raise InputError(
            "Step: pool must be a list of one or more batches: [(x, y)], or [(x,)] for one tensor"
        )
    for batch in pool:
        whole = isinstance(batch, list | tuple)
        if wrong := [part for part in batch if not isinstance(part, Tensor)] if whole else [batch]:
            raise InputError(
                "Step: a batch of the pool must be a tuple of tensors, such as (x, y), not"
                f" {'a tuple that holds ' if whole else ''}{type(wrong[0]).__name__}: forward gets"
                " them in this order"
            )


def check_procedure(procedure: Callable[..., None] | None) -> None:
    """Check that a procedure takes a batch and optimizers.

    Raises:
        InputError: it takes other arguments.
    """
    try:
        if procedure is not None:
            signature = inspect.signature(procedure)
            signature.bind((), [])
    except TypeError as error:
        raise InputError(
            f"Step: it calls {PROCEDURE}; yours is defined as procedure{signature} ({error})"
        ) from None
    except ValueError:  # a compiled function has no signature
        pass


def stored_dtype(config: Mapping[str, Any]) -> torch.dtype:
    """The dtype of a workload's stored floating-point tensors: fp32, or the dtype of a model in half precision."""
    return DTYPES[str(config["dtype"])] if config.get("precision") == "pure" else torch.float32


def _replace_parameters(module: nn.Module, dtype: torch.dtype) -> None:
    """Do `module.to(dtype)` for fake tensors, which cannot change their dtype in place; tied parameters stay tied."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, old in part.named_parameters(recurse=False):
            new = made.setdefault(id(old), nn.Parameter(old.detach().to(dtype), old.requires_grad))
            setattr(part, name, new)
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(part, name, buffer.to(dtype))


def _lowered(tensor: Tensor, dtype: torch.dtype, dry: bool) -> Tensor:
    """Convert an input to `dtype`; if nothing is computed, it is a new tensor, which takes no memory."""
    if not tensor.is_floating_point():
        return tensor
    return torch.empty_like(tensor, dtype=dtype) if dry else tensor.to(dtype)


def to_device(tensor: Tensor, device: str, waits: bool = False) -> Tensor:
    """Copy to the device; `waits` makes the host wait. Nothing is done if the device is the host."""
    if (
        is_fake(tensor) and device != "meta"
    ):  # fake tensors are on one device only: the copy is made explicitly
        return torch.empty_like(tensor).copy_(tensor, non_blocking=not waits)
    return tensor.to(device, non_blocking=not waits)


def channels_last(tensor: Tensor, dry: bool) -> Tensor:
    """Convert images to NHWC (`dry`: without touching their memory); other tensors are unchanged."""
    if tensor.dim() != 4:
        return tensor
    if dry:
        return torch.empty_like(tensor, memory_format=torch.channels_last)
    return tensor.contiguous(memory_format=torch.channels_last)


def is_dry(device: str) -> bool:
    """Whether nothing is computed: on the meta device or under FakeTensorMode."""
    return device == "meta" or is_fake(torch.empty(0))


def host_empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Make a host tensor that is never touched, so that it takes no memory."""
    return torch.empty(*shape, dtype=dtype, device="cpu")
