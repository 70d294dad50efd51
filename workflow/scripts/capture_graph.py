"""Capture the execution graph of one training step."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.graph.graph_file import write_graph
    from pipeline.graph.step_store import captured

    graph = captured(snakemake.params.model, int(snakemake.wildcards.batch))
    write_graph(graph, snakemake.output.graph, provenance(snakemake))
