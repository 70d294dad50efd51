"""Compute statistics of a host's overheads, and log them to MLflow."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.answers.host_overheads import observations_in, overhead_statistics
    from pipeline.report.overhead_runs import track_overheads
    from pipeline.schemas import write_table
    from pipeline.settings import OverheadSettings

    gpu, label = snakemake.wildcards.gpu, snakemake.params.label
    settings = OverheadSettings(**snakemake.params.settings)
    observations = observations_in(snakemake.input.samples)
    statistics = overhead_statistics(observations, gpu, settings)
    write_table(statistics, snakemake.output.overheads, "overheads", provenance(snakemake))
    track_overheads(observations, statistics, gpu, settings, label, Path(snakemake.params.tracking))
