"""Map the operators of the graphs of one job to device calls."""

from pipeline.scripting import is_current, job, provenance_of

with job(snakemake):
    from pipeline.answers.gpu_figures import gpu_of
    from pipeline.graph.device_calls import map_calls
    from pipeline.graph.graph_file import read_graph
    from pipeline.schemas import write_table
    from pipeline.settings import unpacked

    points = unpacked(snakemake.params.points)
    for point, graph_path, path in zip(points, snakemake.input.graphs, snakemake.output.calls, strict=True):
        made = provenance_of(snakemake, {**point, "code": snakemake.params.code}, [graph_path])
        if not is_current([path], made):
            graph = read_graph(graph_path)
            write_table(map_calls(graph, gpu_of(point["gpu"]), graph.device), path, "calls", made)
