"""Embedding lookups in a captured step: FBGEMM's names, what shapes do not show, and optimizers of sparse gradients.

Neither meta nor fake tensors know the number of rows in a sparse gradient. Capture therefore runs the simplest
optimizer on such weights: one addition per weight. This module adds the number of rows to these additions. For Adagrad
and Adam (`torch.optim.SparseAdam`) it replaces each addition by the operators of the real optimizer (source:
torch/optim/adagrad.py and torch/optim/_functional.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.families.embedding_lookups import Lookup
from pipeline.graph.table import Node, Tensor
from pipeline.question.embedding_tables import JOINT, STATES, sequences, table_optimizer, tables
from pipeline.question.index_distributions import distributions
from pipeline.question.placed_tables import STAND_INS, Group, groups_of, placed_by

BOUNDS_CHECK = "fbgemm::bounds_check_indices"
FUSED_FORWARD = "fbgemm::split_embedding_codegen_lookup_{optimizer}_function"
FUSED_BACKWARD = "fbgemm::split_embedding_backward_codegen_{optimizer}"
FUSED_AUTOGRAD = "torch::autograd::CppNode<SplitLookupFunction_{optimizer}_Op>"
"""Names of FBGEMM's operators for a fused lookup; `{optimizer}` is the optimizer that runs in the backward pass."""

FEATURES = "fbgemm::"
"""Namespace of FBGEMM's operators that arrange features, whose stand-ins have the same names."""

Line = tuple[str, str]
"""An operator and the code of its inputs.

`g`   the gradient, not coalesced.
`w`   a whole tensor of the weight's shape, and sparse rows.
`r`   one tensor of the gradient's rows.
`rr`  two such tensors.
`rs`  one such tensor and a number.
"""

SPARSE_ADAGRAD: Sequence[Line] = (
    ("aten::coalesce", "g"), ("aten::_indices", "r"), ("aten::_values", "r"), ("aten::pow", "rs"),
    ("aten::add_", "w"), ("aten::sparse_mask", "w"), ("aten::_values", "r"), ("aten::sqrt_", "r"),
    ("aten::add_", "rs"), ("aten::div", "rr"), ("aten::add_", "w"),
)  # fmt: skip

SPARSE_ADAM: Sequence[Line] = (
    ("aten::coalesce", "g"), ("aten::_indices", "r"), ("aten::_values", "r"),
    ("aten::sparse_mask", "w"), ("aten::_values", "r"), ("aten::sub", "rr"), ("aten::mul_", "rs"),
    ("aten::add_", "w"), ("aten::sparse_mask", "w"), ("aten::_values", "r"), ("aten::pow", "rs"),
    ("aten::sub_", "rr"), ("aten::mul_", "rs"), ("aten::add_", "w"), ("aten::add_", "rr"),
    ("aten::add_", "rr"), ("aten::sqrt_", "r"), ("aten::add_", "rs"), ("aten::div_", "rr"),
    ("aten::mul", "rs"), ("aten::add_", "w"),
)  # fmt: skip

OPTIMIZER_LINES = {"adagrad": SPARSE_ADAGRAD, "adam": SPARSE_ADAM}


SPARSE_FLAG = {"aten::_embedding_bag": 5, "aten::embedding": 4}
"""Lookup operators -> position of the flag for a sparse gradient among their arguments."""


BACKWARD = ("EmbeddingBackward", "EmbeddingBagBackward")
"""Prefixes of the names of autograd's nodes for lookups; each node has the sequence number of its lookup."""


def name_fused_lookups(nodes: Sequence[Node], config: Mapping[str, Any]) -> list[Node]:
    """Replace the stand-ins for the fused lookup by FBGEMM's operators, and insert the check of indices."""
    named: list[Node] = []
    fresh = max((node.node_id for node in nodes), default=0) + 1
    skipped: set[int] = set()
    optimizer = fused_optimizer(config)
    for node in nodes:
        if node.parent_id in skipped and not node.name.startswith("steptime::"):
            node = replace(node, parent_id=None, is_top_level=True)
        if node.name == "FusedLookup":
            skipped.add(
                node.node_id
            )  # the Python function around the operator; FBGEMM's C++ operator has none
        elif node.name == "steptime::lookup":
            check = replace(
                node,
                node_id=fresh,
                name=BOUNDS_CHECK,
                inputs=node.inputs[1:3],
                values=(),
                outputs=(),
                parent_id=None,
            )
            fresh += 1
            named += [
                check,
                replace(node, name=FUSED_FORWARD.format(optimizer=optimizer), parent_id=None),
            ]
        elif node.name == "steptime::lookup_backward":
            named.append(replace(node, name=FUSED_BACKWARD.format(optimizer=optimizer)))
        elif "FusedLookupBackward" in node.name:
            real = FUSED_AUTOGRAD.format(optimizer=optimizer)
            named.append(replace(node, name=node.name.replace("FusedLookupBackward", real)))
        elif node.name.startswith(f"{STAND_INS}::"):
            named.append(replace(node, name=node.name.replace(f"{STAND_INS}::", FEATURES)))
        else:
            named.append(node)
    return named


