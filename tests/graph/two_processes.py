"""What scripts that run as two real processes share: they meet by gloo, and the first writes what the script returns to a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def run_as_one_of_two(script: Callable[[int], object]) -> None:
    """Call a script with its rank. The arguments of the process are the rank, a port, and the file."""
    rank, port, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=120))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found = script(rank)
    if rank == 0:
        out.write_text(repr(found))
    dist.barrier()
    dist.destroy_process_group()
