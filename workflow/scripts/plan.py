"""Search a space for its best point, and keep the front, the figure and an MLflow run."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.answers.plan import make_plan, space_of
    from pipeline.answers.plan_results import Limits, Objective
    from pipeline.show.plans import write_plan

    given, made = snakemake.params, snakemake.output
    results = Path(made.table).parents[1]
    limits = Limits(**given.limits)
    plan = make_plan(
        Objective(given.objective),
        space_of(given.space, limits),
        limits,
        results=str(results),
    )
    write_plan(
        plan,
        Path(made.table),
        Path(made.summary),
        Path(made.text),
        Path(made.figure),
        provenance(snakemake),
    )
