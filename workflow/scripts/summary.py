"""Gather the predictions of a grid into one table."""

from pipeline.scripting import job, provenance

with job(snakemake):
    import pyarrow as pa

    from pipeline.schemas import read_checked, write_table

    rows = pa.concat_tables([read_checked(path, "summary") for path in snakemake.input.points])
    write_table(rows, snakemake.output.table, "summary", provenance(snakemake))
