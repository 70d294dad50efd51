"""First lines of scripts: `.to("cuda")`, `torch.cuda`, process groups, and wrappers for several GPUs, taken as one GPU."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard

from steptime import Step, predict

GPU = "cuda" if torch.cuda.is_available() else "cpu"
"""What a script finds on this machine."""


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


def step_of(
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
    train: Callable[[Tensor], Any] = lambda x: None,
) -> Any:
    """A step that first prepares its module, and beside its training does something with its batch."""

    def make_step(config: Any, batch_size: int, device: str) -> Step:
        with torch.device(device):
            model = net()
        model = prepare(model)

        def forward(x: Tensor, y: Tensor) -> Any:
            train(x)
            return F.cross_entropy(model(x), y)

        batch = torch.rand(batch_size, 64), torch.randint(10, (batch_size,))
        return Step([model], [batch], forward, None, device, config)

    return make_step


def predicted(*given: Any, gpu: str = "V100", devices: int = 1) -> Any:
    """The prediction of such a step, with its calls."""
    p = predict(gpu, step=step_of(*given), batch_size=64, devices=devices)
    assert p.calls is not None
    return p, p.calls[["family", "op", "phase", "kernel_us"]]


def begin_group(model: nn.Module) -> nn.Module:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    assert dist.is_initialized() and dist.get_rank() == 0 and dist.get_world_size() == 1
    return model


def shard(model: nn.Module) -> nn.Module:
    import torch.distributed.fsdp as fsdp

    for layer in model:  # type: ignore[union-attr]
        fsdp.fully_shard(layer)
    return fsdp.fully_shard(model)


ONE_GPU = {
    "init_process_group": begin_group,
    "DataParallel": nn.DataParallel,
    "DistributedDataParallel": lambda model: nn.parallel.DistributedDataParallel(
        model, device_ids=[0]
    ),
    "SyncBatchNorm": nn.SyncBatchNorm.convert_sync_batchnorm,
    "fully_shard": shard,
    "fully_shard by its name": lambda model: fully_shard(model),
}


@pytest.mark.parametrize("name", ONE_GPU)
@pytest.mark.filterwarnings("ignore::pipeline.errors.SteptimeWarning")
def test_a_line_for_several_gpus_is_taken_as_one_gpu_and_says_what_is_left_out(name: str) -> None:
    p, calls = predicted(ONE_GPU[name])
    (said,) = p.warnings
    assert said.startswith(f"{name.split()[0]}: the ") and "one GPU is predicted" in said
    assert calls.equals(predicted()[1])


@pytest.mark.filterwarnings("ignore::pipeline.errors.SteptimeWarning")
def test_a_step_of_one_gpu_is_taken_in_a_process_that_is_in_a_group() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        p, _ = predicted(nn.DataParallel)
    finally:
        dist.destroy_process_group()
    assert p.several is None and p.warnings[0].startswith("DataParallel: the step of one GPU")


def test_nothing_of_it_stays() -> None:
    def replaced() -> list[Any]:
        wrappers = nn.DataParallel.__init__, nn.SyncBatchNorm.forward
        return [dist.init_process_group, *wrappers, torch.cuda.set_device, Tensor.to]

    before = replaced()
    with pytest.warns(UserWarning):
        predicted(begin_group)
    assert before == replaced() and not dist.is_initialized()


def all_ways(x: Tensor) -> None:
    """Every collective, as four ranks and as one: sizes of lists are those of the group."""
    own, ranks = x[0].detach(), dist.get_world_size()
    others, group = [torch.empty_like(own) for _ in range(ranks)], dist.new_group(backend="gloo")
    dist.all_reduce(own, async_op=True).wait()
    dist.all_gather(others, own, async_op=True).wait()
    dist.gather(own, others, dst=0)
    dist.scatter(own, others, async_op=True).synchronize()
    dist.all_to_all(others, others)
    dist.reduce_scatter_tensor(own, torch.cat(others))
    dist.all_gather_into_tensor(torch.empty(ranks, 64, device=own.device), own, group=group)
    assert dist.broadcast(own, 0, async_op=True).get_future().value()[0] is own
    objects = [None] * ranks
    dist.all_gather_object(objects, {"a": 1}, group=group)
    dist.broadcast_object_list(objects, src=0)
    assert objects == [{"a": 1}] * ranks
    kept, on_host = torch.zeros(2), torch.ones(2)
    dist.all_gather([kept, *(torch.zeros(2) for _ in others[1:])], on_host)
    assert torch.equal(kept, on_host)
    dist.barrier(async_op=True).wait()
    dist.barrier(group=group, device_ids=[0])
    dist.destroy_process_group()


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.filterwarnings("ignore")
def test_a_script_of_several_ranks_runs_on_one_and_on_four(devices: int) -> None:
    def begin(model: nn.Module) -> nn.Module:
        dist.init_process_group("nccl")
        assert dist.get_backend() == "nccl"
        model = nn.parallel.DistributedDataParallel(model.to(dist.get_rank()))
        model.register_comm_hook(None, default_hooks.allreduce_hook)
        return model

    _, calls = predicted(begin, all_ways, gpu="A100-SXM4-80GB", devices=devices)
    called = calls[calls["phase"] == "forward"]
    exchanges = called.loc[called["family"] == "collective", "op"].tolist()
    waits = (called["family"] == "memcpy_d2h").sum()
    assert waits == 2, "the host waits at both barriers"
    assert len(exchanges) == (12 if devices == 4 else 0), "ten, and two of the buffers of norms"
    assert exchanges[8:10] == ["all_reduce"] * len(exchanges[8:10]), "barriers: of one number"


def timed() -> None:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    with torch.cuda.nvtx.range("forward"), torch.cuda.device(0):
        end.record(torch.cuda.current_stream())
    end.synchronize()
    assert begin.elapsed_time(end) > 0 and end.query()


def shown(x: Tensor) -> None:
    assert f"{x.mean():.3f} {x.argmax():4d} {torch.tensor(2.5):.1f}" == "1.000    1 2.5"


def logged() -> None:
    cuda = torch.cuda
    assert cuda.is_bf16_supported() and not cuda.is_bf16_supported(including_emulation=False)
    (free, total), properties = cuda.mem_get_info(), cuda.get_device_properties(0)
    assert properties.name == "V100" and properties.total_memory == total >= free > 1e10
    assert cuda.get_device_capability() == (7, 0) and cuda.device_count() == 1
    assert cuda.max_memory_allocated() == cuda.memory_stats()["allocated"] == 0
    assert cuda.is_available() and torch.accelerator.current_device_index() == 0


Change = tuple[Callable[[Any], Any], Callable[[Tensor], Any], list[str]]


def as_it_is(given: Any) -> Any:
    return given


MOVES: dict[str, Change] = {
    "by the rank": (lambda model: model.to(0).cuda(0).to(device=0), lambda x: x.to(0), []),
    "numbers of a generator": (
        as_it_is,
        lambda x: torch.rand(5, generator=torch.Generator("cuda").manual_seed(1), device=0),
        ["elementwise"],
    ),
    "where no GPU was found": (lambda model: model.to(GPU), lambda x: x.to(GPU), []),
    "the batch again": (
        lambda model: model.to("cuda"),
        lambda x: x.cuda().to("cuda", non_blocking=True),
        [],
    ),
    "a tensor of the host": (as_it_is, lambda x: torch.ones(5).to("cuda"), ["memcpy_h2d"]),
    "a wait": (as_it_is, lambda x: torch.cuda.synchronize(), ["memcpy_d2h"]),
    "a wait for an event": (as_it_is, lambda x: timed(), ["memcpy_d2h"]),
    "a log": (as_it_is, lambda x: logged(), []),
    "numbers in a log": (as_it_is, shown, ["memcpy_d2h", "memcpy_d2h", "reduction", "reduction"]),
}


@pytest.mark.parametrize("what", MOVES)
def test_what_moves_to_the_gpu_is_on_the_device_of_the_capture(what: str) -> None:
    prepare, train, more = MOVES[what]
    found, plain = (
        Counter(predicted(*way)[1]["family"].dropna()) for way in ((prepare, train), ())
    )
    assert sorted((found - plain).elements()) == more and not plain - found


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.filterwarnings("ignore::pipeline.errors.SteptimeWarning")
def test_a_script_for_torchrun_reads_its_variables_and_feeds_its_wrapper_from_the_host(
    devices: int,
) -> None:
    def make_step(config: Any, batch_size: int, device: str) -> Step:
        rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=ranks)
        assert (rank, ranks) == (0, devices) == (dist.get_rank(), dist.get_world_size())
        model = nn.parallel.DistributedDataParallel(net().to(rank), device_ids=[rank])
        batch = (torch.rand(batch_size, 64),)
        forward = lambda x: model(torch.rand(batch_size, 64)).sum()  # noqa: E731
        return Step([model], [batch], forward, None, device, config)

    before = dict(os.environ)
    p = predict("A100", step=make_step, batch_size=64, devices=devices)
    assert p.calls is not None and os.environ == before
    assert (p.calls["family"] == "memcpy_h2d").sum() == 2, "the batch, and the input of the wrapper"


def test_a_second_gpu_of_one_process_is_taken_as_the_same_and_the_answer_says_so() -> None:
    p, _ = predicted(lambda model: model.cuda(0), lambda x: x.to(1))
    assert p.warnings == ("cuda:1: the work of all GPUs of one process is predicted on one GPU",)
    assert predicted(lambda model: model.to(3), lambda x: x.to("cuda:3"))[0].warnings == ()


def test_what_accelerate_prepared_is_predicted() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    model = accelerator.unwrap_model(accelerator.prepare(net()), keep_fp32_wrapper=True)
    optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters()))

    def procedure(batch: Any, optimizers: Any) -> None:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()

    batch = torch.rand(64, 64), torch.randint(10, (64,))
    p = predict("V100", model=model, batch=batch, optimizer=optimizer, procedure=procedure)
    assert p.calls is not None and (p.calls["op"] == "cast").sum() >= 5
    assert (p.calls["phase"] == "optimizer").any()
    assert all(weight.device.type == "cpu" for weight in model.parameters())
