"""Predict the points of one job that have changed."""

from pipeline.scripting import is_current, job, provenance_of

with job(snakemake):
    from pipeline.answers.predict_files import PointFiles, predict_files
    from pipeline.settings import unpacked

    given, output, params = snakemake.input, snakemake.output, snakemake.params
    shared = {"pack": params.pack, "packs": params.packs, "code": params.code}
    points, made = [], {}
    for point, graph, calls, *files in zip(
        unpacked(params.points), given.graphs, given.calls,
        output.predictions, output.timelines, output.pages, output.summaries, strict=True,
    ):  # fmt: skip
        measured = given.measured[0] if given.measured else None
        own = PointFiles(point, graph, calls, (*given.models, *params.pack), given.overheads, *files, measured=measured)
        inputs = [graph, calls, *given.models, given.overheads, *given.measured]
        made[own.summary] = provenance_of(snakemake, {"point": point, **shared}, inputs)
        if not is_current(files, made[own.summary]):
            points.append(own)
    predict_files(points, lambda own: made[own.summary])
