"""Map the operators of a graph to device calls."""

from pipeline.scripting import job, provenance

with job(snakemake):
    from pipeline.graph.device_calls import map_calls
    from pipeline.graph.graph_file import read_graph
    from pipeline.hardware.spec import GpuSpec
    from pipeline.schemas import write_table

    graph = read_graph(snakemake.input.graph)
    calls = map_calls(graph, GpuSpec(**snakemake.params.gpu), graph.device)
    write_table(calls, snakemake.output.calls, "calls", provenance(snakemake))
