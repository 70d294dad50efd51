"""Predict one grid point from its graph, calls, kernel models and overheads."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.answers.gpu_figures import gpu_of
    from pipeline.answers.host_overheads import overheads_from
    from pipeline.answers.kernel_models import kernel_predictor
    from pipeline.answers.memory_fit import with_what_fits
    from pipeline.answers.predict_step import Subject, predict_from_parts
    from pipeline.collect.campaign_reader import measured_step
    from pipeline.config import method_label
    from pipeline.graph.graph_cache import captured
    from pipeline.graph.graph_file import read_graph
    from pipeline.schemas import read_table, write_table
    from pipeline.settings import Settings
    from pipeline.simulate.measured_rows import measured_events
    from pipeline.simulate.perfetto import write_timeline

    point, measured = snakemake.params.point, snakemake.input.measured
    settings = Settings.of(point)
    gpu, graph = gpu_of(settings.gpu), read_graph(snakemake.input.graph)
    subject = Subject(
        point["name"],
        point["variant"],
        point["batch_size"],
        graph.memory_bytes,
        tuple(point["overrides"]),
        point["workload"],
        settings.predict,
        point["host"],
        graph.warnings,
    )
    calls = read_table(snakemake.input.calls, "calls")
    prediction, timeline = predict_from_parts(
        subject,
        gpu,
        graph.table,
        calls,
        kernel_predictor(gpu, method_label(settings.kernels), [*snakemake.input.models, *snakemake.params.pack]),
        overheads_from(read_table(snakemake.input.overheads, "overheads"), settings.overheads, point["workload"]),
        measured_step(measured[0], point["workload"], point["model"]) if measured else None,
    )
    prediction = with_what_fits(prediction, gpu, lambda size: captured(settings.model.plain(), size).memory_bytes)
    made = provenance(snakemake)
    beside = measured_events(snakemake.input.trace[0]) if snakemake.input.trace else []
    title = f"{prediction.model} on {prediction.gpu}, batch {prediction.batch_size:,}"
    files = [snakemake.output.timeline, snakemake.output.page]
    write_timeline(timeline, files, calls, beside=beside, title=title)
    write_table(prediction.calls, snakemake.output.prediction, "prediction", made)
    write_table(prediction.summary_row(), snakemake.output.summary, "summary", made)
