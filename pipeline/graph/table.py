"""The operator graph of a training step, as a table and as node objects.

Node      one operator: name, input and output tensors, scalar arguments, place in the tree.
Tensor    the description of a tensor without its data: shape, dtype, strides, whether it is on the host.
Graph     the table (schema `graph`) with the memory need of the step.

The inputs of an operator are tensors, lists of tensors, and plain values. The dtype column of the table has

* a dtype name for a tensor,
* a list of names for a list of tensors,
* null for a plain value, whose content is in `attributes["values"]`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pandas as pd

from pipeline.families.dims import ELEMENT_BYTES
from pipeline.schemas import SCHEMAS

DTYPE_BYTES = {**ELEMENT_BYTES, "complex64": 8, "complex128": 16}
"""Bytes of one element by dtype; the complex dtypes are added here, because kernel models do not use them."""

FORWARD_THREAD, BACKWARD_THREAD = 0, 1


@dataclass(frozen=True)
class Tensor:
    """A tensor without data; `strides` is None if they are not known, and `()` means contiguous."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    host: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return self.numel * DTYPE_BYTES.get(self.dtype, 4)

    @property
    def stored_bytes(self) -> int:
        """Bytes that are moved to read the tensor: an expanded dimension (stride 0) counts as one element."""
        if not self.strides:
            return self.bytes
        sizes = [size for size, stride in zip(self.shape, self.strides, strict=True) if stride != 0]
        return math.prod(sizes) * DTYPE_BYTES.get(self.dtype, 4)

    @property
    def contiguous(self) -> bool:
        """Whether elements are stored row by row without gaps; unknown strides count as contiguous.

        The stride of a dimension of one element has no meaning, as in PyTorch.
        """
        if not self.strides or self.strides == contiguous_strides(self.shape):
            return True
        usual = zip(self.shape, self.strides, contiguous_strides(self.shape), strict=True)
        return all(size == 1 or stride == expected for size, stride, expected in usual)

    @property
    def dense(self) -> bool:
        """Whether elements are stored without gaps or overlap, in any order of dimensions."""
        if not self.strides:
            return True
        expected = 1
        for stride, size in sorted(
            (st, sz) for st, sz in zip(self.strides, self.shape, strict=True) if sz != 1
        ):
            if stride != expected:
                return False
            expected *= size
        return True

    def rows_width(self) -> tuple[int, int]:
        """(product of the leading dimensions, last dimension)."""
        if not self.shape:
            return 1, 1
        return math.prod(self.shape[:-1]), self.shape[-1]


NODE_COLUMNS: dict[str, Any] = {
    "node_id": "int64",
    "parent_id": "Int64",
    "name": None,
    "order": "int64",
    "thread": "int64",
    "phase": None,
    "is_top_level": "bool",
    "module": "object",
}
"""Columns of the table that are attributes of a node, with their dtypes; without one, pandas infers it."""

TEXT_COLUMNS = ("input_shapes", "input_dtypes", "output_shapes", "attributes")
"""Columns of the table that hold JSON texts."""

Value = Any
Argument = Tensor | tuple[Tensor, ...] | None
"""A tensor, a list of tensors, or None where the argument is a plain value."""


