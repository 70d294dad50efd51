# Kernel models of one GPU, fitted to samples from the best available source and tracked in MLflow. A GPU without samples
# on this machine uses the shipped pack, or models transferred from other GPUs.

from pipeline.flow import on_this_machine

KERNELS = FLOW.artifacts.kernels("{gpu}")


rule public_samples:
    input:
        latencies=FLOW.public("neusight/kernels.parquet"),
    output:
        samples=FLOW.samples("{gpu}", Source.PUBLIC),
    log:
        f"{KERNELS}/logs/samples.log",
    wildcard_constraints:
        gpu=FLOW.gpus_from("kernels", Source.PUBLIC),
    conda:
        "../envs/steptime.yaml"
    params:
        families=FLOW.families(Source.PUBLIC),
        code=FLOW.code("public_samples"),
    message:
        "Read kernel samples of {wildcards.gpu} from public measurements"
    script:
        "../scripts/public_samples.py"


rule campaign_samples:
    input:
        files=FLOW.campaign,
    output:
        samples=FLOW.samples("{gpu}", Source.MEASUREMENTS),
    log:
        f"{KERNELS}/logs/samples.log",
    wildcard_constraints:
        gpu=FLOW.gpus_from("kernels", Source.MEASUREMENTS),
    conda:
        "../envs/steptime.yaml"
    params:
        families=FLOW.families(Source.MEASUREMENTS),
        code=FLOW.code("campaign_samples"),
    message:
        "Read kernel samples of {wildcards.gpu} from a campaign"
    script:
        "../scripts/campaign_samples.py"


rule local_samples:
    input:
        graphs=FLOW.of_points("graph.parquet", "local"),
        calls=FLOW.of_points("calls.parquet", "local"),
    output:
        samples=FLOW.samples("{gpu}", Source.LOCAL),
    log:
        f"{KERNELS}/logs/samples.log",
    wildcard_constraints:
        gpu=FLOW.gpus_from("kernels", Source.LOCAL),
    conda:
        "../envs/steptime.yaml"
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        families=FLOW.families(Source.LOCAL),
        collect=FLOW.points[0].section("collect"),
        code=FLOW.code("local_samples"),
    message:
        "Measure kernel samples on this machine, for every family in use"
    script:
        "../scripts/local_samples.py"


rule fit_kernels:
    input:
        samples=FLOW.samples("{gpu}", Source.PUBLIC),
    output:
        models=[directory(path) for path in FLOW.models("{gpu}", "{kernels}", Source.PUBLIC)],
        logged=touch(on_this_machine(FLOW.artifacts.logged("{gpu}-kernels-{kernels}"))),
    log:
        f"{KERNELS}/logs/fit_{{kernels}}.log",
    benchmark:
        f"{KERNELS}/logs/fit_{{kernels}}.tsv"
    wildcard_constraints:
        gpu=FLOW.gpus_from("kernels", Source.PUBLIC),
    conda:
        "../envs/steptime.yaml"
    threads: FLOW.fit_workers
    params:
        settings=FLOW.kernel_settings,
        gpu=FLOW.gpu_spec,
        code=FLOW.code("fit_kernels"),
    message:
        "Fit kernel models of {wildcards.gpu} ({wildcards.kernels}), tracked in MLflow: takes minutes (docs/kernels.md)"
    script:
        "../scripts/fit_kernels.py"


use rule fit_kernels as fit_measured_kernels with:
    input:
        samples=FLOW.samples("{gpu}", Source.LOCAL),
    output:
        models=[directory(path) for path in FLOW.models("{gpu}", "{kernels}", Source.LOCAL)],
        logged=touch(on_this_machine(FLOW.artifacts.logged("{gpu}-kernels-{kernels}"))),
    wildcard_constraints:
        gpu=FLOW.gpus_from("kernels", Source.LOCAL, Source.MEASUREMENTS),
