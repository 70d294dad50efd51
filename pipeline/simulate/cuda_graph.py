"""What a step takes whose kernels are launched as CUDA graphs: captured once, then started by one call of the host.

Between two waits of the host everything is one graph, as `torch.cuda.graph` or `torch.cuda.make_graphed_callables`
would capture it; a host that never waits starts the whole step at once. Copies of the batch stay outside, because they
fill the graph's fixed inputs anew. Kernels take as long as before, and so do the gaps between them: a graph saves the
host. Whether a step can be captured at all is not asked: sizes that depend on data (`SparseAdam`) forbid it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.simulate.step_program import Kind, Program

GRAPH_LAUNCH_US = 2.5
"""Host time of one launch, whatever the number of kernels: NVIDIA states it for straight-line graphs since CUDA 12.6
(developer blog, September 2024); before, each kernel added 0.2 µs, hidden behind the kernels themselves."""


def as_cuda_graphs(program: Program) -> Program:
    """The program with each run of launches between two waits of the host started by one call."""
    waits = (program.kind == Kind.SYNC) | program.blocking
    captured = ~waits & (program.items.phase[program.item] != "data")
    run = np.cumsum(~captured)  # rows of one run share a number with the row that ends the run before
    launches = captured & (program.kind == Kind.LAUNCH)
    first = np.zeros(len(program), bool)
    rows = np.flatnonzero(launches)
    first[rows[np.unique(run[rows], return_index=True)[1]]] = True
    begins = np.zeros(len(program), bool)
    ahead = np.flatnonzero(captured)
    begins[ahead[np.unique(run[ahead], return_index=True)[1]]] = True

    return replace(
        program,
        lead_us=np.where(captured & ~begins, 0.0, program.lead_us),
        gap_us=np.where(captured, 0.0, program.gap_us),
        api_us=np.where(captured, np.where(first, GRAPH_LAUNCH_US, 0.0), program.api_us),
        tail_us=np.where(captured, 0.0, program.tail_us),
        latency_us=np.where(launches & ~first, 0.0, program.latency_us),
        queue_depth=0,  # a graph takes one place
    )
