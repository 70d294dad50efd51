"""Steps of a model that is given as a module, or as a function or class that makes one.

A module of the user is captured as it is: while it is, its parameters and buffers, and those that its optimizer updates, are
tensors without data. Afterwards the module and its optimizer are as before.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from logging import Logger
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.as_on_cuda.known_values import keep_values
from pipeline.as_on_cuda.shape_operators import is_empty
from pipeline.as_on_cuda.torch_names import tree_flatten, tree_unflatten
from pipeline.errors import InputError, name_of
from pipeline.workloads.training_step import Batch, Step, check_procedure, is_dry

Undo = Callable[[], None]


class UserModule:
    """Makes steps of a model and the parts of its training.

    Args:
        model: a module, or a function or class that makes one without arguments.
        batch: tensors in a tuple, a dict or any nesting of them, or a function `batch_size -> batch`. The model gets the parts
            of a tuple, or a dict as keywords. Flags, texts and other values beside the tensors are passed on unchanged.
        loss: (output, last part of the batch) -> scalar; the model then gets the other parts. Without it, the model itself
            returns the loss, alone or under the name `loss`, or several losses in a dict.
        optimizer: an optimizer of the module, or a class or function that makes one from the parameters; by default the one
            that `model.optimizer` names.
        procedure: `procedure(batch, optimizers)`, which replaces the step after the copies; it uses `model`, a module.

    Raises:
        InputError: parts are missing, or contradict each other.
    """

    def __init__(
        self,
        model: Any,
        batch: Any = None,
        loss: Callable[..., Any] | None = None,
        optimizer: Any = None,
        procedure: Callable[..., Any] | None = None,
    ) -> None:
        if batch is None:
            raise InputError(
                f"model={name_of(model)}: give batch= too, such as (x, y) or a function batch_size"
                " -> (x, y)"
            )
        if not isinstance(model, nn.Module) and not callable(model):
            raise InputError(
                f"model={type(model).__name__}: give a module, or a function or class that"
                " makes one"
            )
        if procedure is not None and not isinstance(model, nn.Module):
            raise InputError(
                "procedure= uses the module that model= names: make it first, under"
                " torch.device('meta') if it is large"
            )
        for keyword, function in {"loss": loss, "procedure": procedure}.items():
            if function is not None and not callable(function):
                raise InputError(f"{keyword}={type(function).__name__}: give a function")
        _check_optimizer(optimizer, model, loss)
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.procedure = procedure
        self.batch = (
            dict(batch)
            if isinstance(batch, Mapping)
            else tuple(batch)
            if isinstance(batch, list)
            else batch
        )
        self.batch_size = None if callable(batch) else _samples(self.batch)
        self._undo: list[Undo] = []

    def make(self, config: Mapping[str, Any], batch_size: int, device: str) -> Step:
        """The step at a batch size, on the meta device or of fake tensors. One step exists at a time.

        Raises:
            InputError: the model is no module.
        """
        self.restore()
        module = self.model if isinstance(self.model, nn.Module) else _made(self.model, device)
        function = self.loss if isinstance(self.loss, nn.Module) else nn.Module()
        loss = [function] if [*function.parameters(), *function.buffers()] else []
        whole_modules = (*module.modules(), *(loss[0].modules() if loss else ()))
        self._undo += map(_remembered, (*whole_modules, *_settings_in(whole_modules)))
        scripts = (part for part in whole_modules if isinstance(part, torch.jit.ScriptModule))
        self._undo += map(_tensors_remembered, scripts)
        # a wrapper keeps the parameters that it was made with: a module that was made without data stays as it is
        made_empty = module is not self.model and all(
            map(is_empty, [*module.parameters(), *module.buffers()])
        )
        new = _emptied(loss if made_empty else [module, *loss], device)
        parts, structure = tree_flatten(self._batch(batch_size))
        inputs = [_on_host(part, device) for part in parts if isinstance(part, Tensor)]

        def whole(tensors: Batch) -> Any:
            """The batch as the user gave it, with these tensors in place of its own."""
            given = iter(tensors)
            return tree_unflatten(
                [next(given) if isinstance(part, Tensor) else part for part in parts], structure
            )

        return Step(
            [module, *loss],
            [tuple(inputs)],
            lambda *flat: self._forward(module, whole(flat)),
            lambda output, *flat: self._loss(output, whole(flat)),
            device,
            config,
            procedure=None if self.procedure is None else self._procedure(whole),
            own_optimizers=self._optimizers(module, new),
            seq_len=_tokens(inputs, self.batch),
        )

    def restore(self) -> None:
        """Give the user's objects their tensors and settings back."""
        while self._undo:
            self._undo.pop()()

    def _batch(self, batch_size: int) -> Any:
        return (
            self.batch(batch_size)
            if callable(self.batch)
            else _resized(self.batch, self.batch_size, batch_size)
        )

    def _forward(self, module: nn.Module, batch: Any) -> Any:
        if isinstance(batch, Mapping):
            return module(**batch)
        parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        parts = parts[:-1] if self.loss is not None and len(parts) > 1 else parts
        try:
            return module(*parts)
        except TypeError as error:
            if "positional argument" in str(error):
                last = (
                    " but the last"
                    if self.loss
                    else ": give loss=function(output, target) for the last one"
                )
                error.add_note(f"the model gets all parts of the batch{last}")
            raise

    def _loss(self, output: Any, batch: Any) -> Tensor:
        if self.loss is None:
            return _loss_in(output)
        target = batch if isinstance(batch, (Mapping, Tensor)) else batch[-1]
        value: Tensor = self.loss(output, target)
        return value

    def _procedure(
        self, whole: Callable[[Batch], Any]
    ) -> Callable[[Batch, Sequence[Optimizer]], None]:
        """The user's procedure, which gets the batch as the user gave it. What it uses by name is restored, too."""
        procedure: Any = self.procedure
        self._undo += [_remembered(used) for used in _used_by(procedure)]
        check_procedure(procedure)
        return lambda flat, optimizers: procedure(whole(flat), optimizers)

    def _optimizers(self, module: nn.Module, new: Mapping[int, Tensor]) -> list[Optimizer]:
        """The user's own optimizers, which update the parameters without data; none if `model.optimizer` names one."""
        if self.optimizer is None:
            return []
        inner = _inner(self.optimizer)
        if not isinstance(inner, Optimizer):
            return [self.optimizer(module.parameters())]
        self._undo += [_remembered(inner), *(_remembered(group) for group in inner.param_groups)]
        inner.state = defaultdict(dict)
        for group in inner.param_groups:
            group["params"] = [new.get(id(parameter), parameter) for parameter in group["params"]]
        return [self.optimizer]


