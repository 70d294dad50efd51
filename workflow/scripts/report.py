"""Write the report of a grid: one page with its numbers, figures, tables and rules."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.answers.engine import engine
    from pipeline.answers.host_share import host_note
    from pipeline.flow import Flow
    from pipeline.prediction import Prediction
    from pipeline.schemas import read_table
    from pipeline.show.figures.figure_data import kernel_errors
    from pipeline.show.grid_inputs import with_gpus
    from pipeline.show.html_report import point_name, read_sections, write_report
    from pipeline.show.run_snakemake import rule_graph, rule_inputs

    given = snakemake.input
    graph = rule_graph(snakemake.params.snakefile, snakemake.config, ["report"])
    predictions = Prediction.all_of(read_table(given.summary, "summary"))
    flow = Flow.from_config(snakemake.config)
    write_report(
        snakemake.output.page,
        predictions,
        given.figures,
        [section for path in given.sections for section in read_sections(path)],
        kernel_errors(with_gpus([*given.models, *snakemake.params.shipped])),
        rule_inputs(graph),
        {point_name(page): Path(page).read_text(encoding="utf-8") for page in given.timelines},
        host_note(flow.points, predictions, engine(flow.artifacts.root)),
    )
