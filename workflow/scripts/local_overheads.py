"""Extract host overheads from this machine's own traces."""

from pipeline.scripting import job, provenance

with job(snakemake):
    import pandas as pd

    from pipeline.overheads.extract import extract_overheads
    from pipeline.schemas import write_table
    from pipeline.trace.load import load_trace

    parts = []
    for path, workload in zip(snakemake.input.traces, snakemake.params.workloads, strict=True):
        trace = load_trace(path)
        parts.append(extract_overheads(trace, workload, trace.settled))
    write_table(
        pd.concat(parts, ignore_index=True), snakemake.output.samples, "overhead_samples", provenance(snakemake)
    )
