"""Fit the curves of collectives to the GPUs that were measured."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.training.collective_fit import fitted_curves, write_curves

    made = {**snakemake.params.provenance, "made_by": provenance(snakemake)["versions"]}
    write_curves(Path(snakemake.output.curves), fitted_curves(), made)
