"""Draw the figures of a grid, and those of its errors."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from evaluation.figures.accuracy_gallery import ENTRIES
    from evaluation.figures.accuracy_inputs import read_any
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

    given, params = snakemake.input, snakemake.params
    summary = read_table(given.summary, "summary")
    artifacts = Artifacts(
        summary,
        read_observations(given.hosts),
        with_distinct_names(with_gpus([*given.models, *params.shipped])),
        operators=read_operators(given.graphs),
        detailed=grid_steps(Flow.from_config(snakemake.config), predictions_of(summary)),
        workloads=tuple(params.workloads),
        further={
            kind: read_any(list(files))
            for kind, files in {"parts": given.parts, **params.checks}.items()
        },
    )
    for name, reason in draw_all(artifacts, Path(snakemake.output.folder), ENTRIES).items():
        print(f"  {name}: not drawn, {reason}", flush=True)
