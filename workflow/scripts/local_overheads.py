"""Extract host overheads from this machine's own traces."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.overheads.trace_overheads import extract_traces
    from pipeline.schemas import write_table

    traces = zip(snakemake.params.workloads, map(Path, snakemake.input.traces), strict=True)
    write_table(
        extract_traces(traces), snakemake.output.samples, "overhead_samples", provenance(snakemake)
    )