def _inner(optimizer: Any) -> Any:
    """The optimizer within a wrapper such as that of `Accelerator.prepare`."""
    return getattr(optimizer, "optimizer", optimizer)


def _check_optimizer(optimizer: Any, model: Any, loss: Any) -> None:
    """Refuse what is neither an optimizer of the module (or of its loss) nor makes one."""
    inner = _inner(optimizer)
    if not isinstance(inner, Optimizer):
        if optimizer is not None and not callable(optimizer):
            raise InputError(
                f"optimizer={type(optimizer).__name__}: give one optimizer of the module, or its"
                " class or name"
            )
        return
    if not isinstance(model, nn.Module):
        raise InputError(
            "optimizer= updates another module than model= makes: give its class, or the module"
        )
    trained = {
        id(part)
        for module in (model, loss)
        if isinstance(module, nn.Module)
        for part in module.parameters()
    }
    if trained.isdisjoint(id(part) for group in inner.param_groups for part in group["params"]):
        raise InputError(
            f"optimizer= updates no parameter of model={name_of(model)}: make it from those, or"
            " give its class"
        )


def _made(make: Callable[[], Any], device: str) -> nn.Module:
    """The module that a function or class makes, without data; on the CPU if it reads values while it makes them."""
    name = name_of(make)
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise InputError(
            f"model={name}: it is called without arguments ({error}): give lambda: {name}(...)"
        ) from None
    except ValueError:  # a compiled function has no signature
        pass
    try:
        with torch.device(device):
            module = make()
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error).lower():
            raise
        module = make()
    if not isinstance(module, nn.Module):
        raise InputError(f"model={name}: it returns {type(module).__name__}, not a torch.nn.Module")
    return module


def _emptied(modules: Iterable[nn.Module], device: str) -> dict[int, Tensor]:
    """Replace all parameters and buffers by tensors without data; those that are tied stay tied.

    Returns:
        The new parameters by the `id` of the old ones.
    """
    made: dict[int, Any] = {}
    for part in (part for module in modules for part in module.modules()):
        for name, old in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            new = made.setdefault(
                id(old), nn.Parameter(torch.empty_like(old, device=device), old.requires_grad)
            )
            setattr(part, name, new)
        for name, buffer in list(part.named_buffers(recurse=False, remove_duplicate=False)):
            new = torch.empty_like(buffer, device=device)
            if device == "meta" and not is_empty(buffer):
                keep_values(new, buffer.clone)
            setattr(part, name, new)
    return made


def _remembered(owner: Any) -> Undo:
    """Remember class and attributes of an object (or the entries of a dict), and what its dicts and lists hold; undoes changes."""
    held, kind = owner if isinstance(owner, dict) else vars(owner), type(owner)
    before = dict(held)
    inside = [(value, copy(value)) for value in before.values() if isinstance(value, (dict, list))]

    def undo() -> None:
        if type(owner) is not kind:  # `fully_shard` makes it an instance of a subclass
            owner.__class__ = kind
        held.clear()
        held.update(before)
        for value, earlier in inside:
            if not _same_content(value, earlier):  # what nobody may change has not changed
                value.clear()
                value.update(earlier) if isinstance(value, dict) else value.extend(earlier)

    return undo


