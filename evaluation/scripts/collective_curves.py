"""Fit the bandwidth curves of collectives to the GPUs that were measured."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.published.aiconfigurator import COLLECTIVES, read_collectives
    from evaluation.training.collective_fit import fit_curves, write_curves
    from pipeline.hardware.find_gpu import load_gpu

    curves = {gpu: fit_curves(read_collectives(gpu), load_gpu(gpu)) for gpu in COLLECTIVES}
    made = {**snakemake.params.provenance, "made_by": provenance(snakemake)["versions"]}
    write_curves(Path(snakemake.output.curves), curves, made)
