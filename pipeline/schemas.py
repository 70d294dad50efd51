"""Schemas of the tables that stages pass to each other: columns, types, and reading and writing with checks.

Each kind of artifact has one schema. Times are microseconds in float64 columns named `*_us`. Raw timestamps of traces
are integer nanoseconds in columns named `*_ns`. Sizes are bytes. Shapes and attributes are JSON text.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import InputError, SteptimeError, TableError, first_line

if TYPE_CHECKING:
    import pandas as pd  # imported only where a DataFrame is made: `steptime trace` runs without it, in half the memory

PROVENANCE_KEY = b"steptime"
"""Key of the provenance JSON in a parquet file's metadata."""

WRITTEN_AS: dict[str, Any] = {
    "compression": "zstd",
    "write_page_checksum": True,
    "write_statistics": False,
}
"""Options of every parquet file that is written. Readers check the checksums, so that no damaged page is read as numbers. No
reader uses statistics of columns, which take a tenth of the time and of a small file."""

DIMS = (
    # gemm, bmm: (B x) M x N times N x K, where N is the reduction dimension
    "B", "M", "N", "K", "trans_a", "trans_b",
    # elementwise, softmax, layer_norm, reduction: B rows of width H; operands that are not B x H are counted in bytes
    "H", "inputs", "outputs",
    # conv2d; the _w columns are null if the window or image is square
    "in_channels", "out_channels", "kernel_size", "kernel_size_w", "input_size", "input_size_w",
    "stride", "stride_w", "padding", "padding_w", "groups", "dilation",
    # embedding: B samples, T tables of E rows and width D, L lookups per sample and table
    "E", "T", "L", "D",
    # batch_norm, pooling
    "C", "HW",
    # tril_index: B samples of F x F
    "F",
    # rnn: B sequences of T steps, input width I, hidden width H
    "I", "layers",
    # memcpy, concat, copy, optimizer, collective; ranks of a group, its nodes (1 where null), groups on a node
    "bytes", "tensors", "ranks", "nodes", "node_groups",
)  # fmt: skip
"""Dimension columns of kernel calls and samples, all int64. A dimension that a family does not have is null."""

SUBSTITUTE = {"kernel": "aten"}
"""In the attributes of a sample of a fused operator: PyTorch's own operators were timed instead."""

_TYPES = {"s": pa.string(), "i": pa.int64(), "f": pa.float64(), "b": pa.bool_()}
"""Type of a column by its letter in `SCHEMAS`: text, whole number, number, flag."""


def _schema(columns: str) -> pa.Schema:
    """A schema from `name:type`, separated by blanks; columns after `|` may be null, and `DIMS` stands for all of them."""
    dims = " ".join(f"{name}:i" for name in DIMS)
    required, _, optional = columns.replace("DIMS", dims).partition("|")
    fields = [
        pa.field(name, _TYPES[letter], nullable)
        for part, nullable in ((required, False), (optional, True))
        for name, _, letter in (column.partition(":") for column in part.split())
    ]
    return pa.schema(fields)


