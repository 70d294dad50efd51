"""Converts the nodes that the meta device records to those that CUDA would record: pruning, names, lookups.

A meta kernel written in Python calls operators that CUDA's kernel does not call. Therefore the children of an operator
are kept only in two cases:

* Its implementation is the same on every device (CompositeImplicitAutograd).
* It is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pipeline.as_on_cuda.emulation import CUDA_NAMES, CUDA_PARENTS
from pipeline.graph.execution_trace import AUTOGRAD, MODULE_MARK, describe_collective, on_streams
from pipeline.graph.lookups import describe_lookups, name_fused_lookups
from pipeline.graph.opmap import rows
from pipeline.graph.table import Argument, Node, Tensor, replaced_tensors

SAME_CHILDREN = ("aten::_to_copy", "aten::clone")
"""Operators whose children are the same on all devices, although their dispatch keys do not show it."""

CUDA_ONLY = ("aten::mish_backward", "aten::_fused_rms_norm")
"""Operators that have a kernel on CUDA only; other devices compose them (ATen/native/native_functions.yaml)."""

NO_STORAGE, UNDEFINED = ", 0, 0, 0, 0, '']", "nullptr (uninitialized)"
"""End of the description of a tensor without storage, and the type of an undefined tensor, in an execution trace."""

NEUTRAL_NAMES = {
    "NativeBatchNormBackward0": "CudnnBatchNormBackward0",
    "aten::native_batch_norm": "aten::cudnn_batch_norm",
    "aten::native_batch_norm_backward": "aten::cudnn_batch_norm_backward",
}
"""Device-neutral names -> names that CUDA records (source: v100_ddp and rtx2080ti_resnet traces)."""

SUBCLASS = "PythonSubclass"
"""Node inside an operator on a subclass of tensors, which are in several parts on several ranks (DTensor)."""

TF32_OPERATORS = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution",
    "aten::convolution_backward", "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward",
    "aten::_grouped_mm",
)  # fmt: skip
"""Operators that use TF32 if it is allowed."""

CUDNN_OPERATORS = (
    "aten::convolution",
    "aten::convolution_backward",
    "aten::_cudnn_rnn",
    "aten::_cudnn_rnn_backward",
)
"""Those to which PyTorch allows TF32 in a script that sets nothing (`torch.backends.cudnn.allow_tf32`)."""

LAYOUT_DEPENDENT = ("convolution", "batch_norm", "_pool2d")
"""Parts of the names of operators whose kernels depend on the memory format of images.

The strides do not show the format, because the meta device's convolution always returns images in NCHW.
"""


def normalise(nodes: Sequence[Node], config: Mapping[str, Any], fake: bool = False) -> list[Node]:
    """Convert the (already pruned) nodes of a captured step to those of CUDA, renumbered in host order."""
    nodes = [_on_cuda(node, fake) for node in nodes]
    if fake:
        nodes = _show_input_copies(_as_real_tensors(nodes))
    nodes = _name_standins(name_fused_lookups(nodes, config))
    nodes = on_streams(describe_lookups(nodes, config))
    allowed = {"tf32": TF32_OPERATORS, "default": CUDNN_OPERATORS}.get(str(config.get("dtype")), ())
    for node in nodes:
        if node.name in allowed:
            node.attributes["tf32"] = True
    if config.get("memory_format") == "channels_last":
        for node in nodes:
            if node.name.startswith("aten::") and any(
                part in node.name for part in LAYOUT_DEPENDENT
            ):
                node.attributes["memory_format"] = "channels_last"
    return renumber(nodes)


def renumber(nodes: Sequence[Node]) -> list[Node]:
    """Renumber ids, orders and autograd's sequence numbers from 0, in the given order of nodes."""
    first = min(
        (node.attributes["sequence"] for node in nodes if "sequence" in node.attributes), default=0
    )
    for node in nodes:
        if first and "sequence" in node.attributes:
            node.attributes = {**node.attributes, "sequence": node.attributes["sequence"] - first}
    ids = {node.node_id: i for i, node in enumerate(nodes)}
    return [
        replace(
            node,
            node_id=i,
            order=i,
            parent_id=None if node.parent_id is None else ids[node.parent_id],
            is_top_level=node.parent_id is None,
        )
        for i, node in enumerate(nodes)
    ]


@cache
def is_composite(schema: str) -> bool:
    """Whether every device implements an operator (`aten::linear`, `aten::add.Tensor`) by other operators."""
    from pipeline.as_on_cuda.torch_names import has_kernel

    return schema not in CUDA_ONLY and has_kernel(schema, "CompositeImplicitAutograd")


@cache
def has_same_children_on_cuda(schema: str) -> bool:
    """Whether an operator without a row in the map has the same children on the meta device as on CUDA.

    This holds for operators such as `aten::pixel_shuffle`: C++ code composes them for every device, and the meta device
    has no kernel of its own.
    """
    from pipeline.as_on_cuda.torch_names import has_kernel

    explicit = any(
        has_kernel(schema, f"CompositeExplicitAutograd{kind}") for kind in ("", "NonFunctional")
    )
    return explicit and schema.split(".")[0] not in rows() and not has_kernel(schema, "Meta")


