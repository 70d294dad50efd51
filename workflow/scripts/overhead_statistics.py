"""Compute statistics of the overheads of GPUs' hosts, and log them to MLflow."""

from pathlib import Path

from pipeline.scripting import job, provenance_of

with job(snakemake):
    from pipeline.answers.host_overheads import observations_in, overhead_statistics
    from pipeline.schemas import write_table
    from pipeline.settings import OverheadSettings
    from pipeline.show.overhead_runs import track_overheads

    params = snakemake.params
    for gpu, label, values, samples, path in zip(
        params.gpus, params.labels, params.settings, snakemake.input.samples, snakemake.output.overheads, strict=True
    ):
        settings, observations = OverheadSettings(**values), observations_in(samples)
        statistics = overhead_statistics(observations, gpu, settings)
        origin = {"settings": values, "label": label, "tracking": params.tracking, "code": params.code}
        write_table(statistics, path, "overheads", provenance_of(snakemake, origin, [samples]))
        track_overheads(observations, statistics, gpu, settings, label, Path(params.tracking))
