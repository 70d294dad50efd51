"""From what the meta device records to what CUDA would: pruning, names, threads, fused lookups.

A meta kernel written in Python calls other operators that CUDA's does not. So the children of an operator are kept only
where its implementation is the same on every device (CompositeImplicitAutograd), or where it is listed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pipeline.graph.cuda_emulation import name_standins
from pipeline.graph.opmap import rows
from pipeline.graph.sparse_optimizers import own_tables, sparse_updates
from pipeline.graph.table import Argument, Node, Tensor
from pipeline.kernels.embedding_traffic import Lookup

SHARED = ("aten::_to_copy", "aten::clone")
"""Operators with children that are the same on all devices although their dispatch does not say so."""

OF_CUDA_ALONE = ("aten::mish_backward", "aten::_fused_rms_norm")
"""Operators written in others for all devices but CUDA, which has a kernel (ATen/native/native_functions.yaml)."""

NO_STORAGE, UNDEFINED = b',0,0,0,0,""]', b"nullptr (uninitialized)"
"""How an execution trace shows tensors that have no storage, and the type of those that are not defined."""

RENAMED = {
    "NativeBatchNormBackward0": "CudnnBatchNormBackward0",
    "aten::native_batch_norm": "aten::cudnn_batch_norm",
    "aten::native_batch_norm_backward": "aten::cudnn_batch_norm_backward",
}
"""Device-neutral names and those that CUDA records (source: v100_ddp and rtx2080ti_resnet traces)."""

ALIASES = {
    "aten::add_": "aten::add", "aten::_reshape_alias": "aten::view", "aten::_index_put_impl_": "aten::index_put",
    "aten::index_put_": "aten::index_put", "aten::reshape": "aten::view", "aten::_unsafe_view": "aten::view",
    "aten::clamp_min_": "aten::clamp_min", "aten::relu_": "aten::relu",
}  # fmt: skip
"""Names to be taken as one when sequences of different PyTorch versions are compared."""

TF32_OPERATORS = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution", "aten::convolution_backward",
    "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward", "aten::_grouped_mm",
)  # fmt: skip
"""Operators that use TF32 where it is allowed."""

LAID_OUT = ("convolution", "batch_norm", "_pool2d")
"""Parts of the names of operators whose kernels depend on how images lie. The meta device's convolution gives images in
NCHW whatever it gets, so that strides do not tell."""

BOUNDS_CHECK = "fbgemm::bounds_check_indices"
FUSED_FORWARD = "fbgemm::split_embedding_codegen_lookup_{optimizer}_function"
FUSED_BACKWARD = "fbgemm::split_embedding_backward_codegen_{optimizer}"
FUSED_AUTOGRAD = "torch::autograd::CppNode<SplitLookupFunction_{optimizer}_Op>"
"""FBGEMM's operators of a fused lookup, by the optimizer that runs in the backward pass."""


def normalise(nodes: Sequence[Node], config: Mapping[str, Any], fake: bool = False) -> list[Node]:
    """Nodes of a captured step (already pruned) as CUDA would have them, renumbered in host order."""
    nodes = [_on_cuda(node, fake) for node in nodes]
    if fake:
        nodes = _show_input_copies(_as_real_tensors(nodes))
    nodes = name_standins(_fused_lookups(nodes, config))
    nodes = _describe_embeddings(nodes, config)
    if config.get("dtype") == "tf32":
        for node in nodes:
            if node.name in TF32_OPERATORS:
                node.attributes["tf32"] = True
    if config.get("memory_format") == "channels_last":
        for node in nodes:
            if node.name.startswith("aten::") and any(part in node.name for part in LAID_OUT):
                node.attributes["memory_format"] = "channels_last"
    return renumber(nodes)


def renumber(nodes: Sequence[Node]) -> list[Node]:
    """Nodes with ids, orders and autograd's sequence numbers from 0 on, in the order given."""
    first = min((node.attributes["sequence"] for node in nodes if "sequence" in node.attributes), default=0)
    for node in nodes:
        if first and "sequence" in node.attributes:
            node.attributes = {**node.attributes, "sequence": node.attributes["sequence"] - first}
    ids = {node.node_id: i for i, node in enumerate(nodes)}
    return [
        replace(
            node, node_id=i, order=i, parent_id=None if node.parent_id is None else ids[node.parent_id],
            is_top_level=node.parent_id is None,
        )
        for i, node in enumerate(nodes)
    ]  # fmt: skip


@cache
def is_composite(schema: str) -> bool:
    """Whether an operator (`aten::linear`, `aten::add.Tensor`) is implemented by others on every device."""
    return schema not in OF_CUDA_ALONE and _has_kernel(schema, "CompositeImplicitAutograd")


