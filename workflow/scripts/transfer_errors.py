"""Errors of kernels carried from each GPU to each other, with the destination left out of training."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    import pandas as pd

    from pipeline.datasets.neusight import read_samples
    from pipeline.schemas import atomic_path
    from pipeline.transfer.evaluate import folds, pair_errors

    samples = read_samples(snakemake.input.latencies)
    errors = pd.concat(
        [pair_errors(samples, fold) for fold in folds(samples, snakemake.wildcards.family)], ignore_index=True
    )
    with atomic_path(Path(snakemake.output.errors)) as part:
        errors.to_parquet(part, index=False)