@dataclass
class Node:
    """One operator call. If input `i` is a plain value, `inputs[i]` is None and `values[i]` is the value."""

    node_id: int
    name: str
    parent_id: int | None = None
    order: int = 0
    thread: int = FORWARD_THREAD
    phase: str = "forward"
    inputs: tuple[Argument, ...] = ()
    values: tuple[Value, ...] = ()
    outputs: tuple[Argument, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    is_top_level: bool = True
    module: str | None = None
    """Path of the module that it belongs to (`pipeline.graph.capture`), `inputs`, `loss` or `optimizer`, or None."""

    def tensors(self) -> list[Tensor]:
        """Input tensors in order; lists are flattened."""
        return _flat(self.inputs)

    def results(self) -> list[Tensor]:
        """Output tensors in order; lists are flattened."""
        return _flat(self.outputs)

    def tensor(self, index: int) -> Tensor:
        """Input `index`, which must be a tensor.

        Raises:
            LookupError: the input is missing or is not a tensor.
        """
        found = self.inputs[index] if -len(self.inputs) <= index < len(self.inputs) else None
        if not isinstance(found, Tensor):
            raise LookupError(f"{self.name}: input {index} is not a tensor")
        return found

    def tensor_list(self, index: int) -> tuple[Tensor, ...]:
        """Input `index` as a list of tensors (a single tensor becomes a list of one)."""
        found = self.inputs[index] if index < len(self.inputs) else None
        return found if isinstance(found, tuple) else (found,) if isinstance(found, Tensor) else ()

    def result(self) -> Tensor | None:
        """First output tensor, if any is known."""
        return next(iter(self.results()), None)

    def value(self, index: int, default: Any = None) -> Any:
        """Plain argument `index`, or the default if it is absent or None."""
        found = self.values[index] if 0 <= index < len(self.values) else None
        return default if found is None else found

    @property
    def on_host(self) -> bool:
        """Whether every tensor of the operator is in host memory, so that the device has no work."""
        every = self.tensors() + self.results()
        return bool(every) and all(tensor.host for tensor in every)


@dataclass(frozen=True)
class Memory:
    """What a step needs in device memory, in bytes."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    inputs: int = 0
    blocks: int = 0
    """The most tensors that are alive at once."""
    peak: int = 0
    """The most that is alive at once, weights and optimizer state included: what `torch.cuda.max_memory_allocated` says."""
    saved: int = 0
    """What a forward pass leaves for its backward pass: activations of one micro-batch."""
    kept: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    """`saved` by path of the module whose forward pass made it; outside modules the path is empty."""
    peaks: tuple[int, ...] = field(default=(), compare=False, repr=False)
    course: pd.DataFrame | None = field(default=None, compare=False, repr=False)
    """In a step that was just captured: the bytes alive before something is freed; and those by kind (`LiveMemory.course`)."""

    @property
    def activations(self) -> int:
        """What the peak holds beside weights, optimizer state and inputs: activations, temporaries and gradients."""
        return self.peak - self.parameters - self.optimizer - self.inputs

    def facts(self) -> dict[str, Any]:
        """What a file keeps."""
        return {key: value for key, value in vars(self).items() if key not in ("peaks", "course")}


@dataclass
class Graph:
    """The operators of one step in host order (`graph` schema), and its memory need.

    `device` is the device of the step: "cuda" for a captured graph or the trace of a GPU, "cpu" for the trace of a CPU.
    """

    table: pd.DataFrame
    memory: Memory = Memory()
    device: str = "cuda"
    model: str = ""
    batch_size: int = 0
    warnings: tuple[str, ...] = ()
    """What a user should know of the captured step, one sentence each."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Number of parameters that each module holds itself, by its path, in the order of the model; empty for a trace."""
    computed: dict[str, str] = field(default_factory=dict)
    """Dtype, optimizer and attention of a step that is not a shipped workload, as its code has them."""
    gpu: str = ""
    """The GPU for which alone the graph holds, because the step's code reads its properties; empty: for all."""

    def nodes(self) -> list[Node]:
        """All rows as nodes, in host order."""
        return list(read_nodes(self.table))


@lru_cache(maxsize=4096)
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of a shape."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def write_nodes(nodes: Sequence[Node]) -> pd.DataFrame:
    """Nodes as a table of the `graph` schema, in host order."""
    ordered = sorted(nodes, key=lambda node: node.order)
    columns: dict[str, Any] = {}
    for name, dtype in NODE_COLUMNS.items():
        values = [getattr(node, name) for node in ordered]
        columns[name] = values if dtype is None else pd.array(values, dtype=dtype)
    columns["input_shapes"] = [_shapes_text(node.inputs) for node in ordered]
    columns["input_dtypes"] = [_dtypes_text(node.inputs) for node in ordered]
    columns["output_shapes"] = [_shapes_text(node.outputs) for node in ordered]
    columns["attributes"] = [dump(_packed(node)) for node in ordered]
    return pd.DataFrame({name: columns[name] for name in SCHEMAS["graph"].names})


def read_nodes(table: pd.DataFrame) -> Iterator[Node]:
    """The rows of a `graph` table as nodes.

    Rows with equal texts are read once, because layers repeat. Their nodes share what is inside `values` and `attributes`.
    """
    # as lists of Python's own numbers, and None
    columns = (table[name].astype(object) for name in (*NODE_COLUMNS, *TEXT_COLUMNS))
    details: dict[tuple[str, ...], tuple[Any, ...]] = {}
    for row in zip(
        *(column.where(column.notna(), None).tolist() for column in columns), strict=True
    ):
        plain = dict(zip(NODE_COLUMNS, row, strict=False))
        key = row[len(NODE_COLUMNS) :]
        if key not in details:
            details[key] = _read_details(*key)
        inputs, values, outputs, attributes = details[key]
        arguments = {"inputs": inputs, "values": values, "outputs": outputs}
        yield Node(**plain, **arguments, attributes=dict(attributes))


def _read_details(shapes: str, dtypes: str, results: str, text: str) -> tuple[Any, ...]:
    """The details of a node from its columns `input_shapes`, `input_dtypes`, `output_shapes` and `attributes`."""
    attributes = json.loads(text)
    return *_read_arguments(shapes, dtypes, results, dump(attributes.pop("_", {}))), attributes


@lru_cache(maxsize=4096)
def _read_arguments(shapes: str, dtypes: str, results: str, text: str) -> tuple[Any, ...]:
    """Inputs, values and outputs. Attributes have a number of their own for most nodes, and are read apart."""
    extra = json.loads(text)
    devices = extra.get("host")
    strides = extra.get("strides")
    kinds = json.loads(dtypes)
    sizes = json.loads(shapes)
    inputs = tuple(
        _argument(sizes[i], kinds[i], _at(strides, i), _at(devices, i)) for i in range(len(kinds))
    )
    out_sizes = json.loads(results)
    out_kinds = extra.get("output_dtypes")
    out_host = extra.get("output_host")
    outputs = tuple(
        _argument(s, _at(out_kinds, i), None, _at(out_host, i)) for i, s in enumerate(out_sizes)
    )
    return inputs, tuple(extra.get("values", ())), outputs


def _flat(arguments: Sequence[Argument]) -> list[Tensor]:
    found: list[Tensor] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            found.append(argument)
        elif argument is not None:
            found.extend(argument)
    return found


def replaced_tensors(
    arguments: Sequence[Argument], change: Callable[[Tensor], Tensor]
) -> tuple[Argument, ...]:
    """The arguments of an operator with each tensor changed, also in lists."""
    return tuple(
        tuple(map(change, argument)) if isinstance(argument, tuple) else _each(argument, change)
        for argument in arguments
    )


def _each(argument: Argument, describe: Callable[[Tensor], Any]) -> Any:
    """The description of a tensor, or a list of those of several; None for a plain value."""
    if isinstance(argument, tuple):
        return [describe(tensor) for tensor in argument]
    return None if argument is None else describe(argument)


def dump(value: Any) -> str:
    """A value as JSON text, as the columns of a graph hold it."""
    return json.dumps(value, separators=(",", ":"))


@lru_cache(maxsize=4096)
def _shapes_text(arguments: tuple[Argument, ...]) -> str:
    return dump([[] if each is None else _each(each, _shape) for each in arguments])


@lru_cache(maxsize=4096)
def _dtypes_text(arguments: tuple[Argument, ...]) -> str:
    return dump([_each(each, _dtype) for each in arguments])


def _at(values: Any, index: int) -> Any:
    return values[index] if isinstance(values, list) and index < len(values) else None


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def _dtype(tensor: Tensor) -> str:
    return tensor.dtype


def _strides(tensor: Tensor) -> int | list[int] | None:
    """Strides if they are not contiguous; 0 means unknown."""
    if tensor.strides is None:
        return 0
    return None if tensor.contiguous else list(tensor.strides)


def _host(tensor: Tensor) -> bool | None:
    return tensor.host or None


def _packed(node: Node) -> dict[str, Any]:
    """Attributes with an added key `_` for what the shape and dtype columns cannot hold; empty parts are left out."""
    extra: dict[str, Any] = {
        "values": list(node.values),
        "strides": [_each(argument, _strides) for argument in node.inputs],
        "host": [_each(argument, _host) for argument in node.inputs],
        "output_dtypes": [_each(argument, _dtype) for argument in node.outputs],
        "output_host": [_each(argument, _host) for argument in node.outputs],
    }
    kept = {key: value for key, value in extra.items() if any(_filled(item) for item in value)}
    return {**node.attributes, **({"_": kept} if kept else {})}


def _filled(item: Any) -> bool:
    return any(_filled(part) for part in item) if isinstance(item, list) else item is not None


def _argument(shape: Any, dtype: Any, strides: Any, host: Any) -> Argument:
    if dtype is None:
        return None
    if isinstance(dtype, list):
        return tuple(
            _tensor(one, kind, _at(strides, i), _at(host, i))
            for i, (one, kind) in enumerate(zip(shape, dtype, strict=True))
        )
    return _tensor(shape, dtype, strides, host)


def _tensor(shape: Any, dtype: str, strides: Any, host: Any) -> Tensor:
    size = tuple(shape)
    known = (
        None
        if strides == 0
        else tuple(strides)
        if strides is not None
        else contiguous_strides(size)
    )
    return Tensor(size, dtype, known, bool(host))
