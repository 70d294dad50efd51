"""Fit the kernel models of one GPU and log every fit to MLflow."""

import os
from pathlib import Path

if __name__ == "__main__":  # worker processes of the fit import this file
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the rule's threads are used as processes
    from pipeline.scripting import job, provenance

    with job(snakemake):
        from pipeline.kernels.samples import read_families
        from pipeline.show.kernel_runs import fit_and_track

        fit_and_track(
            read_families(snakemake.input.samples),
            snakemake.wildcards.gpu,
            snakemake.params.settings,
            [Path(path) for path in snakemake.output.models],
            Path(snakemake.output.logged).parents[1],
            provenance(snakemake),
            snakemake.threads,
        )
