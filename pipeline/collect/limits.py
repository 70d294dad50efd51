"""Size limits of a campaign's files, checked before reading, because folders and archives come from other machines.

A campaign of this project is far below these limits: 20 MB in eight files (`pipeline.collect.campaign_folder`).
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError, TableError, TraceError

MAX_ARCHIVES = 100
"""Largest number of trace archives in a folder."""

MAX_MEMBERS = 1_000
"""Largest number of files in an archive; a campaign traces about 80 steps, with two files each."""

MAX_MEMBER_BYTES = 64 << 20
"""Largest size in bytes of one file in an archive, as stored (compressed)."""

MAX_TRACE_BYTES = 1 << 30
"""Largest size in bytes of one trace after decompression; the largest trace of a campaign has about 100 MB."""

MAX_MANIFEST_BYTES = 64 << 20
"""Largest size in bytes of a manifest; the manifest of a whole campaign has about 100 kB."""

MAX_TABLE_BYTES = 1 << 30
"""Largest size in bytes of a table after decompression, according to the table's metadata."""

_PIECE = 1 << 20
"""Bytes that are decompressed at a time."""


@contextmanager
def open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive of traces that is not compressed as a whole.

    Raises:
        TraceError: the archive is damaged or compressed.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            yield tar
    except (tarfile.TarError, OSError, KeyError) as error:
        raise TraceError(f"{path}: damaged archive ({error}); measure again") from None


def member_names(path: Path) -> list[str]:
    """Names of the regular files in an archive; unsafe names (absolute, or with `.` or `..`) are left out.

    Raises:
        TraceError: the archive is damaged, or has more or larger files than a campaign writes.
    """
    names: list[str] = []
    with open_archive(path) as tar, path.open("rb") as file:
        for number, info in enumerate(tar, 1):
            if number > MAX_MEMBERS:
                raise TraceError(f"{path}: more than {MAX_MEMBERS} files; this is not the archive of a campaign")
            if info.size > MAX_MEMBER_BYTES:
                raise TraceError(f"{path}: {info.name} has {info.size} bytes; at most {MAX_MEMBER_BYTES} are allowed")
            if info.isreg() and not any(part in ("", ".", "..") for part in info.name.split("/")):
                names.append(info.name)
        # tarfile takes a damaged header for the end of the archive, and would lose all files behind it
        file.seek(tar.offset)
        end = file.read(tarfile.BLOCKSIZE)
        if (
            len(end) < tarfile.BLOCKSIZE
            or any(end)
            or any(any(piece) for piece in iter(lambda: file.read(_PIECE), b""))
        ):
            raise TraceError(f"{path}: damaged or cut archive (after {len(names)} files); measure again")
    return names


def read_member(path: Path, name: str) -> bytes | None:
    """The stored bytes of a regular file in an archive; None if the entry is not a regular file.

    Raises:
        TraceError: the archive is damaged or has no such entry, or the file is too large, stored or unpacked.
    """
    with open_archive(path) as tar:
        info = tar.getmember(name)
        if info.size > MAX_MEMBER_BYTES:
            raise TraceError(f"{path}: {name} has {info.size} bytes; at most {MAX_MEMBER_BYTES} are allowed")
        stream = tar.extractfile(info) if info.isreg() else None
        data = None if stream is None else stream.read(MAX_MEMBER_BYTES)
    if data is not None and unpacked_bytes(data) > MAX_TRACE_BYTES:
        raise TraceError(
            f"{path}: {name} unpacks to more than {MAX_TRACE_BYTES} bytes; this is not the trace of a campaign"
        )
    return data


def unpacked_bytes(data: bytes) -> int:
    """Size in bytes of gzip data after decompression, or of the data itself if it is not gzip.

    Counting stops at most one piece beyond `MAX_TRACE_BYTES`. Damaged data is counted up to the damage; the code that reads
    it reports the damage.
    """
    if data[:2] != b"\x1f\x8b":
        return len(data)
    total = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            while total <= MAX_TRACE_BYTES and (piece := stream.read(_PIECE)):
                total += len(piece)
    except (OSError, EOFError, zlib.error):
        pass
    return total


def archives(folder: Path) -> list[Path]:
    """The archives of a campaign's folder, in order.

    Raises:
        TraceError: there are more archives than `MAX_ARCHIVES`.
    """
    found = sorted(path for path in folder.glob("traces_*.tar") if path.is_file())
    if len(found) > MAX_ARCHIVES:
        raise TraceError(f"{folder}: {len(found)} archives; at most {MAX_ARCHIVES} are allowed")
    return found


def check_manifest(path: Path) -> None:
    """Refuse a manifest that is larger than `MAX_MANIFEST_BYTES`.

    Raises:
        InputError: the manifest is too large.
    """
    if path.is_file() and path.stat().st_size > MAX_MANIFEST_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes; at most {MAX_MANIFEST_BYTES} are allowed")


def check_table(path: Path) -> None:
    """Refuse a table that unpacks to more than `MAX_TABLE_BYTES`; the table's reader reports damaged ones.

    Raises:
        TableError: the table is too large.
    """
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return
    held = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if held > MAX_TABLE_BYTES:
        raise TableError(f"{path}: {held} bytes after decompression; at most {MAX_TABLE_BYTES} are allowed")
