"""Errors of the parts of one measured point's prediction."""

from pathlib import Path

from pipeline.scripting import job

with job(snakemake):
    from pipeline.api import gpu_of, kernel_predictor
    from pipeline.graph.store import read_graph
    from pipeline.prediction import Prediction
    from pipeline.report.parts import error_parts, measured_active_us, step_with_others_overheads
    from pipeline.schemas import atomic_path, read_table

    point = snakemake.params.point
    gpu = gpu_of(point["gpu"])
    shared = step_with_others_overheads(
        point,
        gpu,
        read_graph(snakemake.input.graph).table,
        read_table(snakemake.input.calls, "calls"),
        kernel_predictor(gpu, point["kernels"]["name"], snakemake.params.results),
        read_table(snakemake.input.observations, "overhead_samples"),
    )
    prediction = Prediction.all_of(read_table(snakemake.input.summary, "summary"))[0]
    table = error_parts(prediction, measured_active_us(snakemake.input.trace), shared)
    with atomic_path(Path(snakemake.output.parts)) as part:
        table.to_parquet(part, index=False)
