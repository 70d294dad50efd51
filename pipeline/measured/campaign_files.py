"""The files of a campaign's folder, and how each is read.

Files:
    manifest.json: What ran, on which device, with which result. It is the last file written after each unit.
    step_times.parquet: Unprofiled step times (schema `step_times`).
    peaks.parquet: Bandwidths, throughputs and host costs (schema `peaks`).
    samples.parquet: Kernel microbenchmarks (schema `samples`).
    traces_*.tar: Per step a folder with `kineto.json.gz` and `execution_trace.json.gz`.

Folders also come from other machines, so sizes are checked before anything is read. Files in an archive are read, never
extracted under their own names.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError, TableError, TraceError
from pipeline.paths import CAMPAIGN
from pipeline.schemas import SCHEMAS, read_table

STEP_TIMES, SAMPLES, PEAKS = "step_times.parquet", "samples.parquet", "peaks.parquet"
SCHEMA_VERSION = 2
"""Version of the folder's layout."""

MAX_ARCHIVES, MAX_MEMBERS = 1_000, 1_000
"""Largest number of archives in a folder, and of files in an archive; a campaign traces about 80 steps, two files each."""
MAX_MEMBER_BYTES, MAX_TRACE_BYTES = 64 << 20, 1 << 30
"""Largest size in bytes of a trace as stored, and after decompression (the largest of a campaign has about 100 MB)."""
MAX_MANIFEST_BYTES, MAX_TABLE_BYTES = 64 << 20, 1 << 30
"""Largest size in bytes of a manifest (a whole campaign's has about 100 kB), and of a table after decompression."""

MAX_PEAK = 1e9
"""Largest plausible value of a peak or cost in any of its units (GB/s, TFLOP/s, µs)."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a campaign.

    Raises:
        InputError: the folder has no manifest, or the manifest is damaged or too large.
    """
    path = folder / CAMPAIGN
    try:
        if (size := path.stat().st_size) > MAX_MANIFEST_BYTES:
            raise InputError(f"{path}: {size} bytes; at most {MAX_MANIFEST_BYTES} are allowed")
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(
            f"{folder}: {CAMPAIGN} is missing; give the folder of a campaign"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged ({error}); measure again") from None
    if (
        not isinstance(manifest, dict)
        or not isinstance(manifest.get("units"), dict)
        or "device" not in manifest
    ):
        raise InputError(f"{path}: not the manifest of a campaign; measure again")
    if not all(
        isinstance(part, dict) for part in (manifest["device"], *manifest["units"].values())
    ):
        raise InputError(f"{path}: its device or units are damaged; measure again")
    if manifest.get("schema") != SCHEMA_VERSION:
        layout = f"layout {manifest.get('schema')!r}, but this Steptime reads {SCHEMA_VERSION}"
        raise InputError(f"{path}: {layout}; measure again")
    return manifest


def read_peaks(path: Path) -> pd.DataFrame:
    """Read and check a table of peaks.

    Raises:
        TableError: the file is missing, damaged, or of another kind, or a value is implausible.
    """
    check_table(path)
    peaks = read_table(path, "peaks")
    wrong = ~((peaks["value"] >= 0) & (peaks["value"] <= MAX_PEAK))
    if wrong.any():
        row = peaks[wrong].iloc[0]
        raise TableError(
            f"{path}: {row['name']} is {row['value']:g} {row['unit']}, which no device has; measure"
            " again"
        )
    return peaks


def measured_table(folder: Path, file: str) -> pd.DataFrame:
    """A table of a campaign, `SAMPLES` or `STEP_TIMES`; empty if nothing of it was measured.

    Raises:
        TableError: the table is damaged or too large.
    """
    path = folder / file
    schema = Path(file).stem
    if not path.exists():
        return pd.DataFrame(columns=SCHEMAS[schema].names)
    check_table(path)
    return read_table(path, schema)


def check_table(path: Path) -> None:
    """Refuse a table that unpacks to more than `MAX_TABLE_BYTES`; the table's reader reports damaged ones.

    Raises:
        TableError: the table is too large.
    """
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if size > MAX_TABLE_BYTES:
        raise TableError(
            f"{path}: {size} bytes after decompression; at most {MAX_TABLE_BYTES} are allowed"
        )


@contextmanager
def _open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive of traces that is not compressed as a whole."""
    try:
        with tarfile.open(path, "r:") as tar:
            yield tar
    except (tarfile.TarError, OSError, KeyError) as error:
        raise TraceError(f"{path}: damaged archive ({error}); measure again") from None


def archives(folder: Path) -> list[Path]:
    """The archives of a campaign's folder, in order.

    Raises:
        TraceError: there are more archives than `MAX_ARCHIVES`.
    """
    paths = sorted(path for path in folder.glob("traces_*.tar") if path.is_file())
    if len(paths) > MAX_ARCHIVES:
        raise TraceError(f"{folder}: {len(paths)} archives; at most {MAX_ARCHIVES} are allowed")
    return paths


def member_names(path: Path) -> list[str]:
    """Names of the regular files in an archive; unsafe names (absolute, or with `.` or `..`) are left out.

    Raises:
        TraceError: the archive is damaged, or has more or larger files than a campaign writes.
    """
    names: list[str] = []
    with _open_archive(path) as tar, path.open("rb") as file:
        for number, info in enumerate(tar, 1):
            if number > MAX_MEMBERS:
                raise TraceError(
                    f"{path}: more than {MAX_MEMBERS} files; this is not the archive of a campaign"
                )
            if info.size > MAX_MEMBER_BYTES:
                raise TraceError(
                    f"{path}: {info.name} has {info.size} bytes; at most {MAX_MEMBER_BYTES} are"
                    " allowed"
                )
            if info.isreg() and not any(part in ("", ".", "..") for part in info.name.split("/")):
                names.append(info.name)
        file.seek(tar.offset)
        end = file.read(tarfile.RECORDSIZE)
    # tarfile takes a damaged header for the end of the archive, and would lose all files behind it
    if len(end) < tarfile.BLOCKSIZE or end.strip(b"\0"):
        raise TraceError(
            f"{path}: damaged or cut archive (after {len(names)} files); measure again"
        )
    return names


def read_member(path: Path, name: str) -> bytes:
    """The stored bytes of a file that `member_names` lists.

    Raises:
        TraceError: the archive is damaged, or the file unpacks to more than a campaign's trace.
    """
    with _open_archive(path) as tar:
        stream = tar.extractfile(name)
        data = stream.read(MAX_MEMBER_BYTES) if stream is not None else b""
    if _unpacks_beyond(data, MAX_TRACE_BYTES):
        limit = f"more than {MAX_TRACE_BYTES} bytes"
        raise TraceError(f"{path}: {name} unpacks to {limit}; this is not the trace of a campaign")
    return data


def _unpacks_beyond(data: bytes, size: int) -> bool:
    """Whether gzip data unpacks to more bytes than `size`; the code that reads damaged data reports the damage."""
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            stream.seek(size)
            return bool(stream.read(1))
    except (OSError, EOFError, zlib.error):
        return False