def fused_optimizer(config: Mapping[str, Any]) -> str:
    """The optimizer inside a fused lookup's backward pass; SGD unless it is Adagrad or Adam."""
    name = table_optimizer(config)
    return name if name in ("adagrad", "adam") else "sgd"


def describe_lookups(nodes: list[Node], config: Mapping[str, Any]) -> list[Node]:
    """Add to lookups what their shapes do not show: rows per table, lookups, and the distribution of indices."""
    if "rows" not in config and "table_configs" not in config:
        return sparse_updates(
            nodes, tables_of_custom_step(nodes), str(config.get("optimizer", "sgd"))
        )
    rows, lookups = tables(config)
    each = distributions(config, len(rows))
    distribution = each[0]
    states = STATES[fused_optimizer(config)]
    groups = _looked_up_together(config, rows, lookups)
    for node, following in zip(nodes, [*nodes[1:], None], strict=True):
        if node.name.startswith(("fbgemm::split_embedding", BOUNDS_CHECK)):
            lookup = following if node.name == BOUNDS_CHECK else node
            group = groups[_weight_shape(lookup)]
            own = [each[table] for table in group.tables]
            said = own if len(set(own)) > 1 else own[0]
            node.attributes.update(rows=[*group.rows], lookups=[*group.lookups])
            node.attributes.update(distribution=said, index_bytes=8)
            if states and node.name == FUSED_BACKWARD.format(optimizer=fused_optimizer(config)):
                node.attributes["states"] = states
        elif "embedding_bag" in node.name or node.name == "aten::embedding":
            node.attributes.update(distribution=distribution, index_bytes=8)
    if config.get("embedding") not in ("sparse", *JOINT):
        return nodes
    outputs = {
        "aten::_embedding_bag": 2,
        "aten::embedding": 1,
    }  # input (offsets or indices) with one element per result
    bags = next(
        (node.tensor(outputs[node.name]).numel for node in nodes if node.name in outputs), 0
    )
    width = config["dim"]
    joint = config["embedding"] in JOINT
    batch = bags // len(rows) if joint else bags
    sizes = [
        Lookup(batch, e, n, int(width), of) for e, n, of in zip(rows, lookups, each, strict=True)
    ]
    if joint:  # one table; its rows are used as often as the rows of the tables that it contains
        used = sum(size.distinct_rows() for size in sizes)
        mean = sum(lookups) / len(lookups)
        sizes = [Lookup(bags, sum(rows), mean, int(width), distribution, used)]
    return sparse_updates(nodes, sizes, str(config.get("optimizer", "sgd")))


def _weight_shape(lookup: Node | None) -> tuple[int, ...]:
    """The shape of the weight of a fused lookup or of its backward pass."""
    assert lookup is not None
    return lookup.tensor(0 if "lookup" in lookup.name else 1).shape


def _looked_up_together(
    config: Mapping[str, Any], rows: list[int], lookups: list[int]
) -> dict[tuple[int, ...], Group]:
    """The tables that each fused lookup reads, by the shape of its weight."""
    dim, placed = int(config["dim"]), placed_by(config)
    whole = [Group(tuple(range(len(rows))), tuple(rows), tuple(lookups), dim)]
    groups = groups_of(*placed, rows, lookups, dim) if placed else whole
    if sequences(config):  # a bag for each index: as many bags as tables have in the mean
        groups = [
            replace(
                one, lookups=tuple(n * len(one.lookups) / sum(one.lookups) for n in one.lookups)
            )
            for one in groups
        ]
    return {(sum(one.rows), one.columns): one for one in groups}


def tables_of_custom_step(nodes: Sequence[Node]) -> list[Lookup]:
    """Find the tables with sparse gradients in a custom step, in the order of the optimizer's additions.

    Lookups of one table count together, because autograd adds their gradients. The shapes do not show how often rows
    repeat, so indices are assumed to be uniform.
    """
    lookups = {
        node.attributes.get("sequence", -2 - i): _called(node)
        for i, node in enumerate(nodes)
        if node.name in SPARSE_FLAG and node.value(SPARSE_FLAG[node.name]) is True
    }
    tables = _joined(nodes, lookups)
    ordered = []
    for node in nodes:
        changed = [table for table in tables if _is_addition(node, table)]
        ordered += changed[:1]
        for table in changed[:1]:
            tables.remove(table)
    return ordered


