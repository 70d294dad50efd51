"""Predict one grid point from its graph, calls, kernel models and overheads."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.api import predict_artifacts
    from pipeline.predict.perfetto import write_timeline
    from pipeline.schemas import write_table

    prediction, timeline = predict_artifacts(
        snakemake.input, snakemake.params.point, snakemake.wildcards
    )
    made = provenance(snakemake)
    write_timeline(timeline, snakemake.output.timeline)
    write_table(prediction.calls, snakemake.output.prediction, "prediction", made)
    write_table(prediction.summary_row(), snakemake.output.summary, "summary", made)
