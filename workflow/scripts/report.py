"""Write the report of a grid: one page with its answers, figures and tables."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.answers.engine import engine
    from pipeline.flow import Flow
    from pipeline.schemas import read_table
    from pipeline.show.comparison import side_by_side
    from pipeline.show.html_report import advised, point_name, write_report
    from pipeline.summary_rows import predictions_of

    given = snakemake.input
    predictions = predictions_of(read_table(given.summary, "summary"))
    flow = Flow.from_config(snakemake.config)
    asked, answering = flow.questions_of(predictions), engine(flow.artifacts.root)
    comparison = side_by_side(asked, predictions, answering)
    write_report(
        snakemake.output.page,
        comparison,
        given.figures,
        {point_name(page): Path(page).read_text(encoding="utf-8") for page in given.timelines},
        advised(asked, comparison.alike, answering.predict),
    )
