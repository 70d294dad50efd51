"""Predict one grid point from its graph, calls, kernel models and overheads."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.answers.answer_files import AnswerFiles, write_answer
    from pipeline.answers.engine import Engine
    from pipeline.answers.model_sources import DeclaredModels
    from pipeline.answers.step_files import StepFiles
    from pipeline.answers.who_answers import shipped_models
    from pipeline.measured.campaign_reader import measured_step
    from pipeline.question.question import Question

    given = snakemake.input
    question = Question.of(snakemake.params.question)
    measured_us = (
        measured_step(given.measured[0], question.step_name, question.section("model"))
        if given.measured
        else None
    )
    models = DeclaredModels([*given.models, *shipped_models(question.gpu.name)], given.overheads)
    (answer,) = Engine(models, StepFiles(given.graph, given.calls)).predict(
        [question], detail=True, measured_us=measured_us
    )
    files = AnswerFiles(**dict(snakemake.output.items()))
    write_answer(answer, files, given.trace[0] if given.trace else None, provenance(snakemake))
