"""Statistics of a host's overheads, logged to MLflow."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.report.overhead_runs import track_overheads
    from pipeline.overheads.statistics import summarise
    from pipeline.schemas import read_table, write_table

    settings = snakemake.params.settings
    observations = read_table(snakemake.input.samples, "overhead_samples")
    table = summarise(observations, settings["estimator"])
    write_table(table, snakemake.output.overheads, "overheads", provenance(snakemake))
    track_overheads(table, snakemake.wildcards.gpu, settings, Path(snakemake.input.tracking).parent)
