"""Read the execution graph of one training step from its execution trace."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from dataclasses import replace

    from pipeline.graph.capture import capture
    from pipeline.graph.execution_trace import import_execution_trace
    from pipeline.graph.store import write_graph

    batch = int(snakemake.wildcards.batch)
    graph = import_execution_trace(snakemake.input.execution_trace)
    memory = capture(snakemake.params.model, batch).memory  # a trace does not say what a step keeps in memory
    whole = replace(graph, memory=memory, model=snakemake.wildcards.model, batch_size=batch)
    write_graph(whole, snakemake.output.graph, provenance(snakemake))
