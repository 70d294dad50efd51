"""Compute the error of each part of one measured point's prediction."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.checks.error_parts import MeasuredStep, parts_of
    from pipeline.answers.step_prediction import StepParts
    from pipeline.answers.who_answers import kernel_predictor, observations_in, shipped_models
    from pipeline.graph.graph_file import read_graph
    from pipeline.question.question import Question
    from pipeline.schemas import read_table, write_parquet
    from pipeline.summary_rows import predictions_of

    given, params = snakemake.input, snakemake.params
    question = Question.of(params.question)
    parts = StepParts.of(read_graph(given.graph), read_table(given.calls, "calls"))
    kernels = kernel_predictor(
        question.gpu, question.kernels_label, [*given.models, *shipped_models(question.gpu.name)]
    )
    prediction = predictions_of(read_table(given.summary, "summary"))[0]
    evidence, observations = (
        Path((given.trace or given.measured)[0]),
        observations_in(given.observations),
    )
    table = parts_of(prediction, evidence, MeasuredStep(question, parts, kernels), observations)
    write_parquet(table, snakemake.output.parts, provenance=provenance(snakemake))
