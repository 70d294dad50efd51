# Predictions compared with public measurements: replays, whole models, and errors between GPUs. Figures draw the results.

from evaluation.checks.replayed_traces import TRACE_FILES
from pipeline.transfer.gpu_features import COVERED_FAMILIES

CHECKS = f"{FLOW.artifacts.root}/checks"
PAIR_ERRORS = f"{FLOW.artifacts.root}/transfer/{{family}}.parquet"
MODEL_ERRORS = f"{FLOW.artifacts.root}/transfer_models.parquet"


rule pair_errors:
    input:
        latencies=FLOW.public("neusight/kernels.parquet"),
    output:
        errors=PAIR_ERRORS,
    log:
        f"{FLOW.artifacts.root}/transfer/logs/{{family}}.log",
    conda:
        "../../workflow/envs/steptime.yaml"
    params:
        code=FLOW.code("transfer_errors"),
    message:
        "Compute errors of {wildcards.family} between all GPUs with public samples"
    script:
        "../scripts/transfer_errors.py"


rule transfer_models:
    input:
        latencies=FLOW.public("neusight/kernels.parquet"),
        passes=FLOW.public("neusight/model_latency.parquet"),
        ops=FLOW.public("neusight/model_op_latency.parquet"),
    output:
        errors=MODEL_ERRORS,
    log:
        f"{FLOW.artifacts.root}/transfer/logs/models.log",
    conda:
        "../../workflow/envs/steptime.yaml"
    params:
        code=FLOW.code("transfer_models"),
    message:
        "Compute errors of whole models between all GPUs with public samples"
    script:
        "../scripts/transfer_models.py"


rule transfer_errors:
    input:
        expand(PAIR_ERRORS, family=COVERED_FAMILIES),
        MODEL_ERRORS,


rule replays:
    input:
        traces=[FLOW.public(f"traces/{name}") for name in TRACE_FILES],
    output:
        spans=f"{CHECKS}/replays.parquet",
    log:
        f"{CHECKS}/logs/replays.log",
    conda:
        "../../workflow/envs/steptime.yaml"
    params:
        code=FLOW.code("replays"),
    message:
        "Replay the public traces"
    script:
        "../scripts/replays.py"


rule passes:
    input:
        latencies=FLOW.public("neusight/model_latency.parquet"),
    output:
        passes=f"{CHECKS}/passes.parquet",
    log:
        f"{CHECKS}/logs/passes.log",
    conda:
        "../../workflow/envs/steptime.yaml"
    params:
        packs=pack_digests(),
        code=FLOW.code("passes"),
    message:
        "Compare whole models with public latencies"
    script:
        "../scripts/passes.py"


rule checks:
    input:
        rules.replays.output.spans,
        rules.passes.output.passes,
