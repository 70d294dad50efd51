# Host overheads (T1 to T5) of one GPU's host, from traces. Without traces the shipped overheads are used.

OVERHEADS = FLOW.artifacts.overheads("{gpu}", "{overheads}")
OBSERVATIONS = FLOW.artifacts.overhead_samples("{gpu}")


rule public_overheads:
    input:
        traces=FLOW.public_traces,
    output:
        samples=OBSERVATIONS,
    log:
        f"{FLOW.artifacts.root}/{{gpu}}/logs/overhead_samples.log",
    wildcard_constraints:
        gpu=FLOW.gpus_from("overheads", Source.PUBLIC),
    conda:
        "../envs/steptime.yaml"
    params:
        code=FLOW.code("public_overheads"),
    message:
        "Extract overhead observations of {wildcards.gpu} from public traces"
    script:
        "../scripts/public_overheads.py"


rule campaign_overheads:
    input:
        files=FLOW.campaign,
    output:
        samples=OBSERVATIONS,
    log:
        f"{FLOW.artifacts.root}/{{gpu}}/logs/overhead_samples.log",
    wildcard_constraints:
        gpu=FLOW.gpus_from("overheads", Source.MEASUREMENTS),
    conda:
        "../envs/steptime.yaml"
    params:
        code=FLOW.code("campaign_overheads"),
    message:
        "Extract overhead observations of {wildcards.gpu}'s host from a campaign"
    script:
        "../scripts/campaign_overheads.py"


rule local_overheads:
    input:
        traces=FLOW.of_points("trace/kineto.json.gz", "local"),
    output:
        samples=OBSERVATIONS,
    log:
        f"{FLOW.artifacts.root}/{{gpu}}/logs/overhead_samples.log",
    wildcard_constraints:
        gpu=FLOW.gpus_from("overheads", Source.LOCAL),
    conda:
        "../envs/steptime.yaml"
    params:
        workloads=[point.step_name for point in FLOW.points if point.local],
        code=FLOW.code("local_overheads"),
    message:
        "Extract overhead observations of this machine from its own traces"
    script:
        "../scripts/local_overheads.py"


rule overhead_statistics:
    input:
        samples=FLOW.overhead_samples,
    output:
        overheads=OVERHEADS,
    log:
        f"{FLOW.artifacts.root}/{{gpu}}/logs/overheads-{{overheads}}.log",
    wildcard_constraints:
        overheads=r"overheads(-[A-Za-z0-9_\-]+)?",
    conda:
        "../envs/steptime.yaml"
    params:
        settings=FLOW.overhead_settings,
        code=FLOW.code("overhead_statistics"),
    message:
        "Compute overhead statistics of {wildcards.gpu} ({wildcards.overheads})"
    script:
        "../scripts/overhead_statistics.py"
