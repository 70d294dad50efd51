"""Fit the constants of fused attention to the GPUs that were measured."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.published.aiconfigurator import ATTENTION, read_attention
    from evaluation.training.fused_attention_fit import fit_gpus
    from evaluation.training.write_packs import write_fitted

    fitted = fit_gpus({gpu: read_attention(gpu) for gpu in ATTENTION})
    made = {**snakemake.params.provenance, "made_by": provenance(snakemake)["versions"]}
    write_fitted(Path(snakemake.output.constants), fitted, made)
