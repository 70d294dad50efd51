# Jobs of large grids: each captures, or maps and predicts, many points, so that libraries and models are loaded once. A job that
# runs again makes only the points that have changed; their files are the same as those of the rules for single points.

from pipeline.flow import settings_of, wildcards_of
from pipeline.settings import packed
from pipeline.workloads.workload_files import file_digests

LOGS = f"{FLOW.artifacts.root}/grids/{FLOW.grid}/logs"


def kept(path):
    """A job makes only what changed of its outputs. In an object store it makes all: Snakemake cannot update those."""
    return path if workflow.storage_settings.default_storage_provider else update(path)


for number, points in enumerate(FLOW.captures, 1):

    rule:
        name:
            f"capture_graphs_{number}"
        output:
            graphs=[kept(FLOW.captured_graph(point)) for point in points],
        log:
            f"{LOGS}/capture_graphs_{number}.log",
        params:
            model=points[0].section("model"),
            batch_sizes=[point.batch_size for point in points],
            files=file_digests(points[0].section("model")),
            code=FLOW.code("capture_graphs"),
        message:
            f"Capture {len(points)} graphs of {points[0].model}, without a GPU"
        script:
            "../scripts/capture_graphs.py"


def places(paths):
    """The place of each path among the distinct ones, as a param: inputs may have other paths on the machine of a job."""
    distinct = list(dict.fromkeys(paths))
    return [distinct.index(path) for path in paths]


for number, points in enumerate(FLOW.jobs, 1):
    # Snakemake stores all inputs of a job with each of its outputs, so each file is named once
    GRAPHS = [FLOW.graph_of_point(wildcards_of(point)) for point in points]
    STATISTICS = [FLOW.overheads_of_point(wildcards_of(point)) for point in points]

    rule:
        name:
            f"predict_{number}"
        input:
            graphs=list(dict.fromkeys(GRAPHS)),
            models=FLOW.models_of_point(wildcards_of(points[0])),
            overheads=list(dict.fromkeys(STATISTICS)),
            measured=FLOW.steps_of_point(wildcards_of(points[0])),
        output:
            calls=[kept(f"{FLOW.folder(point)}/calls.parquet") for point in points],
            predictions=[kept(f"{FLOW.folder(point)}/prediction.parquet") for point in points],
            timelines=[kept(f"{FLOW.folder(point)}/timeline.json.gz") for point in points],
            pages=[kept(f"{FLOW.folder(point)}/timeline.html") for point in points],
            summaries=[kept(f"{FLOW.folder(point)}/summary.parquet") for point in points],
        log:
            f"{LOGS}/predict_{number}.log",
        params:
            points=packed([settings_of(point) for point in points]),
            pack=packed([{"pack": FLOW.pack_of_point(wildcards_of(point))} for point in points]),
            graphs=places(GRAPHS),
            overheads=places(STATISTICS),
            packs=pack_digests(),
            code=FLOW.code("predict_points"),
        message:
            f"Map and predict {len(points)} points"
        script:
            "../scripts/predict_points.py"
