"""Files of table plans: a list of placements in YAML, or the plan of TorchRec's planner in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.question.table_plan import (
    COLUMN_WISE,
    KINDS,
    REPLICATED,
    ROW_WISE,
    TABLE_WISE,
    Placement,
    TablePlan,
    Tables,
    check_plan,
)
from pipeline.yaml_text import YamlError, load_yaml

TORCHREC_KINDS = {"data_parallel": REPLICATED}
"""TorchRec's words that differ from those of a plan."""


def read_plan(path: str | Path, tables: Tables, ranks: int) -> TablePlan:
    """Read a plan of either form.

    Args:
        path: of the file.
        tables: that the plan must place.
        ranks: on which it must place them.

    Raises:
        ConfigError: there is no such file, it cannot be read, or it does not place these tables on these ranks.
    """
    named = f"parallel.sharding={path}"
    try:
        content = load_yaml(Path(path).read_text(encoding="utf-8"))  # JSON is YAML
    except FileNotFoundError:
        raise ConfigError(f"{named}: no such file, and no plan of that name") from None
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise ConfigError(f"{named}: not readable ({str(error).splitlines()[0]})") from None
    try:
        placed = _of_torchrec(content) if isinstance(content, Mapping) else _of_list(content)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{named}: neither a list of placements (table, kind, ranks, columns) nor TorchRec's"
            f" plan ({type(error).__name__}: {error})"
        ) from None
    if sorted(placed) != list(range(len(tables.rows))):
        raise ConfigError(
            f"{named}: places the tables {sorted(placed)}; the model's are 0 to"
            f" {len(tables.rows) - 1}, each once"
        )
    plan = TablePlan(tuple(placed[number] for number in sorted(placed)), ranks)
    check_plan(plan, tables, named)
    return plan


def _of_list(content: Any) -> dict[int, Placement]:
    return {
        int(each["table"]): Placement(
            str(each["kind"]),
            tuple(map(int, each.get("ranks") or ())),
            tuple(map(int, each.get("columns") or ())),
        )
        for each in content
    }


def _of_torchrec(content: Mapping[str, Any]) -> dict[int, Placement]:
    """The placements of a plan of one module; tables are numbered in the order of the file."""
    (module,) = content.values()
    placed = {}
    for number, each in enumerate(module.values()):
        kind = TORCHREC_KINDS.get(each["sharding_type"], each["sharding_type"])
        if kind not in KINDS:
            raise ValueError(f"sharding_type {kind} is not predicted")
        parts = (each.get("sharding_spec") or {}).get("shards") or []
        ranks = [int(part["placement"].split(":")[1].split("/")[0]) for part in parts]
        columns = [int(part["shard_sizes"][1]) for part in parts]
        whole = kind in (ROW_WISE, REPLICATED)
        placed[number] = Placement(kind) if whole else Placement(kind, tuple(ranks), tuple(columns))
    return placed


def as_list(plan: TablePlan) -> str:
    """A plan as YAML: a placement in each line."""
    lines = []
    for number, each in enumerate(plan.placements):
        where = f", ranks: {list(each.ranks)}, columns: {list(each.columns)}" if each.ranks else ""
        lines.append(f"- {{table: {number}, kind: {each.kind}{where}}}\n")
    return "".join(lines)


def as_torchrec(plan: TablePlan, tables: Tables) -> str:
    """A plan as JSON, with the fields of TorchRec's `EmbeddingModuleShardingPlan` (`distributed/types.py`)."""
    words = {ours: theirs for theirs, ours in TORCHREC_KINDS.items()}
    module = {}
    for number, (each, rows) in enumerate(zip(plan.placements, tables.rows, strict=True)):
        ranks = list(each.ranks or range(plan.ranks))
        shards = (
            None if each.kind == REPLICATED else {"shards": _shards(plan, each, rows, tables.dim)}
        )
        module[f"t_{number}"] = {
            "sharding_type": words.get(each.kind, each.kind),
            "compute_kernel": "dense" if each.kind == REPLICATED else "fused",
            "ranks": ranks,
            "sharding_spec": shards,
        }
    return json.dumps({"embedding_bag_collection": module}, indent=1) + "\n"


def _shards(plan: TablePlan, placed: Placement, rows: int, dim: int) -> list[dict[str, Any]]:
    """The parts of a table: their sizes, where they begin, and where they are."""
    if placed.kind in (TABLE_WISE, COLUMN_WISE):
        begins = [sum(placed.columns[:part]) for part in range(len(placed.columns))]
        parts = [
            (rank, [rows, columns], [0, begin])
            for rank, columns, begin in zip(placed.ranks, placed.columns, begins, strict=True)
        ]
    else:
        height = -(-rows // plan.ranks)
        parts = [
            (rank, [max(min(height, rows - rank * height), 0), dim], [min(rank * height, rows), 0])
            for rank in range(plan.ranks)
        ]
    return [
        {"shard_sizes": size, "shard_offsets": begin, "placement": f"rank:{rank}/cuda:{rank}"}
        for rank, size, begin in parts
    ]
