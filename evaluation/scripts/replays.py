"""Replay the public traces with each prediction method, and write the spans of the evaluated iterations."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.checks.replayed_traces import replay_spans
    from pipeline.schemas import write_parquet

    folder = Path(snakemake.input.traces[0]).parents[1]
    write_parquet(replay_spans(folder), snakemake.output.spans, provenance=provenance(snakemake))
