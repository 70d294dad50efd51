"""Loads the map from operators to device calls (`opmap.yaml`) and finds the row of an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.families import family
from pipeline.graph.sizes.vocabulary import Rule
from pipeline.yaml_text import load_yaml

TABLE = Path(__file__).with_name("opmap.yaml")

CONTAINERS = ("autograd::", "torch::autograd::", "## ", "Optimizer.")
"""Prefixes of the names of nodes that only have children (autograd's own nodes have no `::` in their names)."""


@dataclass(frozen=True)
class Row:
    """The device calls of one operator.

    `leaf`: the row is used only if the operator has no children. `descend`: its children are counted too.
    """

    op: str
    calls: tuple[Rule, ...]
    leaf: bool = False
    descend: bool = False
    evidence: tuple[str, ...] = ()


UNKNOWN_ROW = Row("", (Rule("other", "unknown", "nothing_known", evidence="none"),), leaf=True)
"""The row of an operator without a row in the map: its bytes are known, and it is counted as not modelled."""


TRITON_ROW = Row("", (Rule("fused", "pointwise", "triton", "cuLaunchKernel", evidence="source"),))
"""The row of kernels that PyTorch's compiler writes (`pipeline.graph.compiled_step`)."""


def find_row(name: str) -> Row | None:
    """The row of an operator; None for nodes that only have children (autograd's), `UNKNOWN_ROW` for unknown operators."""
    row = rows().get(name)
    if row is not None:
        return row
    if name.startswith("triton::"):
        return TRITON_ROW
    if "::" not in name or name.startswith(CONTAINERS):
        return None
    return UNKNOWN_ROW


@cache
def rows() -> dict[str, Row]:
    """All rows of the map by operator name."""
    data = load_yaml(TABLE.read_text(encoding="utf-8"))
    row_of: dict[str, Row] = {}
    for kind, leaf in (("host", False), ("leaf_host", True)):
        for op in data[kind]["ops"]:
            row_of[op] = Row(op, (), leaf=leaf, evidence=tuple(data[kind]["evidence"]))
    for name, ops in data["elementwise"]["ops"].items():
        evidence = tuple(data["elementwise"]["evidence"])
        options = {"scalar": ops[1]} if len(ops) > 1 else {}
        rule = Rule("elementwise", ops[0], "elementwise", evidence=_text(evidence), options=options)
        for op in (f"aten::{name}", f"aten::{name}_"):
            row_of[op] = Row(op, (rule,), evidence=evidence)
    for name in data["random"]["ops"]:
        evidence = tuple(data["random"]["evidence"])
        rule = Rule("elementwise", "random", "fill", evidence=_text(evidence))
        for op in (f"aten::{name}", f"aten::{name}_"):
            row_of[op] = Row(op, (rule,), leaf=not op.endswith("_"), evidence=evidence)
    for op, row in data["calls"].items():
        evidence = tuple(row["evidence"])
        calls = tuple(_rule(call, evidence) for call in row["calls"])
        row_of[op] = Row(op, calls, bool(row.get("leaf")), bool(row.get("descend")), evidence)
    return row_of


def _rule(call: dict[str, Any], evidence: Sequence[str]) -> Rule:
    known = {key: call[key] for key in ("family", "op", "size", "api") if key in call}
    options = {key: value for key, value in call.items() if key not in known}
    family(call["family"])  # a misspelt family would be predicted from its bytes, without a word
    return Rule(**known, evidence=_text(evidence), options=options)


def _text(evidence: Sequence[str]) -> str:
    """`trace` if a public trace shows the calls, else `source`."""
    return "source" if all("/" in item for item in evidence) else "trace"
