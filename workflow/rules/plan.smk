# A plan: the best point of the space that the configuration describes (docs/codesign.md#plans). `--config plan=OBJECTIVE`
# makes it the default target. The grid's points are not predicted one by one then.

from dataclasses import asdict


rule plan:
    input:
        models=FLOW.models_of_plan,
        overheads=FLOW.overheads_of_plan,
        prices=GRID.price_table(),
    output:
        table=f"{FLOW.plan_files}.parquet",
        summary=f"{FLOW.plan_files}.json",
        text=f"{FLOW.plan_files}.txt",
        figure=report(f"{FLOW.plan_files}.svg", category="Plans", labels={"figure": str(FLOW.plan.objective)}),
    log:
        f"{FLOW.artifacts.root}/plans/logs/{Path(FLOW.plan_files).name}.log",
    conda:
        "../envs/steptime.yaml"
    params:
        objective=str(FLOW.plan.objective),
        limits=asdict(FLOW.plan.limits),
        space=FLOW.space,
        files=FLOW.files_of_plan(),
        packs=pack_digests(),
        code=FLOW.code("plan", drawing=True),
    message:
        f"Search {len(FLOW.points):,} points for the best {FLOW.plan.objective}"
    script:
        "../scripts/plan.py"
