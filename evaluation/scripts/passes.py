"""Predict the whole models of the public measurements with the shipped packs."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.checks.language_passes import predict_passes
    from pipeline.schemas import write_parquet

    write_parquet(
        predict_passes(Path(snakemake.input.latencies).parents[1]),
        snakemake.output.passes,
        provenance=provenance(snakemake),
    )