SCHEMAS: dict[str, pa.Schema] = {
    # one row per operator, in host order
    "graph": _schema("""
        node_id:i name:s order:i thread:i phase:s input_shapes:s input_dtypes:s output_shapes:s
        attributes:s is_top_level:b
        | parent_id:i module:s
    """),
    # one row per device call, in launch order
    "calls": _schema("""
        node_id:i call:i api:s family:s op:s phase:s stream:i dtype:s flops:f bytes_read:f
        bytes_written:f blocking:b
        | DIMS attributes:s kernel_name:s measured_us:f evidence:s
    """),
    # one row per event of a profiler trace
    "events": _schema("""
        event_id:i category:s name:s ts_ns:i dur_ns:i pid:i tid:i
        | stream:i device:i correlation:i external_id:i record_function_id:i iteration:i phase:s
        parent:i top:i op:i launch:i grid:s block:s registers:i shared_memory:i bytes:i
        input_shapes:s input_dtypes:s input_values:s sequence:i forward_thread:i wait_event:i
        wait_stream:i collective:s ranks:i
    """),
    # one row per measured kernel call
    "samples": _schema("""
        gpu:s family:s op:s phase:s dtype:s latency_us:f source:s campaign_id:s
        | DIMS kernel_us:f cold:b attributes:s kernel_name:s kernels:i grid:s block:s registers:i
        shared_memory:i
    """),
    # statistics of host overheads; `type` is T1 to T5, or a device-side constant (launch_latency, kernel_gap)
    "overheads": _schema("""
        type:s op:s mean_us:f std_us:f median_us:f count:i workloads:s
        | api:s signature:s evidence:s
    """),
    # the raw observations from which `overheads` is computed
    "overhead_samples": _schema("""
        type:s op:s value_us:f iteration:i workload:s
        | api:s signature:s
    """),
    # one row per device call (or host-only operator, `call` null) of a predicted step
    "prediction": _schema("""
        node_id:i name:s thread:i phase:s host_start_us:f host_end_us:f
        | call:i api:s family:s op:s stream:i device_start_us:f device_end_us:f kernel_us:f p10_us:f
        p90_us:f evidence:s host_evidence:s on_critical_path:b module:s dtype:s flops:f
        bytes_read:f bytes_written:f
    """),
    # unprofiled steps of a workload, timed on the device
    "step_times": _schema("""
        gpu:s model:s variant:s batch_size:i step_us:f p10_us:f p90_us:f count:i source:s
        | device_us:f host_us:f memory_bytes:i config:s
    """),
    # one row per measured peak or cost of a device: `value` in `unit`, at `size` (bytes, or the side of a matrix)
    "peaks": _schema("""
        unit_name:s name:s value:f unit:s
        | size:i note:s
    """),
    # one row per grid point
    "summary": _schema("""
        gpu:s model:s variant:s batch_size:i predicted_us:f active_us:f idle_us:f host_us:f p10_us:f
        p90_us:f memory_bytes:i fits:b evidence:s host_evidence:s unmodelled_share:f
        | measured_us:f error:f families:s unmodelled:s bound:s overrides:s host:s
        device_bound_from:f largest_batch:i fitting_gpus:s warnings:s tight:b notes:s dtype:s
        optimizer:s attention:s seq_len:s devices:i nodes:i dp:i tp:i cp:i pp:i virtual_stages:i
        micro_batches:i cluster:s communication_us:f
        exposed_communication_us:f imbalance:f sharding:s efficiency:f efficiency_p10:f efficiency_p90:f
        model_flops:f tflop_per_s:f mfu:f mfu_dtype:s peak_tflop_per_s:f mean_w:f joules_per_step:f
        samples_per_kwh:f clock_mhz:f power_limit_w:f clock_bound:s power_evidence:s rest_w:f electricity:f
    """),
}

_POINT = ("gpu", "model", "variant", "batch_size")
SCHEMAS["grid"] = pa.schema(
    [
        *(SCHEMAS["summary"].field(name) for name in _POINT),
        *(each.with_nullable(True) for each in SCHEMAS["summary"] if each.name not in _POINT),
        pa.field("unpredicted", pa.string()),
    ]
)
"""One row per point of `steptime compare --out`: as `summary`, and the reason where there is no prediction."""


