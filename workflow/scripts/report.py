"""Write the report of a grid: one page with its numbers, figures, tables and rule graph."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.prediction import Prediction
    from pipeline.report.grid_accuracy import read_sections
    from pipeline.report.grid_inputs import read_any
    from pipeline.report.html_report import point_name, write_report
    from pipeline.report.rule_graph import edges_of, mermaid, svg
    from pipeline.schemas import read_table

    given = snakemake.input
    edges = edges_of(mermaid(snakemake.params.snakefile, snakemake.config, ["report"]))
    predictions = Prediction.all_of(read_table(given.summary, "summary"))
    write_report(
        snakemake.output.page,
        predictions,
        given.figures,
        read_sections(given.sections),
        read_any([given.kernels]),
        svg(edges),
        {point_name(page): Path(page).read_text(encoding="utf-8") for page in given.timelines},
    )
