"""Draw the figures of a grid."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.flow import Flow
    from pipeline.schemas import read_table
    from pipeline.show.figures.gallery import Artifacts, draw_all
    from pipeline.show.grid_inputs import grid_steps
    from pipeline.summary_rows import predictions_of

    summary = read_table(snakemake.input.summary, "summary")
    detailed = grid_steps(Flow.from_config(snakemake.config), predictions_of(summary))
    for name, reason in draw_all(
        Artifacts(summary, detailed), Path(snakemake.output.folder)
    ).items():
        print(f"  {name}: not drawn, {reason}", flush=True)
