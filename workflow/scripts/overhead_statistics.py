"""Compute statistics of the overheads of a GPU's host."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.answers.who_answers import observations_in, overhead_statistics
    from pipeline.question.settings import OverheadSettings
    from pipeline.schemas import write_table

    settings = OverheadSettings(**snakemake.params.settings)
    observations = observations_in(snakemake.input.samples)
    statistics = overhead_statistics(observations, snakemake.wildcards.gpu, settings)
    write_table(statistics, snakemake.output.overheads, "overheads", provenance(snakemake))
