# Steptime's stages: trace collection -> kernel samples -> model fitting (MLflow) -> overhead statistics -> critical-path
# prediction. They run for every point of the grid that the configuration describes:
#
#   snakemake --config gpu=V100 model=dlrm_default
#   snakemake --config gpu=V100,P100 model=dlrm_default,dlrm_ddp batch_size=512,2048
#   snakemake --config experiment=paper_dlrm -- figures

from pipeline.answers.who_answers import Source
from pipeline.flow import Flow
from pipeline.paths import is_checkout
from pipeline.private_names import listen
from pipeline.show.run_hooks import date_now, explain_failures, show_predictions

FLOW = Flow.from_config(config)


include: "workflow/rules/graph.smk"
include: "workflow/rules/kernels.smk"
include: "workflow/rules/overheads.smk"
include: "workflow/rules/predict.smk"
include: "workflow/rules/report.smk"


if is_checkout():

    include: "evaluation/rules/accuracy.smk"
    include: "evaluation/rules/checks.smk"
    include: "evaluation/rules/packs.smk"

else:

    include: "workflow/rules/checkout.smk"


localrules:
    all,
    summary,


rule all:
    default_target: True
    input:
        rules.summary.output.table,
        FLOW.of_points("events.parquet", "local"),


listen(workflow, lambda: show_predictions(FLOW, rules.summary.output.table))


onstart:
    date_now(FLOW.artifacts.root)


onerror:
    explain_failures(FLOW)


onsuccess:
    show_predictions(FLOW, rules.summary.output.table)