def _called(node: Node) -> Lookup:
    weight = node.tensor(0).shape
    return Lookup(node.tensor(1).numel, weight[0], 1.0, weight[1])


def _joined(nodes: Sequence[Node], lookups: Mapping[int, Lookup]) -> list[Lookup]:
    """Merge lookups to one table per weight, in the order of the first lookups.

    The function walks through the backward pass:

    * The gradient of a lookup exists after its node has run.
    * An addition of two gradients joins the last one with the latest earlier one of the same shape. The addition is
      marked as one of sparse tensors.
    * The gradient of a weight is complete when autograd stores it. A complete gradient is not joined any more.
    """
    groups: list[list[int]] = []
    complete = 0
    for node in nodes:
        sequence = int(node.attributes.get("sequence", -1))
        if node.name.startswith(BACKWARD) and sequence in lookups:
            groups.append([sequence])
        elif node.name == "aten::add" and node.phase == "backward" and len(groups) - complete > 1:
            shape = node.tensors()[0].shape
            last = lookups[groups[-1][0]]
            open_ = [group for group in groups[complete:-1] if lookups[group[0]].rows == last.rows]
            if shape == (int(last.rows), int(last.width)) and open_:
                groups.remove(open_[-1])
                groups[-1] += open_[-1]
                node.attributes["sparse_rows"] = round(
                    sum(lookups[each].accesses for each in groups[-1])
                )
        elif node.name.endswith("AccumulateGrad") and groups and node.tensors():
            shape = node.tensors()[0].shape
            if complete < len(groups) and shape == (
                int(lookups[groups[-1][0]].rows),
                int(lookups[groups[-1][0]].width),
            ):
                groups.insert(complete, groups.pop())
                complete += 1
    seen = {each for group in groups for each in group}
    groups += [[each] for each in lookups if each not in seen]
    return [
        replace(lookups[group[0]], batch=round(sum(lookups[each].accesses for each in group)))
        for group in sorted(groups, key=min)
    ]


def _is_addition(node: Node, table: Lookup) -> bool:
    """Whether a node adds to a table, or to its gradient: the optimizer does, or the backward pass of a further part."""
    shape = node.tensors()[0].shape if node.tensors() else ()
    added = node.phase in ("optimizer", "backward") and node.name == "aten::add_"
    return added and shape == (int(table.rows), int(table.width))


def sparse_updates(nodes: Sequence[Node], tables: Sequence[Lookup], optimizer: str) -> list[Node]:
    """Replace the optimizer's additions of sparse gradients by the operators of the real optimizer.

    Args:
        nodes: all nodes of the step, in host order.
        tables: sizes and number of lookups of every table, in the order of the additions.
        optimizer: the optimizer of the workload.
    """
    updated: list[Node] = []
    waiting = list(tables)
    parts: dict[tuple[int, ...], float] = {}  # rows of accumulated gradients, by the weight's shape
    accumulating = {node.node_id for node in nodes if node.name.endswith("AccumulateGrad")}
    fresh = 1 + max((node.node_id for node in nodes), default=0)
    for node in nodes:
        if not waiting or not _is_addition(node, waiting[0]):
            updated.append(node)
            continue
        table = waiting.pop(0)
        shape = node.tensors()[0].shape
        if node.parent_id in accumulating:
            parts[shape] = parts.get(shape, 0.0) + table.accesses
        elif shape in parts:
            table = replace(table, batch=round(table.accesses + parts.pop(shape)), lookups=1.0)
        node.attributes["sparse_rows"] = round(table.accesses)
        if optimizer not in OPTIMIZER_LINES or node.parent_id in accumulating:
            updated.append(node)
            continue
        made = [_node(node, line, table) for line in OPTIMIZER_LINES[optimizer]]
        updated += [replace(each, node_id=fresh + i) for i, each in enumerate(made)]
        fresh += len(made)
    return updated


def _node(addition: Node, line: Line, table: Lookup) -> Node:
    name, takes = line
    weight = addition.tensors()[0]
    used = round(table.distinct_rows())
    rows = Tensor((used, int(table.width)), weight.dtype, (int(table.width), 1))
    if takes in ("g", "w"):
        attributes = {
            "sparse_rows": round(table.accesses) if takes == "g" else used,
            "distinct_rows": used,
        }
        return replace(
            addition,
            name=name,
            inputs=(weight,),
            values=(None,),
            outputs=(weight,),
            attributes=attributes,
        )
    inputs = (rows, *([rows] if takes == "rr" else []), *([None] if takes == "rs" else []))
    values = (*([None] * (len(inputs) - 1)), 1.0 if takes == "rs" else None)
    return replace(
        addition, name=name, inputs=inputs, values=values, outputs=(rows,), attributes={}
    )
