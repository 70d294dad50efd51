# Targets that judge predictions or make packs need code that no wheel holds: each says so.

for target in ("accuracy", "checks", "packs", "transfer_errors"):

    rule:
        name:
            target
        log:
            f"{FLOW.artifacts.root}/logs/{target}.log",
        conda:
            "../envs/steptime.yaml"
        message:
            f"{target} needs a checkout"
        script:
            "../scripts/needs_checkout.py"
