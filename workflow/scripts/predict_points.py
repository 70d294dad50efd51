"""Map and predict the points of one job that have changed."""

from pipeline.scripting import is_current, job, provenance_of

with job(snakemake):
    from pipeline.answers.predict_files import PointFiles, map_files, predict_files
    from pipeline.settings import unpacked

    given, output, params = snakemake.input, snakemake.output, snakemake.params
    measured = given.measured[0] if given.measured else None
    points, mapped, predicted = [], {}, {}
    graphs = [given.graphs[place] for place in params.graphs]
    statistics = [given.overheads[place] for place in params.overheads]
    for point, graph, overheads, pack, calls, *files in zip(
        unpacked(params.points), graphs, statistics, unpacked(params.pack),
        output.calls, output.predictions, output.timelines, output.pages, output.summaries, strict=True,
    ):  # fmt: skip
        own = PointFiles(point, graph, calls, (*given.models, *pack["pack"]), overheads, *files, measured=measured)
        points.append(own)
        origin = {"gpu": point["gpu"], "code": params.code}
        mapped[calls] = provenance_of(snakemake, origin, [graph])
    unmapped = [own for own in points if not is_current([own.calls], mapped[own.calls])]
    calls = map_files(unmapped, lambda own: mapped[own.calls])
    for own in points:
        origin = {"point": own.point, "pack": list(own.models), "packs": params.packs, "code": params.code}
        inputs = [own.graph, own.calls, *given.models, own.overheads, *given.measured]
        predicted[own.summary] = provenance_of(snakemake, origin, inputs)
    files = {own.summary: [own.prediction, own.timeline, own.page, own.summary] for own in points}
    changed = [own for own in points if not is_current(files[own.summary], predicted[own.summary])]
    predict_files(changed, lambda own: predicted[own.summary], calls)