@cache
def is_written_in_others(schema: str) -> bool:
    """Whether an operator that the map does not know is written in others for every device (`aten::pixel_shuffle`), in C++
    and without a kernel of the meta device's own, so that what lies under it is what lies under it on CUDA.
    """
    explicit = any(_has_kernel(schema, f"CompositeExplicitAutograd{kind}") for kind in ("", "NonFunctional"))
    return explicit and schema.split(".")[0] not in rows() and not _has_kernel(schema, "Meta")


def _has_kernel(schema: str, key: str) -> bool:
    import torch

    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(schema, key))
    except RuntimeError:
        return False


def prune(raw: Sequence[Mapping[str, Any]], meta: bool = False) -> list[Mapping[str, Any]]:
    """Drop what lies under operators that every device implements in its own way (raw nodes of an execution trace).

    `meta`: of a step on the meta device; fake tensors do in Python what C++ does there.
    """
    kept: list[Mapping[str, Any]] = []
    opaque: set[int] = set()
    raw = _without_casting_wrappers(raw)
    for node in sorted(raw, key=lambda node: int(node["rf_id"])):
        if node["parent"] in opaque:
            opaque.add(node["id"])
            continue
        kept.append(node)
        name, schema = node["name"], str(node["op_schema"]).split("(")[0]
        open_ = name in SHARED or is_composite(schema or name) or (meta and is_written_in_others(schema or name))
        if name.startswith("aten::") and not open_:
            opaque.add(node["id"])
    return kept


