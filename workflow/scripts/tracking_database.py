"""Create the MLflow database before any fit starts."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.report.tracking import initialise

    initialise(Path(snakemake.output.experiments).parent)
