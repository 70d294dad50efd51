"""Extract host overheads of one GPU's host from public traces."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.overheads.trace_overheads import extract_public
    from pipeline.schemas import write_table

    samples = extract_public(Path(snakemake.input.traces[0]).parents[2], snakemake.wildcards.gpu)
    write_table(samples, snakemake.output.samples, "overhead_samples", provenance(snakemake))
