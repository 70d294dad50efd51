"""Draw the figures of a grid."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.flow import Flow
    from pipeline.schemas import read_table
    from pipeline.show.figures.gallery import Artifacts, draw_all
    from pipeline.show.grid_inputs import (
        grid_steps,
        read_observations,
        read_operators,
        with_distinct_names,
        with_gpus,
    )
    from pipeline.summary_rows import predictions_of

    given = snakemake.input
    summary = read_table(given.summary, "summary")
    artifacts = Artifacts(
        summary,
        read_observations(given.hosts),
        with_distinct_names(with_gpus([*given.models, *snakemake.params.shipped])),
        operators=read_operators(given.graphs),
        detailed=grid_steps(Flow.from_config(snakemake.config), predictions_of(summary)),
        workloads=tuple(snakemake.params.workloads),
    )
    for name, reason in draw_all(artifacts, Path(snakemake.output.folder)).items():
        print(f"  {name}: not drawn, {reason}", flush=True)
