"""Schemas of the tables that stages pass to each other: columns, types, and reading and writing with checks.

Each kind of artifact has one schema. Times are microseconds in float64 columns named `*_us`. Raw timestamps of traces
are integer nanoseconds in columns named `*_ns`. Sizes are bytes. Shapes and attributes are JSON text.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import InputError, SteptimeError, TableError

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
    "B",
    "M",
    "N",
    "K",
    "trans_a",
    "trans_b",
    # elementwise, softmax, layer_norm, reduction: B rows of width H; operands that are not B x H are counted in bytes
    "H",
    "inputs",
    "outputs",
    # conv2d; the _w columns are null if the window or image is square
    "in_channels",
    "out_channels",
    "kernel_size",
    "kernel_size_w",
    "input_size",
    "input_size_w",
    "stride",
    "stride_w",
    "padding",
    "padding_w",
    "groups",
    "dilation",
    # embedding: B samples, T tables of E rows and width D, L lookups per sample and table
    "E",
    "T",
    "L",
    "D",
    # batch_norm, pooling
    "C",
    "HW",
    # tril_index: B samples of F x F
    "F",
    # rnn: B sequences of T steps, input width I, hidden width H
    "I",
    "layers",
    # memcpy, concat, copy, optimizer, collective; ranks of a group, its nodes (1 where null), groups on a node
    "bytes",
    "tensors",
    "ranks",
    "nodes",
    "node_groups",
)
"""Dimension columns of kernel calls and samples, all int64. A dimension that a family does not have is null."""

SUBSTITUTE = {"kernel": "aten"}
"""In the attributes of a sample of a fused operator: PyTorch's own operators were timed instead."""

_S, _I, _F, _B = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def _schema(
    required: dict[str, pa.DataType], optional: dict[str, pa.DataType] | None = None
) -> pa.Schema:
    fields = [pa.field(name, kind, nullable=False) for name, kind in required.items()]
    fields += [pa.field(name, kind, nullable=True) for name, kind in (optional or {}).items()]
    return pa.schema(fields)


_DIM_FIELDS = {name: _I for name in DIMS}

SCHEMAS: dict[str, pa.Schema] = {
    # one row per operator, in host order
    "graph": _schema(
        {
            "node_id": _I,
            "name": _S,
            "order": _I,
            "thread": _I,
            "phase": _S,
            "input_shapes": _S,
            "input_dtypes": _S,
            "output_shapes": _S,
            "attributes": _S,
            "is_top_level": _B,
        },
        {"parent_id": _I, "module": _S},
    ),
    # one row per device call, in launch order
    "calls": _schema(
        {
            "node_id": _I,
            "call": _I,
            "api": _S,
            "family": _S,
            "op": _S,
            "phase": _S,
            "stream": _I,
            "dtype": _S,
            "flops": _F,
            "bytes_read": _F,
            "bytes_written": _F,
            "blocking": _B,
        },
        {**_DIM_FIELDS, "attributes": _S, "kernel_name": _S, "measured_us": _F, "evidence": _S},
    ),
    # one row per event of a profiler trace
    "events": _schema(
        {
            "event_id": _I,
            "category": _S,
            "name": _S,
            "ts_ns": _I,
            "dur_ns": _I,
            "pid": _I,
            "tid": _I,
        },
        {
            "stream": _I,
            "device": _I,
            "correlation": _I,
            "external_id": _I,
            "record_function_id": _I,
            "iteration": _I,
            "phase": _S,
            "parent": _I,
            "top": _I,
            "op": _I,
            "launch": _I,
            "grid": _S,
            "block": _S,
            "registers": _I,
            "shared_memory": _I,
            "bytes": _I,
            "input_shapes": _S,
            "input_dtypes": _S,
            "input_values": _S,
            "sequence": _I,
            "forward_thread": _I,
            "wait_event": _I,
            "wait_stream": _I,
            "collective": _S,
            "ranks": _I,
        },
    ),
    # one row per measured kernel call
    "samples": _schema(
        {
            "gpu": _S,
            "family": _S,
            "op": _S,
            "phase": _S,
            "dtype": _S,
            "latency_us": _F,
            "source": _S,
            "campaign_id": _S,
        },
        {
            **_DIM_FIELDS,
            "kernel_us": _F,
            "cold": _B,
            "attributes": _S,
            "kernel_name": _S,
            "kernels": _I,
            "grid": _S,
            "block": _S,
            "registers": _I,
            "shared_memory": _I,
        },
    ),
    # statistics of host overheads; `type` is T1 to T5, or a device-side constant (launch_latency, kernel_gap)
    "overheads": _schema(
        {
            "type": _S,
            "op": _S,
            "mean_us": _F,
            "std_us": _F,
            "median_us": _F,
            "count": _I,
            "workloads": _S,
        },
        {"api": _S, "signature": _S, "evidence": _S},
    ),
    # the raw observations from which `overheads` is computed
    "overhead_samples": _schema(
        {"type": _S, "op": _S, "value_us": _F, "iteration": _I, "workload": _S},
        {"api": _S, "signature": _S},
    ),
    # one row per device call (or host-only operator, `call` null) of a predicted step
    "prediction": _schema(
        {
            "node_id": _I,
            "name": _S,
            "thread": _I,
            "phase": _S,
            "host_start_us": _F,
            "host_end_us": _F,
        },
        {
            "call": _I,
            "api": _S,
            "family": _S,
            "op": _S,
            "stream": _I,
            "device_start_us": _F,
            "device_end_us": _F,
            "kernel_us": _F,
            "p10_us": _F,
            "p90_us": _F,
            "evidence": _S,
            "host_evidence": _S,
            "on_critical_path": _B,
            "module": _S,
            "dtype": _S,
            "flops": _F,
            "bytes_read": _F,
            "bytes_written": _F,
        },
    ),
    # unprofiled steps of a workload, timed on the device
    "step_times": _schema(
        {
            "gpu": _S,
            "model": _S,
            "variant": _S,
            "batch_size": _I,
            "step_us": _F,
            "p10_us": _F,
            "p90_us": _F,
            "count": _I,
            "source": _S,
        },
        {"device_us": _F, "host_us": _F, "memory_bytes": _I, "config": _S},
    ),
    # one row per measured peak or cost of a device: `value` in `unit`, at `size` (bytes, or the side of a matrix)
    "peaks": _schema(
        {"unit_name": _S, "name": _S, "value": _F, "unit": _S}, {"size": _I, "note": _S}
    ),
    # one row per grid point
    "summary": _schema(
        {
            "gpu": _S,
            "model": _S,
            "variant": _S,
            "batch_size": _I,
            "predicted_us": _F,
            "active_us": _F,
            "idle_us": _F,
            "host_us": _F,
            "p10_us": _F,
            "p90_us": _F,
            "memory_bytes": _I,
            "fits": _B,
            "evidence": _S,
            "host_evidence": _S,
            "unmodelled_share": _F,
        },
        {
            "measured_us": _F,
            "error": _F,
            "families": _S,
            "unmodelled": _S,
            "bound": _S,
            "overrides": _S,
            "host": _S,
            "device_bound_from": _F,
            "largest_batch": _I,
            "fitting_gpus": _S,
            "warnings": _S,
            "tight": _B,
            "notes": _S,
            "dtype": _S,
            "optimizer": _S,
            "attention": _S,
            "devices": _I,
            "nodes": _I,
            "cluster": _S,
            "communication_us": _F,
            "exposed_communication_us": _F,
            "efficiency": _F,
            "model_flops": _F,
            "tflop_per_s": _F,
            "mfu": _F,
            "mfu_dtype": _S,
            "peak_tflop_per_s": _F,
        },
    ),
}

