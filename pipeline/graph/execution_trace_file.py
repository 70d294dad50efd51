"""Reads the file of an execution trace (schemas 1.0.1 and 1.1.x-chakra): its raw nodes, with the same keys for all versions."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import TraceError


def read_execution_trace(path: str | Path) -> list[dict[str, Any]]:
    """Read the raw nodes of an execution trace, with the same keys for all schema versions."""
    path = Path(path)
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        raw = [flatten(node) for node in _nodes(data)]
        if not raw:
            raise ValueError("it has no operators")
    except RecursionError:
        raise TraceError(f"{path}: nested too deeply; this is not an execution trace") from None
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise TraceError(
            f"{path}: not a complete execution trace ({str(error).splitlines()[0]})"
        ) from None
    except (KeyError, TypeError, AttributeError):
        raise TraceError(
            f"{path}: key `nodes` is missing, which PyTorch's ExecutionTraceObserver writes"
        ) from None
    _check(path, raw)
    return raw


_FIELDS = {
    "id": int,
    "rf_id": int,
    "parent": int,
    "scope": int,
    "tid": int,
    "name": str,
    "inputs": dict,
    "outputs": dict,
}
"""Keys that every node has, with their types. Each value of `inputs` and `outputs` is a list itself."""


def _check(path: Path, raw: Sequence[Mapping[str, Any]]) -> None:
    """Check that every node has the required keys and that no id occurs twice."""
    for place, node in enumerate(raw):
        for key, kind in _FIELDS.items():
            if type(node.get(key)) is not kind or (
                kind is int and not -(2**63) <= node[key] < 2**64
            ):
                raise TraceError(
                    f"{path}: nodes[{place}] has no {key}, which PyTorch's ExecutionTraceObserver"
                    " writes"
                )
        sides = [
            node[side].get(key)
            for side in ("inputs", "outputs")
            for key in ("values", "shapes", "types")
        ]
        if not all(isinstance(side, list) for side in sides):
            raise TraceError(
                f"{path}: nodes[{place}] has inputs or outputs that are not lists of values, shapes"
                " and types"
            )
    ids = [node["id"] for node in raw]
    if len(set(ids)) < len(ids):
        raise TraceError(
            f"{path}: several nodes have the same id; give the execution trace of one process"
        )


NODES, NODE_END = b'"nodes": [', b"\n      },\n"
"""Bytes that PyTorch 2.x writes before the first node, and between two nodes."""


def _nodes(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a trace; a file in PyTorch 2.x's layout is parsed node by node, which halves the memory."""
    start = data.find(NODES)
    pieces = data.count(NODE_END)
    if start < 0 or pieces < 1000:
        yield from parse(data)["nodes"]
        return
    at = start + len(NODES)
    for _ in range(pieces):
        end = data.index(NODE_END, at)
        yield parse(data[at:end] + b"}")
        at = end + len(NODE_END)
    yield from parse(b"{" + NODES + data[at:].rstrip())["nodes"]


def parse(data: bytes) -> Any:
    """Parse a JSON file; names may contain control characters and invalid UTF-8, which orjson does not accept."""
    try:
        import orjson

        return orjson.loads(data)
    except (ImportError, ValueError):
        return json.loads(data.decode("utf-8", "replace"), strict=False)


def flatten(node: dict[str, Any]) -> dict[str, Any]:
    """Convert one node to the keys id, parent, name, rf_id, scope, tid, seq_id, op_schema, inputs and outputs."""
    if "attrs" not in node:  # schema 1.0.1
        sides = {
            side: {
                "values": node[side],
                "shapes": node[f"{side[:-1]}_shapes"],
                "types": node[f"{side[:-1]}_types"],
            }
            for side in ("inputs", "outputs")
        }
        return {**node, **sides}
    for item in node.pop("attrs"):  # in place, because traces of large models have 100,000 nodes
        node.setdefault(item["name"], item["value"])
    node["parent"] = node.pop("ctrl_deps")
    return node
