"""Measure the kernels that the grid's workloads use on the device of this machine, a table per family."""

from pipeline.scripting import job, provenance

with job(snakemake):
    import pandas as pd

    from pipeline.collect.kernels import measure_calls
    from pipeline.schemas import read_table, write_families

    calls = pd.concat([read_table(path, "calls") for path in snakemake.input.calls], ignore_index=True)
    samples = measure_calls(calls, None, snakemake.params.collect["kernel_seconds"])
    write_families(samples, snakemake.params.families, snakemake.output.samples, provenance(snakemake))
