# Shipped models: fitted kernel models and overhead observations of each GPU, refitted from public data or a campaign on request.

from evaluation.training import pack_inputs as PACKS
from pipeline.answers.who_answers import Source
from pipeline.flow import on_this_machine
from pipeline.paths import packs_dir

PACK = f"{packs_dir()}/{{gpu}}/pack.json"


rule pack:
    input:
        models=lambda wildcards: PACKS.models_of(FLOW, wildcards.gpu),
        overheads=lambda wildcards: PACKS.overheads_of(FLOW, wildcards.gpu),
    output:
        manifest=PACK,
    log:
        f"{FLOW.artifacts.root}/packs/logs/{{gpu}}.log",
    wildcard_constraints:
        gpu=FLOW.gpus_from("kernels", Source.PUBLIC, Source.MEASUREMENTS),
    conda:
        "../../workflow/envs/steptime.yaml"
    params:
        provenance=PACKS.pack_provenance,
    message:
        "Write the pack of {wildcards.gpu}"
    script:
        "../scripts/pack.py"


# bf16 matrix products of newer GPUs, from an optional package. They are kept beside the packs: one family in one dtype.

HALF = f"{FLOW.artifacts.root}/{{gpu}}/half"
HALF_PACK = f"{packs_dir()}/half/{{gpu}}/pack.json"
HALF_GPUS = "|".join(PACKS.bf16_gpus()) or "no-bf16-products"


rule half_samples:
    input:
        products=PACKS.bf16_table,
    output:
        samples=[f"{HALF}/gemm/samples.parquet"],
    log:
        f"{HALF}/logs/samples.log",
    wildcard_constraints:
        gpu=HALF_GPUS,
    conda:
        "../../workflow/envs/steptime.yaml"
    params:
        code=FLOW.code("half_samples"),
    message:
        "Read bf16 matrix products of {wildcards.gpu} from public measurements"
    script:
        "../scripts/half_samples.py"


rule fit_half:
    input:
        samples=[f"{HALF}/gemm/samples.parquet"],
    output:
        models=[directory(f"{HALF}/gemm/{{kernels}}")],
        logged=touch(on_this_machine(FLOW.artifacts.logged("{gpu}-half-{kernels}"))),
    log:
        f"{HALF}/logs/fit_{{kernels}}.log",
    benchmark:
        f"{HALF}/logs/fit_{{kernels}}.tsv"
    wildcard_constraints:
        gpu=HALF_GPUS,
    conda:
        "../../workflow/envs/steptime.yaml"
    threads: FLOW.fit_workers
    params:
        settings=FLOW.kernel_settings,
        gpu=FLOW.gpu_spec,
        code=FLOW.code("fit_kernels"),
    message:
        "Fit a kernel model of bf16 matrix products of {wildcards.gpu} ({wildcards.kernels}), tracked in MLflow"
    script:
        "../../workflow/scripts/fit_kernels.py"


use rule pack as half_pack with:
    input:
        models=[f"{HALF}/gemm/auto"],
        overheads=[],
    output:
        manifest=HALF_PACK,
    log:
        f"{FLOW.artifacts.root}/packs/logs/half-{{gpu}}.log",
    wildcard_constraints:
        gpu=HALF_GPUS,
    params:
        provenance=PACKS.newer_provenance,
    message:
        "Write the shipped model of bf16 matrix products of {wildcards.gpu}"


rule collective_curves:
    output:
        curves=f"{packs_dir()}/collectives.json",
    log:
        f"{FLOW.artifacts.root}/packs/logs/collectives.log",
    conda:
        "../../workflow/envs/steptime.yaml"
    params:
        provenance=PACKS.collective_provenance,
    message:
        "Fit curves of collectives to public measurements"
    script:
        "../scripts/collective_curves.py"


rule attention_constants:
    output:
        constants=f"{packs_dir()}/attention.json",
    log:
        f"{FLOW.artifacts.root}/packs/logs/attention.log",
    conda:
        "../../workflow/envs/steptime.yaml"
    params:
        provenance=PACKS.newer_provenance,
    message:
        "Fit constants of fused attention to public measurements"
    script:
        "../scripts/attention_constants.py"


rule packs:
    input:
        expand(PACK, gpu=PACKS.packed_gpus()),
        expand(HALF_PACK, gpu=PACKS.bf16_gpus()),
        [f"{packs_dir()}/{name}.json" for name in ("collectives", "attention")] if PACKS.bf16_gpus() else [],