def _tensors_remembered(script: torch.jit.ScriptModule) -> Undo:
    """Remember the tensors of a module of TorchScript, which its attributes do not hold."""
    held = [*script.named_parameters(recurse=False), *script.named_buffers(recurse=False)]

    def undo() -> None:
        for name, tensor in held:
            setattr(script, name, tensor)

    return undo


def _settings_in(modules: Iterable[nn.Module]) -> list[Any]:
    """Objects with attributes that modules hold, such as configurations, and those in them, once each."""
    found: dict[int, Any] = {}
    waiting = [value for module in modules for value in vars(module).values()]
    while waiting:
        value = waiting.pop()
        plain = hasattr(value, "__dict__") and not callable(value) and id(value) not in found
        if plain and not isinstance(value, (dict, list, Tensor, ModuleType, Logger)):
            found[id(value)] = value
            waiting += vars(value).values()
    return list(found.values())


def _same_content(one: Any, other: Any) -> bool:
    """Whether two dicts or lists hold the same objects in the same order."""
    if isinstance(one, dict):
        one, other = ([*held, *held.values()] for held in (one, other))
    return [id(each) for each in one] == [id(each) for each in other]


def _used_by(procedure: Any) -> list[Any]:
    """Schedulers, gradient scalers and other objects with a state that a procedure uses by name, and what they wrap."""
    function = getattr(procedure, "__func__", procedure)
    if not inspect.isfunction(function):
        return []
    names = inspect.getclosurevars(function)
    used = [*names.nonlocals.values(), *names.globals.values()]
    used += [
        vars(value)["scheduler"] for value in used if "scheduler" in getattr(value, "__dict__", ())
    ]
    kept = [value for value in used if hasattr(value, "state_dict") or hasattr(value, "save_state")]
    return [value for value in kept if not isinstance(value, (type, nn.Module, Optimizer))]


def _loss_in(output: Any) -> Tensor:
    """The loss that a model returned: alone, under the name `loss`, first in a tuple, or as several losses in a dict."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = sum(output.values())
    elif loss is None:
        loss = output[0] if isinstance(output, tuple) else output
    if not isinstance(loss, Tensor):
        raise InputError(
            f"loss=: the model returns {type(output).__name__} without a loss; give"
            " loss=function(output, target)"
        )
    return loss


def _tokens(inputs: Sequence[Tensor], batch: Any) -> int | None:
    """Tokens of a sample: the width of `input_ids`, or of whole numbers that inputs and targets both have; None without."""
    if isinstance(batch, Mapping) and isinstance(ids := batch.get("input_ids"), Tensor):
        inputs = [ids, ids]
    shapes = [each.shape for each in inputs if each.dim() == 2 and not each.is_floating_point()]
    return next((shape[1] for shape in shapes if shapes.count(shape) > 1), None)


def _samples(batch: Any) -> int:
    """Number of samples of a batch: the length of its first list, or the leading size of its first tensor."""
    parts = (
        () if isinstance(batch, Tensor) else batch.values() if isinstance(batch, Mapping) else batch
    )
    first = next(iter(parts), None)
    if isinstance(first, (list, tuple)) and first:
        return len(first)
    sizes = [
        tensor.shape[0]
        for tensor in tree_flatten(batch)[0]
        if isinstance(tensor, Tensor) and tensor.dim()
    ]
    if not sizes:
        raise InputError("batch=: give tensors such as (x, y), or a function batch_size -> (x, y)")
    return int(sizes[0])


def _resized(part: Any, samples: int | None, batch_size: int) -> Any:
    """A batch of another size: lists of samples are repeated, and tensors get another leading size."""
    if samples == batch_size or samples is None:
        return part
    if isinstance(part, Tensor):
        sized = part.dim() > 0 and part.shape[0] == samples
        if sized and not part.is_floating_point() and part.device.type == "cpu":
            return part[torch.arange(batch_size) % samples]  # lengths and masks stay what they are
        return part.new_empty((batch_size, *part.shape[1:]), device="cpu") if sized else part
    if isinstance(part, Mapping):
        return {key: _resized(value, samples, batch_size) for key, value in part.items()}
    if isinstance(part, list) and len(part) == samples:
        return [part[number % samples] for number in range(batch_size)]
    return (
        type(part)(_resized(value, samples, batch_size) for value in part)
        if isinstance(part, (list, tuple))
        else part
    )


def _on_host(tensor: Tensor, device: str) -> Tensor:
    """A tensor of the batch in the memory of the host; one without data where the step is of fake tensors."""
    if tensor.device.type == "cpu" and (device == "meta" or not is_dry(device)):
        return tensor
    return torch.empty_like(tensor, device="cpu")
