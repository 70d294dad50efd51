# Figures and report of the grid. They are made on request and read artifacts only.

from pipeline.show import grid_inputs as GRID
from pipeline.show.figures.gallery import category_of

FIGURES = f"{FLOW.artifacts.root}/figures/{FLOW.grid}"
ACCURACY = f"{FLOW.artifacts.root}/accuracy/{FLOW.grid}"


report: "../report/workflow.rst"


rule error_parts:
    input:
        graph=FLOW.graph_of_point,
        calls=f"{POINT}/calls.parquet",
        models=FLOW.models_of_point,
        observations=FLOW.overhead_samples,
        trace=FLOW.trace_of_point,
        measured=FLOW.steps_of_point,
        summary=f"{POINT}/summary.parquet",
    output:
        parts=f"{POINT}/parts.parquet",
    log:
        f"{POINT}/logs/error_parts.log",
    params:
        question=FLOW.question,
        results=FLOW.artifacts.root,
        pack=FLOW.pack_of_point,
        packs=pack_digests(),
        code=FLOW.code("error_parts"),
    message:
        "Compute the errors of {wildcards.model} at batch {wildcards.batch} by part of the step"
    script:
        "../scripts/error_parts.py"


rule figures:
    input:
        summary=rules.summary.output.table,
        hosts=GRID.host_observations(FLOW),
        graphs=GRID.step_graphs(FLOW),
        models=GRID.fitted_models(FLOW),
        parts=GRID.error_parts(FLOW),
        prices=GRID.price_table(),
    output:
        folder=report(
            directory(FIGURES),
            patterns=["{figure,[a-z0-9_]+}.svg"],
            caption="../report/figures.rst",
            category=lambda wildcards: category_of(wildcards.figure),
            labels={"figure": "{figure}"},
        ),
    log:
        f"{FLOW.artifacts.root}/figures/logs/{FLOW.grid}.log",
    params:
        shipped=GRID.shipped_models(FLOW),
        checks=GRID.available_checks(FLOW.artifacts.root),
        workloads=sorted({point.step_name for point in FLOW.points}),
        code=FLOW.code("figures", drawing=True),
    message:
        "Draw the figures of the grid"
    script:
        "../scripts/figures.py"


rule report:
    input:
        summary=rules.summary.output.table,
        figures=rules.figures.output.folder,
        models=GRID.fitted_models(FLOW),
        sections=[f"{ACCURACY}.json"] if is_checkout() else [],
        timelines=FLOW.of_points("timeline.html") if len(FLOW.points) <= MAX_TIMELINES else [],
    output:
        page=f"{FLOW.artifacts.root}/reports/{FLOW.grid}.html",
    log:
        f"{FLOW.artifacts.root}/reports/logs/{FLOW.grid}.log",
    params:
        shipped=GRID.shipped_models(FLOW),
        snakefile=str(workflow.main_snakefile),
        code=FLOW.code("report", drawing=True),
    message:
        "Write the report of the grid: one page that opens offline"
    script:
        "../scripts/report.py"
