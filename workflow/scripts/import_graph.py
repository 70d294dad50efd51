"""Read the execution graph of one training step from its execution trace."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.graph.capture import read_recorded_step
    from pipeline.graph.graph_file import write_graph

    graph = read_recorded_step(
        snakemake.input.execution_trace, snakemake.params.model, int(snakemake.wildcards.batch)
    )
    write_graph(graph, snakemake.output.graph, provenance(snakemake))
