"""What scripts that run as real processes share: they meet by gloo, and the first writes what the script returns to a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def run_as_rank(script: Callable[[int], object]) -> None:
    """Call a script with its rank. The arguments of the process are the rank, a port, the file, and how many ranks there are."""
    rank, port, out, ranks = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, timedelta(seconds=120))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    found = script(rank)
    if rank == 0:
        out.write_text(repr(found))
    dist.barrier()
    dist.destroy_process_group()
