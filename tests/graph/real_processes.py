"""Real processes, one a rank, that meet by gloo: forks of this one, which has loaded PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

AT_MOST = timedelta(seconds=120)
"""Time that a rank waits for another."""


def run_real(script: Callable[[int], object], ranks: int = 2) -> Any:
    """What a script returns in the first of so many processes, at most 64 KiB. It gets its rank."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, AT_MOST, wait_for_workers=False)
    found = get_context("fork").SimpleQueue()
    start_processes(
        _run_as_rank, (script, store.port, ranks, found), nprocs=ranks, start_method="fork"
    )
    return found.get()


def _run_as_rank(
    rank: int, script: Callable[[int], object], port: int, ranks: int, found: Any
) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, None, False, AT_MOST)
    dist.init_process_group("gloo", timeout=AT_MOST, rank=rank, world_size=ranks, store=store)
    result = script(rank)
    if rank == 0:
        found.put(result)
    dist.barrier()
    dist.destroy_process_group()
