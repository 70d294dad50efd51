"""Assemble the pack of one GPU."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.training.write_packs import build_pack

    models = {Path(path).parent.name: Path(path) for path in snakemake.input.models}
    overheads = [Path(path) for path in snakemake.input.overheads]
    made = {**snakemake.params.provenance, "made_by": provenance(snakemake)["versions"]}
    build_pack(snakemake.wildcards.gpu, models, overheads, made, Path(snakemake.output.manifest).parent)
