"""Rows and lookups of the embedding tables of a recommendation model, from numbers or a file of Meta's dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, first_line
from pipeline.paths import project_dir
from pipeline.question.sequence_lengths import mean_length

JOINT = ("joint_sparse", "joint_rows")
"""Kinds of lookups with one weight that contains the rows of all tables."""

STATES = {"none": 0, "sgd": 0, "adagrad": 1, "adam": 2}
"""Optimizers that the backward pass of a lookup can apply -> number of tensors of the weight's size that each keeps."""

MAX_ROWS = 10**12
"""Maximum number of rows of a table; more rows than this do not fit into any memory."""


def tables(config: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """(rows, lookups per sample) of every table, from `rows`/`tables`/`lookups` or a table-configuration file.

    The file has the format of facebookresearch/dlrm_datasets: a list of `{"num_embeddings": .., "pooling_factor": ..}`, or an
    object with that list as `tables`; `spreads` reads `pooling_factor_sd`. The config's `tables` may pick some of them by index.

    Raises:
        ConfigError: the sizes are missing or not valid.
    """
    if config.get("table_configs"):
        picked = _read_table_configs(config)
        return _numbers("table_configs", [table["num_embeddings"] for table in picked]), [
            max(1, round(_pooling(table))) for table in picked
        ]
    rows = config.get("rows")
    lookups = config.get("lookups", 1)
    if sequences(config):
        lookups = [round(mean) for mean in lookups_of_sequences(config)]
    count = config.get("tables")
    if rows is None:
        raise ConfigError("model.rows is missing: give rows per table, as a number or a list")
    if count is not None and not (isinstance(count, int) and count > 0):
        raise ConfigError(
            f"model.tables={count}: give the number of tables (a list selects tables of a file)"
        )
    if isinstance(rows, (list, tuple)) and count not in (None, len(rows)):
        raise ConfigError(
            f"model.tables={count}: model.rows lists {len(rows)}; give model.tables={len(rows)}"
            " too, or null"
        )
    sizes = _numbers("rows", _each(rows, count or 1))
    each = _numbers("lookups", _each(lookups, len(sizes)))
    if len(each) != len(sizes):
        raise ConfigError(
            f"model.lookups lists {len(each)} numbers for {len(sizes)} tables: give one per table"
        )
    return sizes, each


def sequences(config: Mapping[str, Any]) -> bool:
    """Whether each index of a workload gives a row of its own, and not a part of a sum."""
    return "lengths" in config


def lookups_of_sequences(config: Mapping[str, Any]) -> list[float]:
    """Lookups of a sample in each table, the mean: one for each token, and one in the last table, which is that of users."""
    tokens = mean_length(config) + int(config["candidates"])
    return [tokens] * (len(config["rows"]) - 1) + [1.0]


def table_optimizer(config: Mapping[str, Any]) -> str:
    """The optimizer that the backward pass of fused lookups applies."""
    return str(config.get("table_optimizer") or config.get("optimizer", "sgd"))


def _each(value: Any, count: int) -> list[Any]:
    """A value for each table."""
    return list(value) if isinstance(value, (list, tuple)) else [value] * count


def _numbers(option: str, values: Sequence[Any]) -> list[int]:
    """Convert the rows or lookups of tables to integers."""
    for value in values:
        if type(value) not in (int, float) or not 1 <= value <= MAX_ROWS:
            raise ConfigError(f"model.{option}: {value} is not a number from 1 to {MAX_ROWS:,}")
        if value != int(value):
            raise ConfigError(f"model.{option}: {value} is not a whole number")
    return [int(value) for value in values]


def table_configs_path(named: object) -> Path:
    """Path of `model.table_configs`: in the current folder, else in the project's folder."""
    path = Path(str(named))
    return path if path.is_absolute() or path.is_file() else project_dir() / path


def spreads(config: Mapping[str, Any]) -> list[float]:
    """Standard deviation between batches of the mean lookups of a sample, over their mean, of each table.

    Empty, unless a file of table configurations states it: `pooling_factor_sd`.
    """
    tables = _read_table_configs(config) if config.get("table_configs") else []
    return [_pooling(each, "_sd", 0.0) / max(_pooling(each), 1.0) for each in tables]


def _pooling(table: Mapping[str, Any], more: str = "", usual: float = 1.0) -> float:
    """The pooling factor of a table in a file, or what is stated of it."""
    value = table.get(f"pooling_factor{more}", usual)
    if type(value) not in (int, float) or value < 0:
        raise ConfigError(f"model.table_configs: pooling_factor{more}={value} is not a number")
    return float(value)


def _read_table_configs(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    import json

    named = Path(str(config["table_configs"]))
    path = table_configs_path(named)
    where = f"model.table_configs={named}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        folders = "" if named.is_absolute() else f" in {Path.cwd()} or {project_dir()}"
        raise ConfigError(
            f"{where}: no readable JSON file{folders} ({first_line(error)})"
        ) from None
    tables = content.get("tables") if isinstance(content, dict) else content
    if (
        not isinstance(tables, list)
        or not tables
        or not all(isinstance(t, dict) and "num_embeddings" in t for t in tables)
    ):
        raise ConfigError(f"{where}: not a list of tables with num_embeddings and pooling_factor")
    chosen = config.get("tables")
    picks = (
        chosen if isinstance(chosen, Sequence) else range(len(tables) if chosen is None else chosen)
    )
    if not picks or not all(type(index) is int and 0 <= index < len(tables) for index in picks):
        raise ConfigError(
            f"model.tables={chosen}: {named} has {len(tables)} tables, numbered 0 to"
            f" {len(tables) - 1}"
        )
    return [tables[index] for index in picks]
