"""Changes a step's program so that its kernels are launched as CUDA graphs: captured once, started by one host call.

All launches between two waits of the host form one graph, as `torch.cuda.graph` or `torch.cuda.make_graphed_callables`
would capture them. A host that never waits starts the whole step with one call. Copies of the batch are not part of the
graph, because they fill its fixed inputs again in each step. Kernel times and the gaps between kernels stay the same; a
graph saves host time only. This module does not check whether a step can be captured. Sizes that depend on data
(`SparseAdam`) make it impossible.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.simulate.step_program import Kind, Program

GRAPH_LAUNCH_US = 2.5
"""Host time of one graph launch in µs, for any number of kernels. NVIDIA states it for straight-line graphs since CUDA
12.6 (developer blog, September 2024). Earlier, each kernel added 0.2 µs, which overlapped with the running kernels."""


def as_cuda_graphs(program: Program) -> Program:
    """The program in which one call starts all launches between two waits of the host."""
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
