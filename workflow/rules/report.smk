# Figures and report of the grid. They are made on request and read artifacts only.

from pipeline.show import grid_inputs as GRID
from pipeline.show.figures.gallery import GALLERY, category_of

FIGURES = f"{FLOW.artifacts.root}/figures/{FLOW.grid}"
ACCURACY = f"{FLOW.artifacts.root}/accuracy/{FLOW.grid}"

# In a checkout, figures of errors are drawn too.
if is_checkout():
    from evaluation.figures import accuracy_inputs
    from evaluation.figures.accuracy_gallery import ENTRIES

    ERROR_PARTS = accuracy_inputs.error_parts(FLOW)
else:
    ENTRIES, ERROR_PARTS = GALLERY, []


report: "../report/workflow.rst"


rule figures:
    input:
        summary=rules.summary.output.table,
        parts=ERROR_PARTS,
        prices=GRID.price_table(),
    output:
        folder=report(
            directory(FIGURES),
            patterns=["{figure,[a-z0-9_]+}.svg"],
            caption="../report/figures.rst",
            category=lambda wildcards: category_of(wildcards.figure, ENTRIES),
            labels={"figure": "{figure}"},
        ),
    log:
        f"{FLOW.artifacts.root}/figures/logs/{FLOW.grid}.log",
    conda:
        "../envs/steptime.yaml"
    params:
        code=FLOW.code("figures"),
    message:
        "Draw the figures of the grid"
    script:
        "../../evaluation/scripts/figures.py" if is_checkout() else "../scripts/figures.py"


rule report:
    input:
        summary=rules.summary.output.table,
        figures=rules.figures.output.folder,
        timelines=FLOW.of_points("timeline.html") if len(FLOW.points) <= MAX_TIMELINES else [],
    output:
        page=f"{FLOW.artifacts.root}/reports/{FLOW.grid}.html",
    log:
        f"{FLOW.artifacts.root}/reports/logs/{FLOW.grid}.log",
    conda:
        "../envs/steptime.yaml"
    params:
        code=FLOW.code("report"),
    message:
        "Write the report of the grid: one page that opens offline"
    script:
        "../scripts/report.py"