def prune(raw: Sequence[Mapping[str, Any]], meta: bool = False) -> list[Mapping[str, Any]]:
    """Drop the children of operators that each device implements differently (raw nodes of an execution trace).

    `meta`: the step ran on the meta device. With fake tensors, Python code replaces C++ code of the meta device.
    """
    kept: list[Mapping[str, Any]] = []
    opaque: set[int] = set()
    raw = _without_casting_wrappers(_nested_again(raw))
    for node in sorted(raw, key=lambda node: int(node["rf_id"])):
        if node["parent"] in opaque:
            opaque.add(node["id"])
            continue
        kept.append(node)
        name = node["name"]
        schema = str(node["op_schema"]).split("(")[0]
        open_ = (
            name in SAME_CHILDREN
            or is_composite(schema or name)
            or (meta and has_same_children_on_cuda(schema or name))
        )
        if name.startswith("aten::") and not open_:
            opaque.add(node["id"])
    return kept


def prune_meta(raw: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Apply `prune` to a step on the meta device.

    Operators on wrapped tensors are removed first, and the operators that run, their children, move up: those of `torch.vmap` and
    similar transforms have the shape of one sample, those of tensors that ranks share the shape of the whole.
    """
    sparse = any(
        "sparse_coo_tensor" in node["name"] for node in raw
    )  # such tensors have no storage either
    operators = [] if sparse else [node for node in raw if node["name"].startswith("aten::")]
    wrapped = {node["id"]: node["parent"] for node in operators if _is_wrapped(node)}
    shared = {node["id"]: node["parent"] for node in raw if node["name"] == SUBCLASS}
    outer = {*shared.values()}
    wrapped |= shared | {n["id"]: n["parent"] for n in operators if n["id"] in outer}

    def above(parent: int) -> int:
        while parent in wrapped:
            parent = wrapped[parent]
        return parent

    kept = (
        [{**node, "parent": above(node["parent"])} for node in raw if node["id"] not in wrapped]
        if wrapped
        else raw
    )
    return prune(kept, meta=not sparse)


def _is_wrapped(node: Mapping[str, Any]) -> bool:
    """Whether an operator has an input or output tensor without its own storage (undefined tensors are not counted)."""
    inputs = node["inputs"]
    outputs = node["outputs"]
    count = f"{inputs['values']}{outputs['values']}".count(NO_STORAGE)
    return count > 0 and count > f"{inputs['types']}{outputs['types']}".count(UNDEFINED)


def _without_casting_wrappers(raw: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Remove the outer one of two nodes that PyTorch's autocast records for an operator.

    The children of the outer node are the casts of the operands and the inner node. They move up one level, so that the
    operator follows its casts, as it runs.
    """
    named = {node["id"]: node for node in raw}
    casting = {node["parent"] for node in raw if node["name"] == "aten::to"}
    outer = {
        node["parent"]
        for node in raw
        if node["parent"] in casting
        and node["name"] == named.get(node["parent"], {}).get("name")
        and not is_composite(str(node["op_schema"]).split("(")[0] or node["name"])
    }
    return [
        {**node, "parent": named[node["parent"]]["parent"]} if node["parent"] in outer else node
        for node in raw
        if node["id"] not in outer
    ]


def _nested_again(raw: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Repair the nesting of a step whose checkpointed parts stop early.

    Such a part ends its second forward pass by an exception (torch/utils/checkpoint.py). PyTorch then does not write the
    operator that raises it, whose later neighbours become its children, and records everything after it inside the autograd
    node that asked for the part.
    """
    parents: dict[int, int] = {}
    autograd: set[int] = set()
    last = None
    known = {node["id"] for node in raw}
    for node in sorted(raw, key=lambda node: int(node["rf_id"])):
        parent = node["parent"]
        if parent not in known and last is not None:
            parent = last
        begins = node["name"].startswith(AUTOGRAD)
        while parent in autograd and (
            begins or (node["name"].startswith("## ") and not MODULE_MARK.match(node["name"]))
        ):
            parent = parents[parent]
        parents[node["id"]] = parent
        if begins or (
            parent in autograd and node["name"][-1:].isdigit()
        ):  # `AddmmBackward0`, which Python cannot call
            autograd.add(node["id"])
        last = node["id"] if begins else last
    return [
        node if node["parent"] == parents[node["id"]] else {**node, "parent": parents[node["id"]]}
        for node in raw
    ]


def _on_cuda(node: Node, fake: bool) -> Node:
    name = node.name
    for neutral, cuda in NEUTRAL_NAMES.items():
        name = name.replace(neutral, cuda)
    node.attributes.pop("schema", None)
    if fake:
        counters = node.phase == "optimizer"  # optimizers count their steps on the host
        return replace(
            node,
            name=name,
            inputs=_moved(node.inputs, counters),
            outputs=_moved(node.outputs, counters),
        )
    return replace(node, name=name)


def _moved(arguments: Sequence[Argument], counters: bool = False) -> tuple[Argument, ...]:
    """Move fake tensors, which are all on the host, to the device; tensors that stand for plain numbers stay."""

    def move(tensor: Tensor) -> Tensor:
        number = (
            not tensor.shape
            and tensor.host
            and (counters or tensor.dtype in ("fp64", "int64", "bool"))
        )
        return tensor if number else replace(tensor, host=False)

    return replaced_tensors(arguments, move)


def _as_real_tensors(nodes: Sequence[Node]) -> list[Node]:
    """Replace operators that only fake tensors run by those that real tensors run.

    * A cast or a clone of a fake tensor ends in `detach`. It becomes a copy here.
    * If nothing else holds a sparse gradient, a real step stores it in the parameter without a copy
      (torch/csrc/autograd/functions/accumulate_grad.h). Fake tensors clone it, at the size of the whole weight.
    """
    by_id = {node.node_id: node for node in nodes}
    sparse = {node.parent_id for node in nodes if node.name == "aten::_indices"}
    taken_over: set[int] = set()
    real: list[Node] = []
    for node in nodes:
        above = by_id.get(node.parent_id) if node.parent_id is not None else None
        if above is None:
            real.append(node)
        elif above.node_id in taken_over:
            taken_over.add(node.node_id)
        elif (
            above.name.endswith("AccumulateGrad")
            and above.node_id in sparse
            and node.name == "aten::clone"
        ):
            taken_over.add(node.node_id)
            real.append(replace(node, name="aten::_sparse_coo_tensor_unsafe"))
        elif above.name in SAME_CHILDREN and node.name == "aten::detach":
            target = node.tensor(0)
            source = above.tensor(0)
            real.append(
                replace(
                    node,
                    name="aten::copy_",
                    inputs=(target, source, None),
                    values=(None, None, False),
                    outputs=(target,),
                )
            )
        else:
            real.append(node)
    return real


def _show_input_copies(nodes: Sequence[Node]) -> list[Node]:
    """Replace the input copies of fake tensors (`empty_like`, `copy_`) by the `to` of a real step."""
    shown: list[Node] = []
    fresh = max((node.node_id for node in nodes), default=0) + 1
    for node in nodes:
        if node.phase != "data":
            shown.append(node)
        elif node.name == "aten::copy_":
            target = node.tensor(0)
            source = replace(node.tensor(1), host=True)
            outer = replace(
                node,
                node_id=fresh,
                name="aten::to",
                inputs=(source,),
                values=(None,),
                outputs=(target,),
                parent_id=None,
                attributes={},
            )
            inner = replace(outer, node_id=fresh + 1, name="aten::_to_copy", parent_id=fresh)
            copy = replace(
                node,
                inputs=(target, source, None),
                values=(None, None, node.value(2, True)),
                parent_id=fresh + 1,
            )
            shown += [outer, inner, copy]
            fresh += 2
    return shown


def _name_standins(nodes: Sequence[Node]) -> list[Node]:
    """Give stand-ins CUDA's names, describe recurrent layers, and insert the parents listed in `CUDA_PARENTS`."""
    named: list[Node] = []
    fresh = max((node.node_id for node in nodes), default=0) + 1
    for node in nodes:
        operator = replace(node, name=_cuda_name(node.name))
        if operator.name in ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"):
            operator.attributes["rnn"] = _describe_rnn(operator)
        operator = describe_collective(operator)
        if node.name in CUDA_PARENTS:
            named.append(
                replace(operator, node_id=fresh, name=CUDA_PARENTS[node.name], attributes={})
            )
            operator.parent_id = fresh
            operator.is_top_level = False
            fresh += 1
        named.append(operator)
    return named


def _cuda_name(name: str) -> str:
    for stand_in, real in CUDA_NAMES.items():
        if stand_in in name:
            return name.replace(stand_in, real)
    return name


def _describe_rnn(node: Node) -> dict[str, Any]:
    """Read the sizes of a recurrent layer from its stand-in's arguments (`pipeline.as_on_cuda.recurrent_layers`)."""
    backward = node.name.endswith("backward")
    x = node.tensor(1 if backward else 0)
    gates, hidden, layers, directions, batch_first = (int(v) for v in node.values[-5:])
    weights: Sequence[Tensor] = node.tensor_list(2 if backward else 1)
    batch, tokens = x.shape[:2] if batch_first else x.shape[1::-1]
    output = weights[1].shape[
        -1
    ]  # width of the recurrent input: the hidden width, unless the layer projects it
    return {
        "gates": gates,
        "hidden": hidden,
        "layers": layers,
        "directions": directions,
        "batch": batch,
        "tokens": tokens,
        "weight_bytes": sum(w.bytes for w in weights),
        **({"projected": output} if output != hidden else {}),
    }
