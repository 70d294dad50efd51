"""Compute errors of whole models transferred between all pairs of GPUs, with the destination left out of training."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.checks.surfer_pairs import paper_surfer
    from pipeline.schemas import write_parquet

    write_parquet(
        paper_surfer(Path(snakemake.input.latencies).parents[1]),
        snakemake.output.errors,
        provenance=provenance(snakemake),
    )
