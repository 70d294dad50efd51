"""Read the public bf16 products of one GPU."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from evaluation.published.aiconfigurator import read_products
    from pipeline.kernels.samples import write_families

    samples = read_products(snakemake.wildcards.gpu)
    write_families(samples, ["gemm"], snakemake.output.samples, provenance(snakemake))
