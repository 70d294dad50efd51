"""Read the public kernel latencies of one GPU, and write a table per family."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.datasets.neusight import read_samples
    from pipeline.kernels.samples import write_families

    samples = read_samples(snakemake.input.latencies, snakemake.wildcards.gpu)
    write_families(
        samples, snakemake.params.families, snakemake.output.samples, provenance(snakemake)
    )
