"""Predict one grid point from its graph, calls, kernel models and overheads."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.answers.predict_files import PointFiles, predict_files

    given, made, point = snakemake.input, snakemake.output, snakemake.params.point
    files = PointFiles(
        point,
        given.graph,
        given.calls,
        (*given.models, *snakemake.params.pack),
        given.overheads,
        made.prediction,
        made.timeline,
        made.page,
        made.summary,
        measured=given.measured[0] if given.measured else None,
        trace=given.trace[0] if given.trace else None,
    )
    predict_files([files], lambda _: provenance(snakemake))
