"""Tables that a user's own step spreads over ranks: `all_to_all_single` as it is written, with uneven splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import InputError
from steptime import Step, predict

HELD, DIM, ROWS = ([0, 1, 2], [3]), 16, 1000
"""Tables of each of two ranks, columns and rows of all."""


class Exchanged(torch.autograd.Function):
    """Elements sent and received in unequal parts; gradients travel back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sizes = sent, received
        return exchanged(x, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return exchanged(gradients[0], *ctx.sizes[::-1]), None, None


def exchanged(x: Tensor, sent: list[int], received: list[int]) -> Tensor:
    out = x.new_empty(sum(received))
    dist.all_to_all_single(out, x.contiguous(), received, sent)
    return out


class Sharded(nn.Module):
    """Looks up the tables of this rank for the samples of both."""

    def __init__(self) -> None:
        super().__init__()
        tables = range(len(HELD[dist.get_rank()]))
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, DIM, mode="sum") for _ in tables)
        self.top = nn.Linear(4 * DIM, 1)

    def forward(self, indices: Tensor) -> Tensor:
        own, batch = len(self.tables), indices.shape[1]
        each = [len(held) * batch for held in HELD]
        arrived = exchanged(indices.reshape(-1), each, [own * batch] * 2)
        parts = arrived.view(2, own, batch).transpose(0, 1)
        pooled = [bag(part.reshape(-1, 1)) for bag, part in zip(self.tables, parts, strict=True)]
        sizes = [own * batch * DIM] * 2, [size * DIM for size in each]
        rows = Exchanged.apply(torch.stack(pooled).reshape(-1), *sizes)  # type: ignore[no-untyped-call]
        out: Tensor = self.top(rows.view(batch, -1))
        return out


def make_step(config: Any, batch_size: int, device: str) -> Step:
    dist.init_process_group("nccl")
    with torch.device(device):
        model = Sharded()
    pool = [(torch.randint(ROWS, (4, batch_size)), torch.rand(batch_size, 1))]
    return Step(
        [model], pool, lambda i, y: model(i), lambda o, i, y: F.mse_loss(o, y), device, config
    )


def test_parts_of_unequal_size_are_exchanged_as_written() -> None:
    p = predict("A100", step=make_step, devices=2, batch_size=64)
    assert p.calls is not None
    own = p.calls[(p.calls["family"] == "collective") & (p.calls["op"] == "all_to_all")]
    rows, held = 4 * 64 * DIM, [len(each) for each in HELD]
    assert own["bytes_read"].tolist() == [8 * 64 * 4, rows * held[0] * 2, rows * sum(held)]
    assert own["bytes_written"].tolist() == [
        8 * 64 * held[0] * 2,
        rows * sum(held),
        rows * 2 * held[0],
    ]


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
        model = nn.parallel.DistributedDataParallel(
            nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        )
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)

    def procedure(batch: Any, _: Any) -> None:
        model(batch[0]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    batch = (torch.rand(batch_size, 64),)
    return Step([model], [batch], None, None, device, config, procedure=procedure)


def test_an_optimizer_that_ranks_share_updates_its_part_and_sends_it() -> None:
    p = predict("A100", step=shared_update, devices=4, batch_size=64)
    assert p.calls is not None
    update = p.calls[(p.calls["phase"] == "optimizer") & (p.calls["op"] == "foreach_sqrt")]
    assert update["bytes_read"].sum() == 4 * 2 * (64 * 64 + 64)  # two of eight layers
    sent = p.calls[p.calls["op"] == "broadcast"]
    assert sent["bytes_read"].sum() == 4 * 8 * (64 * 64 + 64)
    with pytest.raises(
        InputError, match=r"write torch\.distributed\.optim\.ZeroRedundancyOptimizer"
    ):
        predict("A100", step=shared_update, devices=4, batch_size=64, parallel__zero=True)