def to_arrow(frame: pd.DataFrame | pa.Table, schema: str, where: str = "table") -> pa.Table:
    """Cast a table to a named schema; missing optional columns become null, unknown columns are refused.

    Raises:
        TableError: a required column is missing or null, a column is unknown, a value does not fit its type, or a number
            is infinite or NaN.
    """
    target = SCHEMAS[schema]
    names = frame.column_names if isinstance(frame, pa.Table) else list(frame.columns)
    missing = [f.name for f in target if not f.nullable and f.name not in names]
    unknown = [str(name) for name in names if name not in target.names]
    if missing or unknown:
        what = (
            f"column {', '.join(missing)} is missing"
            if missing
            else f"unknown column {', '.join(unknown)}"
        )
        raise TableError(f"{where}: {schema} table: {what}")
    try:
        arrays = [
            _cast(frame[f.name], f) if f.name in names else pa.nulls(len(frame), f.type)
            for f in target
        ]
        table = pa.Table.from_arrays(arrays, schema=target)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TableError(f"{where}: {schema} table: {first_line(error)}") from None
    nulls = [f.name for f in target if not f.nullable and table[f.name].null_count]
    if nulls:
        raise TableError(f"{where}: {schema} table has empty values in column {', '.join(nulls)}")
    numbers = [f.name for f in target if pa.types.is_floating(f.type)]
    if odd := [n for n in numbers if not pc.all(pc.is_finite(table[n]), min_count=0).as_py()]:
        raise TableError(
            f"{where}: {schema} table has infinite or NaN values in column {', '.join(odd)}"
        )
    return table.replace_schema_metadata(None)


