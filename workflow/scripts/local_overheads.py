"""Extract host overheads from this machine's own traces."""

from pipeline.scripting import job, provenance

with job(snakemake):
    import pandas as pd

    from pipeline.overheads.extract import extract_overheads
    from pipeline.schemas import write_table
    from pipeline.trace.load import load_trace

    pairs = zip(snakemake.input.traces, snakemake.params.workloads, strict=True)
    parts = [extract_overheads(load_trace(path), workload=name) for path, name in pairs]
    write_table(pd.concat(parts, ignore_index=True), snakemake.output.samples, "overhead_samples", provenance(snakemake))
