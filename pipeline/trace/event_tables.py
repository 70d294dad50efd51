"""Writes linked traces as parquet tables, without a second copy in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.arrays import Texts
from pipeline.errors import TableError
from pipeline.schemas import PROVENANCE_KEY, SCHEMAS, WRITTEN_AS, atomic_path
from pipeline.trace.linked_trace import Trace, absent

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_EVENTS = 1 << 13
"""Events per row group of a parquet file: about 1 MB as text, which is the only memory needed beside the columns."""


def write_events(
    trace: Trace, path: str | Path, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write all events as an `events` table in parquet, row group by row group.

    Raises:
        SteptimeError: the file cannot be written (full disk, no permission).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = json.dumps({"schema": "events", **(provenance or {})}, sort_keys=True, default=str)
    schema = SCHEMAS["events"].with_metadata({PROVENANCE_KEY: text.encode()})
    # code -1, for none, takes the last entry
    texts = {
        name: np.array([*map(str, values), None], object)
        for name, values in trace.vocabulary.items()
    }
    options = {**WRITTEN_AS, "use_dictionary": [name for name in schema.names if name in texts]}
    with atomic_path(path) as part, pq.ParquetWriter(part, schema, **options) as writer:
        for begin in range(0, len(trace), ROW_GROUP_EVENTS):
            columns = [_column(trace, field, begin, texts.get(field.name)) for field in schema]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _column(trace: Trace, field: pa.Field, begin: int, texts: Texts | None) -> pa.Array:
    """A column of the row group that begins at an event; it is checked that it is not empty where it must not be."""
    import pyarrow as pa

    end = min(begin + ROW_GROUP_EVENTS, len(trace))
    if field.name == "event_id":
        return pa.array(np.arange(begin, end))
    values = trace.columns[field.name][begin:end]
    column = (
        pa.array(values, pa.int64(), mask=values == absent(field.name))
        if texts is None
        else pa.array(texts[values])
    )
    if column.null_count and not field.nullable:
        raise TableError(f"{trace.path}: events table has empty values in column {field.name}")
    return column