SCHEMAS["plan"] = _schema(
    {
        "gpu": _S,
        "model": _S,
        "variant": _S,
        "batch_size": _I,
        "overrides": _S,
        "accumulated": _I,
        "step_us": _F,
        "p10_us": _F,
        "p90_us": _F,
        "samples_per_s": _F,
        "memory_bytes": _I,
        "bound": _S,
        "evidence": _S,
        "on_front": _B,
    },
    {
        "tight": _B,
        "rank": _I,
        "host": _S,
        "wins": _F,
        "samples_per_dollar": _F,
        "time_per_epoch_s": _F,
        "cost_per_epoch": _F,
    },
)
"""One row per point of a plan's front, and per point of its best. `rank` counts the best from 1."""

_NAMES = {
    name: _I if name == "batch_size" else _S for name in ("gpu", "model", "variant", "batch_size")
}
SCHEMAS["grid"] = _schema(
    _NAMES,
    {field.name: field.type for field in SCHEMAS["summary"] if field.name not in _NAMES}
    | {"unpredicted": _S},
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
        raise TableError(f"{where}: {schema} table: {str(error).splitlines()[0]}") from None
    nulls = [f.name for f in target if not f.nullable and table[f.name].null_count]
    if nulls:
        raise TableError(f"{where}: {schema} table has empty values in column {', '.join(nulls)}")
    if odd := [
        f.name
        for f in target
        if f.type == _F and not pc.all(pc.is_finite(table[f.name]), min_count=0).as_py()
    ]:
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
    text = json.dumps({"schema": schema, **(provenance or {})}, sort_keys=True, default=str)
    table = table.replace_schema_metadata({PROVENANCE_KEY: text.encode()})
    with atomic_path(path) as part:
        pq.write_table(table, part, **WRITTEN_AS)


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
            if provenance is not None:
                text = json.dumps(dict(provenance), sort_keys=True, default=str)
                table = table.replace_schema_metadata(
                    {**(table.schema.metadata or {}), PROVENANCE_KEY: text.encode()}
                )
            pq.write_table(table, part, **WRITTEN_AS)
    except pa.ArrowException as error:
        raise SteptimeError(f"{path}: cannot be written ({_first_line(error)})") from None


def read_table(path: str | Path, schema: str) -> pd.DataFrame:
    """Read a parquet artifact and check it against a schema; int columns with nulls come back as Int64.

    Raises:
        TableError: the file is missing, damaged, or does not fit the schema.
    """
    return to_frame(read_checked(path, schema))


def read_checked(path: str | Path, schema: str) -> pa.Table:
    """As `read_table`, without the conversion to pandas.

    Raises:
        TableError: the file is missing, damaged, or does not fit the schema.
    """
    table = read_arrow(
        path, "run the rule that makes it, or give another file", "delete the file to rebuild it"
    )
    return to_arrow(table.replace_schema_metadata(None), schema, str(path))


def to_frame(table: pa.Table) -> pd.DataFrame:
    """A checked table as a data frame; int columns with nulls become Int64."""
    import pandas as pd

    frame: pd.DataFrame = table.to_pandas(
        types_mapper={pa.int64(): pd.Int64Dtype()}.get if _has_null_int(table) else None
    )
    return frame


def read_arrow(path: str | Path, missing: str, damaged: str) -> pa.Table:
    """Read a parquet file without a schema.

    Args:
        path: the file.
        missing: what the user should do if there is no file.
        damaged: what the user should do if it cannot be read.

    Raises:
        TableError: the file is missing or damaged; the message says what to do.
    """
    path = Path(path)
    refuse_folder(path)
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        _ = table.column_names  # damaged names are no text
        return table
    except FileNotFoundError:
        raise TableError(f"{path}: no such file; {missing}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise TableError(
            f"{path}: not a readable parquet file ({_first_line(error)}); {damaged}"
        ) from None


def read_frame(path: str | Path, missing: str, damaged: str) -> pd.DataFrame:
    """Read a parquet file without a schema, with the row labels that pandas stored. Arguments are those of `read_arrow`.

    Raises:
        TableError: as `read_arrow`; the description of the columns that pandas wrote may be damaged too.
    """
    table = read_arrow(path, missing, damaged)
    try:
        frame: pd.DataFrame = table.to_pandas()
        return frame
    except (
        pa.ArrowException,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
    ) as error:
        raise TableError(
            f"{path}: not a readable parquet file ({_first_line(error)}); {damaged}"
        ) from None


def read_columns(
    path: str | Path, columns: Sequence[str], missing: str, damaged: str
) -> pd.DataFrame:
    """Read a parquet file that this pipeline did not write. It must have `columns` and may have others.

    Args:
        path: the file.
        columns: the required columns.
        missing: what the user should do if there is no file.
        damaged: what the user should do if it cannot be read or lacks columns.

    Raises:
        TableError: the file is missing or damaged, or lacks columns; the message says what to do.
    """
    table = read_frame(path, missing, damaged)
    lacking = [name for name in columns if name not in table.columns]
    if lacking:
        raise TableError(f"{path}: column {', '.join(lacking)} is missing; {damaged}")
    return table


def refuse_folder(path: Path) -> None:
    """Refuse a folder: its parquet files would be read as one table, in undefined order and with different types.

    Raises:
        TableError: `path` is a folder.
    """
    if path.is_dir():
        raise TableError(f"{path}: is a folder; give the path of the parquet file in it")


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
        raise TableError(
            f"{path}: not a readable parquet file ({_first_line(error)}); delete the file to"
            " rebuild it"
        ) from None
    if not isinstance(provenance, dict):
        raise TableError(f"{path}: its provenance is damaged; delete the file to rebuild it")
    return provenance


class atomic_path:  # noqa: N801 - used like a function in `with atomic_path(...) as part`
    """Context with a temporary path beside `path`; the file is renamed to `path` on success and removed on failure.

    If `path` is a link, its target is replaced and the link stays. A path that is not a file (a folder, /dev/null) is
    refused.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve() if Path(path).is_symlink() else Path(path)

    def __enter__(self) -> Path:
        if self.path.is_dir():
            raise InputError(f"{self.path}: is a folder; give the path of the file to write")
        if self.path.exists() and not self.path.is_file():
            raise InputError(f"{self.path}: is not a regular file; give another path")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(
                prefix=f".{self.path.name}.", suffix=".part", dir=self.path.parent
            )
        except OSError as error:
            raise SteptimeError(
                f"{self.path}: cannot be written ({error.strerror or error})"
            ) from None
        os.close(handle)
        self.part = Path(name)
        return self.part

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if kind is None:
            try:
                self.part.chmod(0o644)
                self.part.replace(self.path)
                return
            except OSError as failure:
                error = failure
        self.part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise SteptimeError(
                f"{self.path}: cannot be written ({error.strerror or error})"
            ) from None


def _has_null_int(table: pa.Table) -> bool:
    return any(
        pa.types.is_int64(field.type) and table[field.name].null_count for field in table.schema
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
