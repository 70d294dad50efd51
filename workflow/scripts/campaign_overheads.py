"""Extract host overheads from the traces of a campaign."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.overheads.trace_overheads import extract_campaign
    from pipeline.schemas import write_table

    samples = extract_campaign(Path(snakemake.input.files[0]).parent)
    write_table(samples, snakemake.output.samples, "overhead_samples", provenance(snakemake))
