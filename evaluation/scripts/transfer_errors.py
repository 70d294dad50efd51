"""Compute errors of kernels transferred between all pairs of GPUs, with the destination left out of training."""

from pipeline.scripting import job, provenance

with job(snakemake):
    import pandas as pd

    from evaluation.training.left_out_gpu import folds, pair_errors
    from pipeline.datasets.neusight import read_samples
    from pipeline.schemas import write_parquet

    samples = read_samples(snakemake.input.latencies)
    errors = pd.concat(
        [pair_errors(samples, fold) for fold in folds(samples, snakemake.wildcards.family)],
        ignore_index=True,
    )
    write_parquet(errors, snakemake.output.errors, provenance=provenance(snakemake))
