"""Draw the figures of a grid."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.schemas import read_table
    from pipeline.show.figures.gallery import Artifacts, draw_all
    from pipeline.show.grid_inputs import read_observations, read_operators, with_distinct_names, with_gpus

    given = snakemake.input
    artifacts = Artifacts(
        read_table(given.summary, "summary"),
        read_observations(given.hosts),
        with_distinct_names(with_gpus([*given.models, *snakemake.params.shipped])),
        operators=read_operators(given.graphs),
        workloads=tuple(snakemake.params.workloads),
    )
    for name, reason in draw_all(artifacts, Path(snakemake.output.folder)).items():
        print(f"  {name}: not drawn, {reason}", flush=True)
