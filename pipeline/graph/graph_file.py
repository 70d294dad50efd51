"""Writes and reads a graph as a parquet file.

The file has the table. Its provenance has the memory need, device, model, batch size, warnings and numbers of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import TableError
from pipeline.graph.table import Graph, Memory
from pipeline.schemas import read_provenance, read_table, write_table


def write_graph(graph: Graph, path: str | Path, provenance: Mapping[str, Any] | None = None) -> None:
    """Write a graph atomically: the file is complete or does not exist."""
    facts = {
        "memory": graph.memory.facts(),
        "device": graph.device,
        "model": graph.model,
        "batch_size": graph.batch_size,
        "warnings": list(graph.warnings),
        "parameters": list(graph.parameters.items()),
    }
    write_table(graph.table, path, "graph", {**(provenance or {}), "graph": facts})


def read_graph(path: str | Path) -> Graph:
    """Read a graph that `write_graph` wrote.

    Raises:
        TableError: the file is damaged or was not written by `write_graph`.
    """
    table = read_table(path, "graph")
    try:
        facts = read_provenance(path)["graph"]
        memory, said = Memory(**facts["memory"]), tuple(facts["warnings"])
        held = dict(facts.get("parameters", {}))  # a file of an earlier version has none
        return Graph(table, memory, facts["device"], facts["model"], int(facts["batch_size"]), said, held)
    except (KeyError, TypeError, ValueError):
        raise TableError(f"{path}: the description of the graph is missing; delete the file to rebuild it") from None
