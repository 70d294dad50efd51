"""A grid whose results lie in an S3 store: the same tables as in a folder, and nothing left to do afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.cluster.grid_runs import GRID, command, run, same_tables
from benchmarks.cluster.services import object_store, s3_client

BUCKET = "steptime"
STORED = (
    "--cores",
    "2",
    "--default-storage-provider",
    "s3",
    "--default-storage-prefix",
    f"s3://{BUCKET}",
    "--shared-fs-usage",
    "persistence",
    "software-deployment",
    "sources",
    "source-cache",
)
SMALL = ("gpu=V100", "model=dlrm_small")


def section() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("local", "stored", "again", "fetched"):
            (folder / each).mkdir()
        run(command(folder / "local", "--cores", "2"))
        with object_store(folder / "s3", BUCKET) as environment:
            stored = {
                **environment,
                "SNAKEMAKE_STORAGE_S3_ENDPOINT_URL": environment["AWS_ENDPOINT_URL"],
            }
            run(command(folder / "stored", *STORED), stored)
            left = run(command(folder / "again", *STORED), stored)
            if "Nothing to be done" not in left:
                raise SystemExit("another machine finds something to do:\n" + left[-2000:])
            client, size = s3_client(environment), 0
            listed = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
            objects = [each for page in listed for each in page.get("Contents", [])]
            for each in objects:
                file = folder / "fetched" / each["Key"]
                file.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(BUCKET, each["Key"], str(file))
                size += each["Size"]
            tables = same_tables(
                folder / "local" / "results", folder / "fetched" / "results", index=False
            )
    return (
        f"`{' '.join(GRID)}`, 36 points: {len(objects)} objects, {size / 1e6:.1f} MB. All {tables}"
        " tables are equal to those of a run in a folder, to the last digit. A second run in an"
        " empty folder, as on another machine, finds nothing to do."
    )
