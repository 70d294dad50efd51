"""Reads a captured step's execution trace without parsing the nodes that capture drops.

A meta kernel written in Python calls operators that CUDA's kernel does not call. Three of four recorded nodes are
therefore below an operator whose children do not count. The file of PyTorch 2.x has one block of text per node. The id,
name and parent are at the start of a block, the order and schema at its end. These fields are read first, then nodes
are chosen, and only the chosen nodes are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.graph.execution_trace import NODE_END, NODES, flatten, parse, read_execution_trace

LIST_END = re.compile(rb"\}\s*\],\s*\"finish_ts\"")
HEAD = re.compile(rb'\s*\{\s*"id": (\d+), "name": "([^"\\]*)", "ctrl_deps": (\d+),')
RF_ID = rb'\{"name": "rf_id", "type": "uint64", "value": (\d+)\}'
SCHEMA = rb'"op_schema", "type": "string", "value": "([^"\\(]*)'  # without the arguments, which may contain quotes
TAIL = re.compile(RF_ID + rb".*" + SCHEMA)

Raw = Mapping[str, Any]


def read_selected(path: Path, choose: Callable[[Sequence[Raw]], list[Raw]]) -> list[Raw]:
    """Return the result of `choose(read_execution_trace(path))`, but faster.

    Args:
        path: an execution trace, not compressed.
        choose: picks nodes by their id, parent, name, rf_id and op_schema only, and returns them in any order.
    """
    outlines = _outlines(path.read_bytes())
    if outlines is None:
        return choose(read_execution_trace(path))
    return [flatten(parse(outline["text"])) for outline in choose(outlines)]


def _outlines(data: bytes) -> list[dict[str, Any]] | None:
    """The outline (the fields read first) and text of every node; None if the file has another layout."""
    start = data.find(NODES)
    if start < 0:
        return None
    blocks = data[start + len(NODES) :].split(NODE_END)
    last = blocks.pop()
    end = LIST_END.search(last)
    if not blocks or end is None:
        return None
    found = []
    for block in [*(block + b"}" for block in blocks), last[: end.start()] + b"}"]:
        head, tail = HEAD.match(block), TAIL.search(block, max(0, block.rfind(b'"attrs"')))
        if head is None or tail is None:
            return None
        found.append({
            "id": int(head[1]), "name": head[2].decode(), "parent": int(head[3]), "rf_id": int(tail[1]),
            "op_schema": tail[2].decode(), "text": block,
        })  # fmt: skip
    return found
