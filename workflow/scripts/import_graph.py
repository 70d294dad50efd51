"""Read the execution graph of one training step from its execution trace."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.graph.execution_trace import import_execution_trace
    from pipeline.graph.store import write_graph

    graph = import_execution_trace(snakemake.input.execution_trace, snakemake.params.model)
    write_graph(graph, snakemake.output.graph, provenance(snakemake))
