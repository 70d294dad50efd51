"""Time and trace one training step on the device of this machine."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.collect.measured_steps import collect_step

    settings = snakemake.params.collect
    collect_step(
        snakemake.params.model,
        int(snakemake.wildcards.batch),
        "auto",
        Path(snakemake.output.trace).parent,
        iterations=int(settings["iterations"]),
        seconds=float(settings["step_seconds"]),
        gpu=snakemake.wildcards.gpu,
        model=snakemake.wildcards.model,
        variant=snakemake.wildcards.variant,
        provenance=provenance(snakemake),
    )
