# Jobs of large grids: each captures, maps or predicts many points, so that libraries and models are loaded once. A job that
# runs again makes only the points that have changed; their files are the same as those of the rules for single points.

from pipeline.flow import settings_of, wildcards_of
from pipeline.settings import packed
from pipeline.workloads.workload_files import file_digests

LOGS = f"{FLOW.artifacts.root}/grids/{FLOW.grid}/logs"


for number, points in enumerate(FLOW.captures, 1):

    rule:
        name:
            f"capture_graphs_{number}"
        output:
            graphs=[update(FLOW.captured_graph(point)) for point in points],
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


for number, points in enumerate(FLOW.jobs, 1):

    rule:
        name:
            f"map_calls_{number}"
        input:
            graphs=[FLOW.graph_of_point(wildcards_of(point)) for point in points],
        output:
            calls=[update(f"{FLOW.folder(point)}/calls.parquet") for point in points],
        log:
            f"{LOGS}/map_calls_{number}.log",
        params:
            points=packed([{"gpu": point.section("gpu")} for point in points]),
            code=FLOW.code("map_points"),
        message:
            f"Map {len(points)} graphs to device calls on {points[0].gpu}"
        script:
            "../scripts/map_points.py"

    rule:
        name:
            f"predict_{number}"
        input:
            graphs=[FLOW.graph_of_point(wildcards_of(point)) for point in points],
            calls=[f"{FLOW.folder(point)}/calls.parquet" for point in points],
            models=FLOW.models_of_point(wildcards_of(points[0])),
            overheads=FLOW.overheads_of_point(wildcards_of(points[0])),
            measured=FLOW.steps_of_point(wildcards_of(points[0])),
        output:
            predictions=[update(f"{FLOW.folder(point)}/prediction.parquet") for point in points],
            timelines=[update(f"{FLOW.folder(point)}/timeline.json.gz") for point in points],
            pages=[update(f"{FLOW.folder(point)}/timeline.html") for point in points],
            summaries=[update(f"{FLOW.folder(point)}/summary.parquet") for point in points],
        log:
            f"{LOGS}/predict_{number}.log",
        params:
            points=packed([settings_of(point) for point in points]),
            pack=FLOW.pack_of_point(wildcards_of(points[0])),
            packs=pack_digests(),
            code=FLOW.code("predict_points"),
        message:
            f"Predict {len(points)} points on {points[0].gpu}"
        script:
            "../scripts/predict_points.py"
