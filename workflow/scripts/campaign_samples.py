"""Read the kernel samples of one GPU from a campaign, and write a table per family."""

from pathlib import Path

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.kernels.samples import write_families
    from pipeline.measured.campaign_reader import read_samples

    samples = read_samples(Path(snakemake.input.files[0]).parent)
    write_families(
        samples, snakemake.params.families, snakemake.output.samples, provenance(snakemake)
    )
