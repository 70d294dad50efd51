"""Compute the error of each part of one measured point's prediction."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.answers.error_parts import PointInputs, parts_of
    from pipeline.answers.gpu_figures import gpu_of
    from pipeline.answers.host_overheads import observations_in
    from pipeline.answers.kernel_models import kernel_predictor
    from pipeline.config import method_label
    from pipeline.graph.graph_file import read_graph
    from pipeline.prediction import Prediction
    from pipeline.schemas import read_table, write_parquet
    from pipeline.settings import Settings

    given, settings = snakemake.input, Settings.of(snakemake.params.point)
    gpu = gpu_of(settings.gpu)
    point = PointInputs(
        snakemake.wildcards.gpu,
        gpu,
        settings,
        snakemake.params.point["workload"],
        read_graph(given.graph).table,
        read_table(given.calls, "calls"),
        kernel_predictor(gpu, method_label(settings.kernels), [*snakemake.input.models, *snakemake.params.pack]),
    )
    observations = observations_in(given.observations)
    prediction = Prediction.all_of(read_table(given.summary, "summary"))[0]
    table = parts_of(prediction, Path((given.trace or given.measured)[0]), point, observations)
    write_parquet(table, snakemake.output.parts, provenance=provenance(snakemake))
