"""Fit the bandwidth curves of collectives to the GPUs that were measured."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.published.aiconfigurator import COLLECTIVES, read_collectives
    from pipeline.hardware.find_gpu import load_gpu
    from pipeline.kernels.collective_bandwidth import fit_curves, write_curves

    curves = {gpu: fit_curves(read_collectives(gpu), load_gpu(gpu)) for gpu in COLLECTIVES}
    made = {**snakemake.params.provenance, "made_by": provenance(snakemake)["versions"]}
    write_curves(Path(snakemake.output.curves), curves, made)
