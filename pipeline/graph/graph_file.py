"""The file of a captured graph: a table with what is known of the step beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import TableError
from pipeline.graph.table import Graph, Memory
from pipeline.schemas import read_provenance, read_table, write_table


def write_graph(
    graph: Graph, path: str | Path, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write a graph atomically: the file is complete or does not exist."""
    facts = {
        "memory": graph.memory.facts(),
        "device": graph.device,
        "model": graph.model,
        "batch_size": graph.batch_size,
        "warnings": list(graph.warnings),
        "parameters": list(graph.parameters.items()),
        "computed": graph.computed,
        "gpu": graph.gpu,
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
        return Graph(
            table,
            Memory(**facts["memory"]),
            facts["device"],
            facts["model"],
            int(facts["batch_size"]),
            tuple(facts["warnings"]),
            dict(facts.get("parameters", {})),
            dict(facts.get("computed", {})),
            str(facts.get("gpu", "")),
        )
    except (KeyError, TypeError, ValueError):
        raise TableError(
            f"{path}: the description of the graph is missing; delete the file to rebuild it"
        ) from None
