"""Errors of whole models carried from each GPU to each other, with the destination left out of training."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.schemas import atomic_path
    from pipeline.transfer.paper import paper_surfer

    with atomic_path(Path(snakemake.output.errors)) as part:
        paper_surfer(Path(snakemake.input.latencies).parents[1]).to_parquet(part, index=False)
