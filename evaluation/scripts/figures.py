"""Draw the figures of a grid, and those of its errors."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from evaluation.figures.accuracy_gallery import ENTRIES
    from evaluation.figures.accuracy_inputs import read_any
    from pipeline.flow import Flow
    from pipeline.schemas import read_table
    from pipeline.show.figures.gallery import Artifacts, draw_all
    from pipeline.show.grid_inputs import grid_steps
    from pipeline.summary_rows import predictions_of

    summary = read_table(snakemake.input.summary, "summary")
    detailed = grid_steps(Flow.from_config(snakemake.config), predictions_of(summary))
    artifacts = Artifacts(summary, detailed, read_any(list(snakemake.input.parts)))
    for name, reason in draw_all(artifacts, Path(snakemake.output.folder), ENTRIES).items():
        print(f"  {name}: not drawn, {reason}", flush=True)
