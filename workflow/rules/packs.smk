# What ships: per GPU, the fitted kernel models and overhead observations, refitted from public data on request.

PACK = f"{FLOW.packs}/{{gpu}}/pack.json"


rule pack:
    input:
        models=FLOW.models("{gpu}", "auto", Source.PUBLIC),
        overheads=FLOW.pack_overheads,
    output:
        manifest=PACK,
    wildcard_constraints:
        gpu=FLOW.gpus_from("kernels", Source.PUBLIC),
    params:
        provenance=FLOW.public_provenance,
    message:
        "Pack of {wildcards.gpu}"
    script:
        "../scripts/pack.py"


rule packs:
    input:
        expand(PACK, gpu=FLOW.public_gpus),
