"""Join several campaigns of one GPU into one folder, in the layout of a campaign.

    python -m pipeline.collect.join_campaigns run1 run2 run3 --out measurements/H200

It joins runs of the stand-alone script, which writes one folder per run, and campaigns of different days. The result
has the kernel samples and peaks of all folders. If several folders timed or traced a step, the last one named is used.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.collect import standalone
from pipeline.collect.campaign_folder import (
    MAX_NEW_ARCHIVES,
    SAMPLES,
    SCHEMA_VERSION,
    STEP_TIMES,
    CampaignFolder,
    read_manifest,
    write_manifest,
)
from pipeline.collect.campaign_reader import TraceMember, read_peaks_of, read_samples, read_step_times, read_traces
from pipeline.errors import InputError, SteptimeError
from pipeline.schemas import write_table

STEP_COLUMNS = ["model", "variant", "batch_size"]


def join(folders: Sequence[Path], out: Path) -> list[str]:
    """Write a campaign with the contents of `folders`; returns the steps whose traces did not fit.

    Args:
        folders: campaigns of one GPU, in either layout; for each step the last folder's times and traces are kept.
        out: a new folder, of at most eight files.

    Raises:
        InputError: a folder does not belong to a campaign, the GPUs differ, or `out` is not empty.
        TableError, TraceError: a file is damaged.
    """
    manifests = [read_manifest(folder) for folder in folders]
    names = [_gpu(manifest) for manifest in manifests]
    if other := [(folder, name) for folder, name in zip(folders, names, strict=True) if name != names[0]]:
        raise InputError(
            f"{other[0][0]}: measured on {other[0][1]}, but {folders[0]} on {names[0]}; join campaigns of one GPU"
        )
    if out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out}: the folder is not empty; give a new folder")
    traces = {member.workload: member for folder in folders for member in read_traces(folder)}
    device = {**manifests[-1]["device"], "gpu": names[0]}
    target = CampaignFolder(out, device)
    for table, read, name in ((SAMPLES, read_samples, "samples"), (STEP_TIMES, read_step_times, "step_times")):
        found = _joined_table([read(folder) for folder in folders])
        if name == "step_times" and len(found):
            found = found.drop_duplicates(STEP_COLUMNS, keep="last")
        if len(found):
            write_table(found.assign(gpu=names[0]), out / table, name, {"device": device})
    if len(peaks := _joined_table([read_peaks_of(folder) for folder in folders])):
        target.add_peaks(peaks)
    order = sorted(
        traces.values(), key=lambda member: "dtype-" in member.variant
    )  # fp32 first: accuracy is measured on these traces
    left_out = [member.workload for member in order if not _archived(target, member)]
    # the manifest last: without it, the folder is not a campaign's
    write_manifest(
        {
            "schema": SCHEMA_VERSION, "device": device, "units": _units(manifests),
            "campaign_id": "+".join(str(manifest.get("campaign_id") or manifest.get("started_unix")) for manifest in manifests),
            "runs": [run for manifest in manifests for run in _runs(manifest)],
        },
        out,
    )  # fmt: skip
    return left_out


def _gpu(manifest: Mapping[str, Any]) -> str:
    old = manifest.get("schema") == standalone.SCHEMA_VERSION
    return standalone.gpu_of(manifest) if old else str(manifest["device"].get("gpu"))


def _units(manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All units by name; a unit is done if any campaign finished it."""
    found: dict[str, Any] = {}
    for manifest in manifests:
        done = {name for name, unit in found.items() if unit.get("status") == "done"}
        found |= {name: unit for name, unit in manifest["units"].items()
                  if name not in done or unit.get("status") == "done"}  # fmt: skip
    return found


def _runs(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs of a campaign; the stand-alone script states its single run in the manifest itself."""
    kept = ("started_unix", "status", "seconds")
    return list(manifest["runs"] if "runs" in manifest else [{key: manifest[key] for key in kept if key in manifest}])


def _joined_table(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    full = [table.astype(object) for table in tables if len(table)]
    joined = pd.concat(full, ignore_index=True) if full else pd.DataFrame()
    return joined.where(joined.notna(), None)


def _archived(target: CampaignFolder, member: TraceMember) -> bool:
    """Put a step's traces into the archives; False if these are full."""
    with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
        files = [path for path in member.extract(Path(scratch)) if path is not None]
        return target.archive({f"{member.workload}/{path.name}": _compressed(path) for path in files}) is not None


def _compressed(path: Path) -> bytes:
    data = path.read_bytes()
    return data if data[:2] == b"\x1f\x8b" else gzip.compress(data, mtime=0)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.collect.join_campaigns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, nargs="+", help="campaigns, or runs of the stand-alone script")
    parser.add_argument("--out", type=Path, required=True, help="new folder for the result")
    args = parser.parse_args(argv)
    try:
        left_out = join(args.folders, args.out)
    except SteptimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for step in left_out:
        print(f"warning: {step}: its traces do not fit into {MAX_NEW_ARCHIVES} archives", file=sys.stderr)
    print(f"{args.out}: {len(args.folders)} campaigns joined")
    return 0


if __name__ == "__main__":
    sys.exit(main())