def prune_meta(raw: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """`prune` of a step on the meta device, of nodes as `pipeline.graph.trace_reader` gives them. Operators on wrapped tensors (those
    of `torch.vmap` and its like) are left out first: they show the shape of one sample, and what runs lies under them.
    """
    sparse = any("sparse_coo_tensor" in node["name"] for node in raw)  # such tensors have no storage either
    ours = [] if sparse else [node for node in raw if node["name"].startswith("aten::") and _is_wrapped(node)]
    if not ours:
        return prune(raw, meta=not sparse)
    wrapped = {node["id"]: node["parent"] for node in ours}

    def above(parent: int) -> int:
        while parent in wrapped:
            parent = wrapped[parent]
        return parent

    return prune([{**node, "parent": above(node["parent"])} for node in raw if node["id"] not in wrapped], meta=True)


def _is_wrapped(node: Mapping[str, Any]) -> bool:
    """Whether an operator takes or gives a tensor without storage of its own; tensors that are undefined have none either."""
    text = node.get("text", b"")
    return bool(text.count(NO_STORAGE) > text.count(UNDEFINED))


def _without_casting_wrappers(raw: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """An operator that PyTorch's autocast wraps is recorded twice, the casts of its operands beside the inner one: what
    the outer holds moves up, so that the operator is seen as it runs, behind its casts.
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


def _on_cuda(node: Node, fake: bool) -> Node:
    name = node.name
    for neutral, cuda in RENAMED.items():
        name = name.replace(neutral, cuda) if neutral in name else name
    node.attributes.pop("schema", None)
    if fake:
        counters = node.phase == "optimizer"  # optimizers count their steps on the host
        return replace(node, name=name, inputs=_moved(node.inputs, counters), outputs=_moved(node.outputs, counters))
    return replace(node, name=name)


def _moved(arguments: Sequence[Argument], counters: bool = False) -> tuple[Argument, ...]:
    """Fake tensors, which all lie on the host, on the device; numbers in tensors' clothes stay where they are."""

    def move(tensor: Tensor) -> Tensor:
        number = not tensor.shape and tensor.host and (counters or tensor.dtype in ("fp64", "int64", "bool"))
        return tensor if number else replace(tensor, host=False)

    return tuple(
        move(a) if isinstance(a, Tensor) else None if a is None else tuple(move(t) for t in a) for a in arguments
    )


def _as_real_tensors(nodes: Sequence[Node]) -> list[Node]:
    """What fake tensors do in place of a copy, or beyond it, as real ones do it.

    A cast or a clone ends in `detach` with them, and in a copy here. A sparse gradient whose rows nothing else holds is
    taken over as it is when it becomes the parameter's (torch/csrc/autograd/functions/accumulate_grad.h); they clone it,
    at the size of the whole weight.
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
        elif above.name.endswith("AccumulateGrad") and above.node_id in sparse and node.name == "aten::clone":
            taken_over.add(node.node_id)
            real.append(replace(node, name="aten::_sparse_coo_tensor_unsafe"))
        elif above.name in SHARED and node.name == "aten::detach":
            target, source = node.tensor(0), above.tensor(0)
            real.append(replace(node, name="aten::copy_", inputs=(target, source, None), values=(None, None, False),
                                outputs=(target,)))  # fmt: skip
        else:
            real.append(node)
    return real


def _show_input_copies(nodes: Sequence[Node]) -> list[Node]:
    """Fake tensors copy inputs by hand (`empty_like`, `copy_`): make that the `to` of a real step."""
    shown: list[Node] = []
    fresh = max((node.node_id for node in nodes), default=0) + 1
    for node in nodes:
        if node.phase != "data":
            shown.append(node)
        elif node.name == "aten::copy_":
            target, source = node.tensor(0), replace(node.tensor(1), host=True)
            outer = replace(node, node_id=fresh, name="aten::to", inputs=(source,), values=(None,), outputs=(target,),
                            parent_id=None, attributes={})  # fmt: skip
            inner = replace(outer, node_id=fresh + 1, name="aten::_to_copy", parent_id=fresh)
            copy = replace(
                node, inputs=(target, source, None), values=(None, None, node.value(2, True)), parent_id=fresh + 1
            )
            shown += [outer, inner, copy]
            fresh += 2
    return shown


def _fused_lookups(nodes: Sequence[Node], config: Mapping[str, Any]) -> list[Node]:
    """Our stand-ins for the fused lookup become FBGEMM's operators, with the check of indices that goes before."""
    named: list[Node] = []
    fresh = max((node.node_id for node in nodes), default=0) + 1
    skipped: set[int] = set()
    optimizer = fused_optimizer(config)
    for node in nodes:
        if node.parent_id in skipped and not node.name.startswith("steptime::"):
            node = replace(node, parent_id=None, is_top_level=True)
        if node.name == "FusedLookup":
            skipped.add(node.node_id)  # the Python function around the operator, which FBGEMM's C++ has not
        elif node.name == "steptime::lookup":
            check = replace(node, node_id=fresh, name=BOUNDS_CHECK, inputs=node.inputs[1:3], values=(), outputs=(),
                            parent_id=None)  # fmt: skip
            fresh += 1
            named += [check, replace(node, name=FUSED_FORWARD.format(optimizer=optimizer), parent_id=None)]
        elif node.name == "steptime::lookup_backward":
            named.append(replace(node, name=FUSED_BACKWARD.format(optimizer=optimizer)))
        elif "FusedLookupBackward" in node.name:
            real = FUSED_AUTOGRAD.format(optimizer=optimizer)
            named.append(replace(node, name=node.name.replace("FusedLookupBackward", real)))
        else:
            named.append(node)
    return named


def fused_optimizer(config: Mapping[str, Any]) -> str:
    """The optimizer inside a fused lookup's backward pass; SGD where the step itself has none."""
    name = str(config.get("optimizer", "sgd"))
    return name if name in ("adagrad", "adam") else "sgd"


def _describe_embeddings(nodes: list[Node], config: Mapping[str, Any]) -> list[Node]:
    """Give lookups what shapes cannot tell: rows per table, lookups, and how indices are distributed."""
    if "embedding" not in config:
        return sparse_updates(nodes, own_tables(nodes), str(config.get("optimizer", "sgd")))
    from pipeline.workloads.dlrm import JOINT, tables

    rows, lookups = tables(config)
    distribution = str(config.get("distribution", "uniform"))
    states = {"adagrad": 1, "adam": 2}.get(fused_optimizer(config), 0)
    for node in nodes:
        if node.name.startswith(("fbgemm::split_embedding", BOUNDS_CHECK)):
            node.attributes.update(rows=rows, lookups=lookups, distribution=distribution, index_bytes=8)
            if states and node.name == FUSED_BACKWARD.format(optimizer=fused_optimizer(config)):
                node.attributes["states"] = states
        elif "embedding_bag" in node.name or node.name == "aten::embedding":
            node.attributes.update(distribution=distribution, index_bytes=8)
    if config["embedding"] not in ("sparse", *JOINT):
        return nodes
    outputs = {"aten::_embedding_bag": 2, "aten::embedding": 1}  # offsets, or indices: as many as results
    bags = next((node.tensor(outputs[node.name]).numel for node in nodes if node.name in outputs), 0)
    width, joint = config["dim"], config["embedding"] in JOINT
    batch = bags // len(rows) if joint else bags
    sizes = [Lookup(batch, e, n, int(width), distribution) for e, n in zip(rows, lookups, strict=True)]
    if joint:  # one table, whose rows are used as often as those of the tables that it holds
        used, each = sum(size.distinct_rows() for size in sizes), sum(lookups) / len(lookups)
        sizes = [Lookup(bags, sum(rows), each, int(width), distribution, used)]
    return sparse_updates(nodes, sizes, str(config.get("optimizer", "sgd")))
