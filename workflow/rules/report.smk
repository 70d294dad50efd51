# Figures, accuracy tables and report of the grid. They are made on request and read artifacts only.

from pipeline.report import grid_inputs as GRID
from pipeline.report.figures.gallery import category_of
from pipeline.transfer.gpu_features import COVERED_FAMILIES

FIGURES = f"{FLOW.artifacts.root}/figures/{FLOW.grid}"
CHECKS = f"{FLOW.artifacts.root}/checks"
ACCURACY = f"{FLOW.artifacts.root}/accuracy/{FLOW.grid}"
PAIR_ERRORS = f"{FLOW.artifacts.root}/transfer/{{family}}.parquet"
MODEL_ERRORS = f"{FLOW.artifacts.root}/transfer_models.parquet"


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
        point=FLOW.settings,
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
        workloads=sorted({point.workload for point in FLOW.points}),
        code=FLOW.code("figures", drawing=True),
    message:
        "Draw the figures of the grid"
    script:
        "../scripts/figures.py"


rule accuracy:
    input:
        summary=rules.summary.output.table,
        models=GRID.fitted_models(FLOW),
        parts=GRID.error_parts(FLOW),
    output:
        text=f"{ACCURACY}.md",
        page=report(
            f"{ACCURACY}.html", caption="../report/accuracy.rst", category="Accuracy", labels={"figure": "tables"}
        ),
        steps=f"{ACCURACY}.steps.parquet",
        kernels=f"{ACCURACY}.kernels.parquet",
        sections=f"{ACCURACY}.json",
    log:
        f"{FLOW.artifacts.root}/accuracy/logs/{FLOW.grid}.log",
    params:
        missing=GRID.missing_evidence(FLOW),
        shipped=GRID.shipped_models(FLOW),
        code=FLOW.code("accuracy", drawing=True),
    message:
        "Write the accuracy tables of the grid"
    script:
        "../scripts/accuracy.py"


rule report:
    input:
        summary=rules.summary.output.table,
        figures=rules.figures.output.folder,
        sections=rules.accuracy.output.sections,
        kernels=rules.accuracy.output.kernels,
        timelines=FLOW.of_points("timeline.html") if len(FLOW.points) <= MAX_TIMELINES else [],
    output:
        page=f"{FLOW.artifacts.root}/reports/{FLOW.grid}.html",
    log:
        f"{FLOW.artifacts.root}/reports/logs/{FLOW.grid}.log",
    params:
        snakefile=str(workflow.main_snakefile),
        code=FLOW.code("report", drawing=True),
    message:
        "Write the report of the grid: one page that opens offline"
    script:
        "../scripts/report.py"


rule pair_errors:
    input:
        latencies=FLOW.public("neusight/kernels.parquet"),
    output:
        errors=PAIR_ERRORS,
    log:
        f"{FLOW.artifacts.root}/transfer/logs/{{family}}.log",
    params:
        code=FLOW.code("transfer_errors"),
    message:
        "Compute errors of {wildcards.family} between all GPUs with public samples"
    script:
        "../scripts/transfer_errors.py"


rule transfer_models:
    input:
        latencies=FLOW.public("neusight/kernels.parquet"),
        passes=FLOW.public("neusight/model_latency.parquet"),
        ops=FLOW.public("neusight/model_op_latency.parquet"),
    output:
        errors=MODEL_ERRORS,
    log:
        f"{FLOW.artifacts.root}/transfer/logs/models.log",
    params:
        code=FLOW.code("transfer_models"),
    message:
        "Compute errors of whole models between all GPUs with public samples"
    script:
        "../scripts/transfer_models.py"


rule transfer_errors:
    input:
        expand(PAIR_ERRORS, family=COVERED_FAMILIES),
        MODEL_ERRORS,


rule replays:
    input:
        traces=FLOW.public("traces"),
    output:
        spans=f"{CHECKS}/replays.parquet",
    log:
        f"{CHECKS}/logs/replays.log",
    params:
        code=FLOW.code("replays"),
    message:
        "Replay the public traces"
    script:
        "../scripts/replays.py"


rule passes:
    input:
        latencies=FLOW.public("neusight/model_latency.parquet"),
    output:
        passes=f"{CHECKS}/passes.parquet",
    log:
        f"{CHECKS}/logs/passes.log",
    params:
        packs=pack_digests(),
        code=FLOW.code("passes"),
    message:
        "Compare whole models with public latencies"
    script:
        "../scripts/passes.py"


rule checks:
    input:
        rules.replays.output.spans,
        rules.passes.output.passes,
