# The accuracy tables of the grid, which its report shows too. They read artifacts only.

from evaluation.pages.grid_accuracy import missing_evidence


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
        missing=missing_evidence(FLOW),
        shipped=GRID.shipped_models(FLOW),
        code=FLOW.code("accuracy", drawing=True),
    message:
        "Write the accuracy tables of the grid"
    script:
        "../scripts/accuracy.py"
