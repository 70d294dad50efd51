# The critical-path prediction of each grid point, and the summary of all points.

from pipeline.show.grid_inputs import pack_digests

MAX_TIMELINES = 12
TIMELINE = f"{POINT}/timeline.html"

if len(FLOW.points) <= MAX_TIMELINES:  # the report holds a copy of each page, 0.1 to 1 MB
    TIMELINE = report(
        TIMELINE,
        caption="../report/timeline.rst",
        category="Timeline",
        labels={"step": "{model} on {gpu}, batch {batch}"},
    )


rule predict:
    input:
        graph=FLOW.graph_of_point,
        calls=f"{POINT}/calls.parquet",
        models=FLOW.models_of_point,
        overheads=FLOW.overheads_of_point,
        measured=FLOW.steps_of_point,
        trace=FLOW.trace_of_point,
    output:
        prediction=f"{POINT}/prediction.parquet",
        timeline=f"{POINT}/timeline.json.gz",
        page=TIMELINE,
        summary=f"{POINT}/summary.parquet",
    log:
        f"{POINT}/logs/predict.log",
    conda:
        "../envs/steptime.yaml"
    params:
        question=FLOW.question,
        packs=pack_digests(),
        code=FLOW.code("predict"),
    message:
        "Predict the step time of {wildcards.model} at batch {wildcards.batch} on {wildcards.gpu}"
    script:
        "../scripts/predict.py"


rule summary:
    input:
        points=FLOW.of_points("summary.parquet"),
    output:
        table=f"{FLOW.artifacts.root}/grids/{FLOW.grid}/summary.parquet",
    log:
        f"{FLOW.artifacts.root}/grids/{FLOW.grid}/logs/summary.log",
    conda:
        "../envs/steptime.yaml"
    message:
        f"Summarise {len(FLOW.points)} grid points"
    script:
        "../scripts/summary.py"
