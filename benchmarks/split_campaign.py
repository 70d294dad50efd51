"""Carries a campaign's folder between machines that send and return few small files.

    python3 benchmarks/split_campaign.py H200 $OUT/H200           # into at most 8 files under 4 MB
    python3 benchmarks/split_campaign.py --join carried/H200 H200

It needs Python alone.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from pathlib import Path

PART_BYTES, MAX_PARTS = 3_900_000, 8


def split(folder: Path, out: Path) -> str:
    """Write the parts of a folder; returns an error, or nothing."""
    if not (folder / "manifest.json").is_file():
        return f"{folder}: manifest.json is missing; give the folder of a campaign"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for file in sorted(folder.glob("[!.]*")):
            tar.add(file, file.name)
    data = packed.getvalue()
    count = -(-len(data) // PART_BYTES)
    out.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        part = data[number * PART_BYTES : (number + 1) * PART_BYTES]
        (out / f"part_{number + 1:02d}_of_{count:02d}").write_bytes(part)
    if count > MAX_PARTS:
        return f"{folder}: {count} parts, more than {MAX_PARTS}; fetch them in several calls"
    return ""


def join(parts: Path, out: Path) -> str:
    """Write the folder that was split; returns an error, or nothing."""
    files = sorted(parts.glob("part_*_of_*"))
    if not files or len(files) != int(files[-1].name[-2:]):
        return f"{parts}: {len(files)} parts, of more; fetch all of them"
    data = io.BytesIO(b"".join(file.read_bytes() for file in files))
    with tarfile.open(fileobj=data) as tar:
        tar.extractall(out, filter="data")
    return ""


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--join", action="store_true", help="join parts instead")
    parser.add_argument("source", type=Path, help="a campaign, or the folder of its parts")
    parser.add_argument("out", type=Path, help="folder to write")
    args = parser.parse_args()
    error = (join if args.join else split)(args.source, args.out)
    if error:
        print(f"error: {error}", file=sys.stderr)
    return 2 if error else 0


if __name__ == "__main__":
    sys.exit(main())