def _cast(column: pd.Series | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """A column with the type of a field."""
    if isinstance(column, pa.ChunkedArray):
        return column if column.type == field.type else column.cast(field.type)
    try:
        return pa.array(column, type=field.type, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ValueError(f"column {field.name}: {error}") from None


def write_table(
    frame: pd.DataFrame | pa.Table,
    path: str | Path,
    schema: str,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Check a table against a schema and write it as zstd parquet, completely or not at all.

    Raises:
        TableError: the table does not fit the schema.
        SteptimeError: the file cannot be written (full disk, no permission).
    """
    path = Path(path)
    table = to_arrow(frame, schema, str(path))
    with atomic_path(path) as part:
        facts = {"schema": schema, **(provenance or {})}
        pq.write_table(_with_provenance(table, facts), part, **WRITTEN_AS)


def write_parquet(
    frame: pd.DataFrame,
    path: str | Path,
    labels: bool = False,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write a table without a schema (a user's own columns, results of a check), completely or not at all.

    Args:
        frame: the table.
        path: the file.
        labels: whether to write row labels other than 0, 1, 2..., as pandas does; for a user's table.
        provenance: origin of the table, stored in the file's metadata.

    Raises:
        SteptimeError: the file cannot be written, or a column holds values that parquet cannot store.
    """
    try:
        with atomic_path(path) as part:
            table = pa.Table.from_pandas(frame, preserve_index=None if labels else False)
            pq.write_table(_with_provenance(table, provenance or {}), part, **WRITTEN_AS)
    except pa.ArrowException as error:
        raise SteptimeError(f"{path}: cannot be written ({first_line(error)})") from None


def _with_provenance(table: pa.Table, provenance: Mapping[str, Any]) -> pa.Table:
    text = json.dumps(dict(provenance), sort_keys=True, default=str)
    kept = table.schema.metadata or {}
    return table.replace_schema_metadata({**kept, PROVENANCE_KEY: text.encode()})


def read_table(path: str | Path, schema: str) -> pd.DataFrame:
    """Read a parquet artifact and check it against a schema; int columns with nulls come back as Int64.

    Raises:
        TableError: the file is missing, damaged, or does not fit the schema.
    """
    import pandas as pd

    table = read_checked(path, schema)
    nulls = any(pa.types.is_int64(f.type) and table[f.name].null_count for f in table.schema)
    mapper = {pa.int64(): pd.Int64Dtype()}.get if nulls else None
    frame: pd.DataFrame = table.to_pandas(types_mapper=mapper)
    return frame


def read_checked(path: str | Path, schema: str) -> pa.Table:
    """As `read_table`, without the conversion to pandas.

    Raises:
        TableError: the file is missing, damaged, or does not fit the schema.
    """
    table = _read(path, "run the rule that makes it, or give another file", REBUILD)
    return to_arrow(table.replace_schema_metadata(None), schema, str(path))


def _read(path: str | Path, missing: str, damaged: str) -> pa.Table:
    """Read a parquet file without a schema. Arguments and errors are those of `read_frame`."""
    if Path(path).is_dir():  # its files would be read as one table, in undefined order
        raise TableError(f"{path}: is a folder; give the path of the parquet file in it")
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        _ = table.column_names  # damaged names are no text
        return table
    except FileNotFoundError:
        raise TableError(f"{path}: no such file; {missing}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error, damaged) from None


def read_frame(
    path: str | Path, missing: str, damaged: str, columns: Sequence[str] = ()
) -> pd.DataFrame:
    """Read a parquet file that this pipeline did not write, with the row labels that pandas stored.

    Args:
        path: the file.
        missing: what the user should do if there is no file.
        damaged: what the user should do if it cannot be read or lacks columns.
        columns: the columns that it must have, beside others.

    Raises:
        TableError: the file is missing or damaged, or lacks columns; the message says what to do.
    """
    table = _read(path, missing, damaged)
    try:
        frame: pd.DataFrame = table.to_pandas()
    except (pa.ArrowException, *DAMAGED_DESCRIPTION) as error:
        raise _unreadable(path, error, damaged) from None
    if lacking := [name for name in columns if name not in frame.columns]:
        raise TableError(f"{path}: column {', '.join(lacking)} is missing; {damaged}")
    return frame


REBUILD = "delete the file to rebuild it"
"""What to do about a damaged artifact."""

DAMAGED_DESCRIPTION = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What pandas raises for a damaged description of its columns."""


def _unreadable(path: str | Path, error: BaseException, damaged: str) -> TableError:
    return TableError(f"{path}: not a readable parquet file ({first_line(error)}); {damaged}")


def refuse_overwriting(out: str | Path, *inputs: str | Path | None) -> None:
    """Refuse an output path that is also an input: overwriting the input would lose a measurement.

    Raises:
        InputError: `out` is one of the input files, even under another name.
    """
    for path in [Path(each) for each in inputs if each is not None]:
        if path.exists() and Path(out).exists() and path.samefile(out):
            raise InputError(
                f"{out}: is also an input, which writing would replace; give another file"
            )


def read_provenance(path: str | Path) -> dict[str, Any]:
    """The provenance stored in an artifact; empty if the file has none.

    Raises:
        TableError: the file or its provenance is damaged.
    """
    try:
        metadata = pq.read_schema(path).metadata or {}
        provenance = json.loads(metadata.get(PROVENANCE_KEY, b"{}"))
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error, REBUILD) from None
    if not isinstance(provenance, dict):
        raise TableError(f"{path}: its provenance is damaged; {REBUILD}")
    return provenance


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Context with a temporary path beside `path`; the file is renamed to `path` on success and removed on failure.

    If `path` is a link, its target is replaced and the link stays. A path that is not a file (a folder, /dev/null) is
    refused.
    """
    target = Path(path).resolve() if Path(path).is_symlink() else Path(path)
    if target.is_dir():
        raise InputError(f"{target}: is a folder; give the path of the file to write")
    if target.exists() and not target.is_file():
        raise InputError(f"{target}: is not a regular file; give another path")
    part = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(".part", f".{target.name}.", target.parent)
        os.close(handle)
        part = Path(name)
        yield part
        part.chmod(0o644)
        part.replace(target)
    except OSError as error:
        raise unwritable(target, error) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text as UTF-8, completely or not at all."""
    with atomic_path(path) as part:
        part.write_text(text, encoding="utf-8")


def unwritable(path: str | Path, error: OSError) -> SteptimeError:
    """The error about a file or folder that cannot be written."""
    return SteptimeError(f"{path}: cannot be written ({error.strerror or error})")
