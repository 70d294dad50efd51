"""Writes linked traces as parquet tables, without a second copy in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import TableError
from pipeline.schemas import PROVENANCE_KEY, SCHEMAS, WRITTEN_AS, atomic_path
from pipeline.trace.kineto_fields import MISSING
from pipeline.trace.linked_trace import Trace, absent

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_EVENTS = 1 << 13
"""Events per row group of a parquet file: about 1 MB as text, which is the only memory needed beside the columns."""


def write_events(trace: Trace, path: str | Path, provenance: Mapping[str, Any] | None = None) -> None:
    """Write all events as an `events` table in parquet, row group by row group.

    Raises:
        SteptimeError: the file cannot be written (full disk, no permission).
    """
    import pyarrow.parquet as pq

    text = json.dumps({"schema": "events", **(provenance or {})}, sort_keys=True, default=str)
    schema = SCHEMAS["events"].with_metadata({PROVENANCE_KEY: text.encode()})
    options = {**WRITTEN_AS, "use_dictionary": [name for name in schema.names if name in trace.vocabulary]}
    with atomic_path(path) as part, pq.ParquetWriter(part, schema, **options) as writer:
        for group in _groups(trace, schema):
            writer.write_table(group)


def _groups(trace: Trace, schema: pa.Schema) -> Iterator[pa.Table]:
    """Arrow tables of `ROW_GROUP_EVENTS` rows each. Columns that must not be empty are checked here.

    Arrays are made from buffers, because `pyarrow.array` imports pandas to check whether its argument is a Series.
    """
    import pyarrow as pa

    vocabulary = {name: [str(text).encode() for text in texts] for name, texts in trace.vocabulary.items()}
    for begin in range(0, len(trace), ROW_GROUP_EVENTS):
        columns = []
        for field in schema:
            if field.name == "event_id":
                ids = np.arange(begin, min(begin + ROW_GROUP_EVENTS, len(trace)), dtype=np.int64)
                column = _integers(ids, MISSING)
            elif field.name in vocabulary:
                column = _texts(trace.columns[field.name][begin : begin + ROW_GROUP_EVENTS], vocabulary[field.name])
            else:
                column = _integers(trace.columns[field.name][begin : begin + ROW_GROUP_EVENTS], absent(field.name))
            if column.null_count and not field.nullable:
                raise TableError(f"{trace.path}: events table has empty values in column {field.name}")
            columns.append(column)
        yield pa.Table.from_arrays(columns, schema=schema)


def _integers(values: npt.NDArray[np.signedinteger[Any]], gone: int) -> pa.Array:
    import pyarrow as pa

    whole = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [_valid(whole != gone), pa.py_buffer(whole)])


def _texts(codes: npt.NDArray[np.signedinteger[Any]], vocabulary: list[bytes]) -> pa.Array:
    import pyarrow as pa

    texts = [*vocabulary, b""]  # code -1, for none, is the last
    length = np.array([len(text) for text in texts], np.int32)[codes]
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int32)
    data = b"".join([texts[code] for code in codes.tolist()])
    buffers = [_valid(codes >= 0), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(codes), buffers)


def _valid(there: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    import pyarrow as pa

    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
