"""Search a space for its best point, and keep the front, the figure and an MLflow run."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.answers.plan import make_plan
    from pipeline.answers.plan_results import Limits, Objective
    from pipeline.question.compose import from_snakemake
    from pipeline.question.question import expand
    from pipeline.show.plans import show_plan, track_plan, write_plan

    given, made = snakemake.params, snakemake.output
    points = expand(from_snakemake(given.space))
    plan = make_plan(Objective(given.objective), points, Limits(**given.limits), results=given.results)
    write_plan(plan, Path(made.table), Path(made.summary), Path(made.figure), provenance(snakemake))
    track_plan(plan, Path(made.table).stem, {"front": Path(made.table)}, Path(given.tracking))
    show_plan(plan)
