"""Write Snakemake's report of a grid from existing artifacts."""

from pipeline.scripting import job

with job(snakemake):
    from pipeline.report.html_report import write_report

    write_report(
        snakemake.params.snakefile,
        snakemake.config,
        snakemake.params.targets,
        snakemake.output.page,
    )
