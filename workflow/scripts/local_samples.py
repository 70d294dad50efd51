"""Measure the kernels of the grid's workloads on the device of this machine, and write a table per family."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.collect.microbenchmarks import measure_calls
    from pipeline.graph.graph_file import read_graph
    from pipeline.kernels.samples import write_families
    from pipeline.schemas import read_table

    calls = [read_table(path, "calls") for path in snakemake.input.calls]
    samples = measure_calls(
        calls,
        "auto",
        float(snakemake.params.collect["kernel_seconds"]),
        graph=[read_graph(path).table for path in snakemake.input.graphs],
    )
    write_families(
        samples, snakemake.params.families, snakemake.output.samples, provenance(snakemake)
    )
