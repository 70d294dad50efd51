"""Convert a profiler trace into the table of linked events."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.schemas import write_table
    from pipeline.trace.load import load_trace

    trace = load_trace(snakemake.input.trace)
    write_table(trace.events, snakemake.output.events, "events", provenance(snakemake))
