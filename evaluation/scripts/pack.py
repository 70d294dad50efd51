"""Assemble the pack of one GPU."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.training.write_packs import build_pack
    from pipeline.kernels.family_model import DESCRIPTION

    folders = map(Path, snakemake.input.models)
    models = {folder.parent.name: folder for folder in folders if (folder / DESCRIPTION).is_file()}
    overheads = [Path(path) for path in snakemake.input.overheads]
    made = {**snakemake.params.provenance, "made_by": provenance(snakemake)["versions"]}
    build_pack(
        snakemake.wildcards.gpu, models, overheads, made, Path(snakemake.output.manifest).parent
    )
