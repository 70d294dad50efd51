"""Compute statistics of the overheads of a GPU's host, and log them to MLflow."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.answers.who_answers import observations_in, overhead_statistics
    from pipeline.question.settings import OverheadSettings
    from pipeline.schemas import write_table
    from pipeline.show.overhead_runs import track_overheads

    gpu, params = snakemake.wildcards.gpu, snakemake.params
    settings, observations = (
        OverheadSettings(**params.settings),
        observations_in(snakemake.input.samples),
    )
    statistics = overhead_statistics(observations, gpu, settings)
    write_table(statistics, snakemake.output.overheads, "overheads", provenance(snakemake))
    track_overheads(
        observations,
        statistics,
        gpu,
        settings,
        params.label,
        Path(snakemake.output.logged).parents[1],
    )
