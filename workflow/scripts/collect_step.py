"""Time and trace one training step on the device of this machine."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.collect.steps import collect_step

    settings = snakemake.params.collect
    collect_step(
        snakemake.params.model,
        int(snakemake.wildcards.batch),
        None,
        Path(snakemake.output.trace).parent,
        iterations=settings["iterations"],
        seconds=settings["step_seconds"],
        variant=snakemake.wildcards.variant,
    )
