"""Write the accuracy tables of a grid's predictions."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.figures.accuracy_data import error_parts, errors_by_part
    from evaluation.figures.accuracy_inputs import read_any, with_gpus
    from evaluation.figures.kernel_errors import kernel_errors
    from evaluation.pages import grid_accuracy as accuracy
    from pipeline.schemas import read_table, write_parquet, write_text
    from pipeline.show.figures.step_times import steps as step_table
    from pipeline.summary_rows import predictions_of

    summary = read_table(snakemake.input.summary, "summary")
    predictions = predictions_of(summary)
    steps, published = step_table(predictions), accuracy.published_steps(predictions)
    by_part = error_parts(summary, read_any(snakemake.input.parts))
    kernels = kernel_errors(with_gpus([*snakemake.input.models, *snakemake.params.shipped]))
    parts = accuracy.sections(
        steps, errors_by_part(by_part), by_part, kernels, snakemake.params.missing, published
    )
    title = accuracy.title_of(steps)
    write_text(snakemake.output.text, accuracy.markdown(title, parts))
    write_text(snakemake.output.page, accuracy.html(title, parts))
    write_parquet(steps, snakemake.output.steps, provenance=provenance(snakemake))
    write_parquet(kernels, snakemake.output.kernels, provenance=provenance(snakemake))
    for line in snakemake.params.missing:
        print(f"  missing: {line}", flush=True)
