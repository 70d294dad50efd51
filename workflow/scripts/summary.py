"""Gather the predictions of a grid into one table."""

from pipeline.scripting import job, provenance

with job(snakemake):
    import pandas as pd

    from pipeline.schemas import read_table, write_table

    rows = pd.concat([read_table(path, "summary") for path in snakemake.input.points], ignore_index=True)
    write_table(rows, snakemake.output.table, "summary", provenance(snakemake))
