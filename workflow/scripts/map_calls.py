"""Map the operators of a graph to device calls."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.answers.gpu_figures import gpu_of
    from pipeline.graph.device_calls import map_calls
    from pipeline.graph.graph_file import read_graph
    from pipeline.schemas import write_table

    graph = read_graph(snakemake.input.graph)
    calls = map_calls(graph, gpu_of(snakemake.params.gpu), graph.device)
    write_table(calls, snakemake.output.calls, "calls", provenance(snakemake))
