# Errors of the grid: those of each measured point, and tables that the report shows too. They read artifacts only.

from evaluation.pages.grid_accuracy import missing_evidence


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
    conda:
        "../../workflow/envs/steptime.yaml"
    params:
        question=FLOW.question,
        packs=pack_digests(),
        code=FLOW.code("error_parts"),
    message:
        "Compute the errors of {wildcards.model} at batch {wildcards.batch} by part of the step"
    script:
        "../scripts/error_parts.py"


rule accuracy:
    input:
        summary=rules.summary.output.table,
        models=accuracy_inputs.fitted_models(FLOW),
        parts=ERROR_PARTS,
    output:
        text=f"{ACCURACY}.md",
        page=report(
            f"{ACCURACY}.html",
            caption="../../workflow/report/accuracy.rst",
            category="Accuracy",
            labels={"figure": "tables"},
        ),
        steps=f"{ACCURACY}.steps.parquet",
        kernels=f"{ACCURACY}.kernels.parquet",
    log:
        f"{FLOW.artifacts.root}/accuracy/logs/{FLOW.grid}.log",
    conda:
        "../../workflow/envs/steptime.yaml"
    params:
        missing=missing_evidence(FLOW),
        shipped=accuracy_inputs.shipped_models(FLOW),
        code=FLOW.code("accuracy"),
    message:
        "Write the accuracy tables of the grid"
    script:
        "../scripts/accuracy.py"
