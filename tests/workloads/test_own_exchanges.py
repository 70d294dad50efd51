"""Tables that a user's own step spreads over ranks: `all_to_all_single` as it is written, with uneven splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeline.errors import InputError
from steptime import Step, predict


def test_parts_of_unequal_size_are_exchanged_as_written() -> None:
    """The first of two ranks holds three of four tables: it sends the indices of one, and the rows of three."""

    def make_step(config: Any, batch_size: int, device: str) -> Step:
        dist.init_process_group("nccl")
        with torch.device(device):
            tables, top = nn.Embedding(1000, 16), nn.Linear(4 * 16, 1)
        own, other = 3 * batch_size, batch_size

        def procedure(batch: Any, _: Any) -> None:
            (indices,) = batch
            arrived = indices.new_empty(2 * own)
            dist.all_to_all_single(arrived, indices, [own, own], [own, other])
            rows = tables(arrived).view(-1)
            pooled = rows.new_empty((own + other) * 16)
            dist.all_to_all_single(pooled, rows, [own * 16, other * 16], [own * 16] * 2)
            top(pooled.view(batch_size, -1)).sum().backward()

        batch = (torch.randint(1000, (4 * batch_size,)),)
        modules = [tables, top]
        return Step(modules, [batch], None, None, device, config, procedure=procedure)

    calls = predict("A100", step=make_step, devices=2, batch_size=64).calls
    assert calls is not None
    own = calls[(calls["family"] == "collective") & (calls["op"] == "all_to_all")]
    whole, held = 4 * 64, 2 * 3 * 64
    moved = own[["bytes_read", "bytes_written"]].values.tolist()
    assert moved == [[8 * whole, 8 * held], [4 * 16 * held, 4 * 16 * whole]]


def test_torchrec_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "with_torchrec.py").write_text("import torchrec\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"fbgemm_gpu.*write its exchanges as all_to_all_single"):
        predict("A100", model="custom", model__target="with_torchrec:make", batch_size=4)


def shared_update(config: Any, batch_size: int, device: str) -> Step:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("nccl")
    with torch.device(device):
        layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    model = nn.parallel.DistributedDataParallel(layers)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)

    def procedure(batch: Any, _: Any) -> None:
        model(batch[0]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    batch = (torch.rand(batch_size, 64),)
    return Step([model], [batch], None, None, device, config, procedure=procedure)


def test_an_optimizer_that_ranks_share_updates_its_part_and_sends_it() -> None:
    asked: Any = {"step": shared_update, "devices": 4, "batch_size": 64}
    calls = predict("A100", **asked).calls
    assert calls is not None
    update = calls[(calls["phase"] == "optimizer") & (calls["op"] == "foreach_sqrt")]
    layer = 4 * (64 * 64 + 64)
    assert update["bytes_read"].sum() == 2 * layer  # two of eight layers
    assert calls.loc[calls["op"] == "broadcast", "bytes_read"].sum() == 8 * layer
    said = r"write torch\.distributed\.optim\.ZeroRedundancyOptimizer"
    with pytest.raises(InputError, match=said):
        predict("A100", **asked, parallel__zero=True)
