"""Capture the execution graphs of a workload at the batch sizes of one job."""

from pipeline.scripting import is_current, job, provenance_of

with job(snakemake):
    from pipeline.graph.graph_cache import captured
    from pipeline.graph.graph_file import write_graph

    params = {"model": snakemake.params.model, "files": snakemake.params.files, "code": snakemake.params.code}
    made = provenance_of(snakemake, params, [])
    for batch_size, path in zip(snakemake.params.batch_sizes, snakemake.output.graphs, strict=True):
        if not is_current([path], made):
            write_graph(captured(snakemake.params.model, batch_size), path, made)
