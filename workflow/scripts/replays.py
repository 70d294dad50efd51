"""Replay the public traces: every evaluated iteration, by way of predicting."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.report.checks.replays import replay_spans
    from pipeline.schemas import atomic_path

    spans = replay_spans(Path(snakemake.input.traces))
    with atomic_path(Path(snakemake.output.spans)) as part:
        spans.to_parquet(part, index=False)
