"""Files of table plans: a list of placements in YAML, or the plan of TorchRec's planner in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.question.table_plan import (
    PLANS,
    REPLICATED,
    ROW_WISE,
    Placement,
    TablePlan,
    Tables,
    check_plan,
)
from pipeline.yaml_text import YamlError, load_yaml

TORCHREC_KINDS = {"data_parallel": REPLICATED}
"""TorchRec's words that differ from those of a plan."""


@dataclass(frozen=True)
class _Entry:
    """A placement in a list."""

    table: int
    kind: str
    ranks: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Shard:
    """A part of a table in TorchRec's plan: rows and columns, and `rank:0/cuda:0`."""

    shard_sizes: tuple[int, int]
    placement: str


@dataclass(frozen=True)
class _Spec:
    shards: tuple[_Shard, ...]


@dataclass(frozen=True)
class _Sharded:
    """A table in TorchRec's plan."""

    sharding_type: str
    compute_kernel: str = "fused"
    sharding_spec: _Spec | None = None


def read_plan(path: str | Path, tables: Tables, ranks: int) -> TablePlan:
    """Read a plan of either form.

    Args:
        path: of the file.
        tables: that the plan must place.
        ranks: on which it must place them.

    Raises:
        ConfigError: there is no such file, it cannot be read, or it does not place these tables on these ranks.
    """
    import msgspec  # machines that are measured have none

    named = f"parallel.sharding={path}"
    if not Path(path).is_file():
        raise ConfigError(f"{named}: no such file; give one, or a plan by name: {', '.join(PLANS)}")
    try:
        content = load_yaml(Path(path).read_text(encoding="utf-8"))  # JSON is YAML
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise ConfigError(f"{named}: not readable ({' '.join(str(error).split())})") from None
    try:
        if isinstance(content, Mapping):
            modules = msgspec.convert(content, dict[str, dict[str, _Sharded]])
            entries = _of_torchrec(modules, tables, named)
        else:
            entries = msgspec.convert(content, list[_Entry])
            known = [entry.name for entry in fields(_Entry)]
            if unknown := sorted({key for each in content for key in each} - {*known}):
                raise ConfigError(f"{named}: unknown {', '.join(unknown)}; a placement has {known}")
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{named}: neither a list of placements (table, kind, ranks, columns) nor TorchRec's"
            f" plan: {error}"
        ) from None
    entries = sorted(entries, key=lambda entry: entry.table)
    numbers = [entry.table for entry in entries]
    if numbers != list(range(len(tables.rows))):
        raise ConfigError(
            f"{named}: places the tables {numbers}; the model's are 0 to"
            f" {len(tables.rows) - 1}, each once"
        )
    placements = tuple(Placement(each.kind, each.ranks, each.columns) for each in entries)
    plan = TablePlan(placements, ranks)
    check_plan(plan, tables, named)
    return plan


def _of_torchrec(
    modules: dict[str, dict[str, _Sharded]], tables: Tables, named: str
) -> list[_Entry]:
    """The placements of a plan of one module; `t_7` is table 7, other names are in the order of the file."""
    if len(modules) != 1:
        raise ConfigError(f"{named}: plans {len(modules)} modules; give that of the tables alone")
    (module,) = modules.values()
    numbered = all(re.fullmatch(r"t_\d+", name) for name in module)
    entries = []
    for place, (name, each) in enumerate(module.items()):
        number = int(name.removeprefix("t_")) if numbered else place
        if each.compute_kernel not in ("fused", "dense"):
            raise ConfigError(
                f"{named}: {name} has compute_kernel {each.compute_kernel}; predicted are lookups"
                " in the memory of the GPU: fused, or dense where replicated"
            )
        kind = TORCHREC_KINDS.get(each.sharding_type, each.sharding_type)
        parted = each.sharding_spec if kind not in (ROW_WISE, REPLICATED) else None
        shards = parted.shards if parted else ()
        rows = {shard.shard_sizes[0] for shard in shards}
        if number < len(tables.rows) and rows - {tables.rows[number]}:
            raise ConfigError(
                f"{named}: {name} has {max(rows):,} rows; table {number} of the model has"
                f" {tables.rows[number]:,}"
            )
        ranks = [re.match(r"rank:(\d+)", shard.placement) for shard in shards]
        on = tuple(int(rank[1]) if rank else -1 for rank in ranks)
        entries.append(_Entry(number, kind, on, tuple(one.shard_sizes[1] for one in shards)))
    return entries


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
        copied = each.kind == REPLICATED
        module[f"t_{number}"] = {
            "sharding_type": words.get(each.kind, each.kind),
            "compute_kernel": "dense" if copied else "fused",
            "ranks": list(each.ranks or range(plan.ranks)),
            "sharding_spec": None if copied else {"shards": _shards(plan, each, rows, tables.dim)},
        }
    return json.dumps({"embedding_bag_collection": module}, indent=1) + "\n"


def _shards(plan: TablePlan, placed: Placement, rows: int, dim: int) -> list[dict[str, Any]]:
    """The parts of a table: their sizes, where they begin, and where they are."""
    if placed.ranks:
        parts = zip(placed.ranks, placed.columns, accumulate(placed.columns), strict=True)
        shards = [(rank, [rows, columns], [0, end - columns]) for rank, columns, end in parts]
    else:
        height = -(-rows // plan.ranks)
        begins = [min(rank * height, rows) for rank in range(plan.ranks)]
        shards = [(n, [min(height, rows - at), dim], [at, 0]) for n, at in enumerate(begins)]
    return [
        {"shard_sizes": size, "shard_offsets": begin, "placement": f"rank:{rank}/cuda:{rank}"}
        for rank, size, begin in shards
    ]
