"""Edit the operators of a captured graph."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.graph.edit_options import edited
    from pipeline.graph.graph_file import read_graph, write_graph
    from pipeline.question.settings import EditSettings

    graph = edited(read_graph(snakemake.input.graph), EditSettings.of(snakemake.params.edit))
    write_graph(graph, snakemake.output.graph, provenance(snakemake))
