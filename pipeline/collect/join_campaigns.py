"""Join several campaigns of one GPU into one folder, in the layout of a campaign.

    python -m pipeline.collect.join_campaigns run1 run2 run3 --out measurements/H200

It joins campaigns of different days or machines. The result has the kernel samples and peaks of all folders. If several
folders timed or traced a step, the last one named is used.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.collect.campaign_folder import (
    MAX_NEW_ARCHIVES,
    SAMPLES,
    SCHEMA_VERSION,
    STEP_TIMES,
    CampaignFolder,
    joined_tables,
    read_manifest,
    write_manifest,
)
from pipeline.collect.campaign_reader import (
    TraceMember,
    read_peaks_of,
    read_samples,
    read_step_times,
    read_traces,
)
from pipeline.errors import InputError, SteptimeError
from pipeline.schemas import write_table

STEP_COLUMNS = ["model", "variant", "batch_size"]


def join(folders: Sequence[Path], out: Path) -> list[str]:
    """Write a campaign with the contents of `folders`; returns the steps whose traces did not fit.

    Args:
        folders: campaigns of one GPU; for each step the last folder's times and traces are kept.
        out: a new folder, of at most eight files.

    Raises:
        InputError: a folder does not belong to a campaign, the GPUs differ, or `out` is not empty.
        TableError, TraceError: a file is damaged.
    """
    manifests = [read_manifest(folder) for folder in folders]
    gpus = [str(manifest["device"].get("gpu")) for manifest in manifests]
    for folder, gpu in zip(folders, gpus, strict=True):
        if gpu != gpus[0]:
            raise InputError(
                f"{folder}: measured on {gpu}, but {folders[0]} on {gpus[0]}; join campaigns of"
                " one GPU"
            )
    if out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out}: the folder is not empty; give a new folder")
    traces = {member.workload: member for folder in folders for member in read_traces(folder)}
    device = {**manifests[-1]["device"], "gpu": gpus[0]}
    target = CampaignFolder(out, device)
    samples = joined_tables([read_samples(folder) for folder in folders])
    steps = joined_tables([read_step_times(folder) for folder in folders]).drop_duplicates(
        STEP_COLUMNS, keep="last"
    )
    for table, file, schema in ((samples, SAMPLES, "samples"), (steps, STEP_TIMES, "step_times")):
        if len(table):
            write_table(table.assign(gpu=gpus[0]), out / file, schema, {"device": device})
    if len(peaks := joined_tables([read_peaks_of(folder) for folder in folders])):
        target.add_peaks(peaks)
    # fp32 first: accuracy is measured on these traces
    in_order = sorted(traces.values(), key=lambda member: "dtype-" in member.variant)
    left_out = [member.workload for member in in_order if not _archived(target, member)]
    identity = "+".join(str(manifest.get("campaign_id")) for manifest in manifests)
    joined = {
        "schema": SCHEMA_VERSION,
        "device": device,
        "units": _units(manifests),
        "campaign_id": identity,
    }
    # the manifest last: without it, the folder is not a campaign's
    write_manifest(
        joined | {"runs": [run for manifest in manifests for run in manifest.get("runs", [])]}, out
    )
    return left_out


def _units(manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All units by name; a unit is done if any campaign finished it."""
    units: dict[str, Any] = {}
    for manifest in manifests:
        for name, unit in manifest["units"].items():
            if unit.get("status") == "done" or units.get(name, {}).get("status") != "done":
                units[name] = unit
    return units


def _archived(target: CampaignFolder, member: TraceMember) -> bool:
    """Put a step's traces into the archives; False if these are full."""
    with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
        files = [path for path in member.extract(Path(scratch)) if path is not None]
        return (
            target.archive({f"{member.workload}/{path.name}": path.read_bytes() for path in files})
            is not None
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.collect.join_campaigns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, nargs="+", help="campaigns")
    parser.add_argument("--out", type=Path, required=True, help="new folder for the result")
    args = parser.parse_args(argv)
    try:
        left_out = join(args.folders, args.out)
    except SteptimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for step in left_out:
        print(
            f"warning: {step}: its traces do not fit into {MAX_NEW_ARCHIVES} archives",
            file=sys.stderr,
        )
    print(f"{args.out}: {len(args.folders)} campaigns joined")
    return 0


if __name__ == "__main__":
    sys.exit(main())
