"""Capture of data-parallel steps: what is exchanged, in which order, and what waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipeline.answers.predict import predict
from pipeline.errors import ConfigError, InputError
from pipeline.graph.capture import capture, observe
from pipeline.graph.device_calls import map_calls, stream_waits
from pipeline.graph.table import Graph, Node, write_nodes
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.rank_layout import Layout, stream_of
from pipeline.question.question import ask
from pipeline.question.several_gpus import DdpSettings
from pipeline.workloads.training_step import Step
from tests.graph.gloo_buckets import CASES, exchanged
from tests.graph.real_processes import run_real

GPU = "A100-SXM4-80GB"
WORDS = (
    "model=gpt2_large", "model.layers=1", "model.width=512", "model.heads=4", "model.seq_len=16",
    "model.vocabulary=3000",
)  # fmt: skip


def asked(*words: str) -> tuple[Graph, pd.DataFrame]:
    """The graph and the calls of a shipped workload on two A100."""
    given = dict(word.split("=", 1) for word in (f"gpu={GPU}", "devices=2", *words))
    question = ask([f"{key}={value}" for key, value in given.items()])
    graph = capture(question.workload.plain(), 4)
    return graph, map_calls(graph, question.gpu)


def captured_step(
    make: Callable[[], nn.Module], batch: torch.Tensor, **changed: Any
) -> tuple[list[Node], pd.DataFrame]:
    """The operators and device calls of a step as one of two ranks runs it."""
    from pipeline.as_on_cuda.recording_group import recording_group

    ddp = {**asdict(DdpSettings()), **changed}
    config = {"architecture": "custom", "optimizer": "none", "layout": {"dp": 2}, "ddp": ddp}
    with recording_group(Layout((("dp", 2),))):
        with torch.device("meta"):
            model = make()
        step = Step([model], [(batch,)], lambda x: model(x).sum(), None, "meta", config)
        nodes, memory, *_ = observe(step, False, config)
    return nodes, map_calls(Graph(write_nodes(nodes), memory), load_gpu("A100"))


@pytest.fixture(scope="module")
def real() -> Any:
    """Bytes of the buckets of two real processes, by case, in the order of their exchange."""
    return run_real(exchanged)


@pytest.mark.parametrize("name", CASES)
def test_buckets_are_those_of_two_real_processes(name: str, real: dict[str, list[int]]) -> None:
    make, batch, changed = CASES[name]
    _, calls = captured_step(make, batch(4), **changed)
    reduced = calls[(calls["op"] == "all_reduce") & (calls["dtype"] == "fp32")]
    assert reduced["bytes"].tolist() == real[name]
    assert len(real[name]) > 1, "one bucket proves no order"


@pytest.mark.usefixtures("shallow")
def test_the_exchange_overlaps_the_backward_pass_and_the_optimizer_waits_for_it() -> None:
    graph, calls = asked("model=resnet50")
    waits = stream_waits(graph.table, calls)
    reduced = calls.index[calls["op"] == "all_reduce"]
    assert all(waits[row] == (row - 1,) for row in reduced)  # the kernel that fills the bucket
    backward = calls.query("phase == 'backward' and family.str.startswith('conv2d')").index
    assert reduced[0] < backward.max()  # it starts while there is computation left
    first_after = min(row for row, awaited in waits.items() if awaited == (reduced[-1],))
    update = calls.index[calls["phase"] == "optimizer"].min()
    assert reduced[-1] < first_after <= update
    assert calls.loc[reduced, "bytes"].sum() == graph.memory.gradients
    assert set(calls.loc[calls["family"] == "collective", "stream"]) == {stream_of("dp")}


def test_a_shared_update_scatters_gradients_gathers_weights_and_divides_the_states() -> None:
    (plain, _), (graph, calls) = (
        asked(
            *WORDS,
            "model.seq_len=512",
            "model.optimizer=adam",
            "devices=4",
            f"parallel.zero={zero}",
        )
        for zero in ("false", "true")
    )
    whole, part = plain.memory, graph.memory
    moved = calls[calls["family"] == "collective"].groupby("op")["bytes"].sum()
    assert moved["reduce_scatter"] == moved["all_gather"] == part.gradients
    assert part.optimizer == pytest.approx(whole.optimizer / 4, rel=0.01)
    assert whole.peak - part.peak == pytest.approx(0.75 * whole.optimizer, rel=0.05)
    update = calls[(calls["phase"] == "optimizer") & (calls["op"] == "foreach_sqrt")]
    assert update["bytes_read"].sum() == pytest.approx(part.gradients / 4, rel=0.01)
    (gathered,) = calls.index[calls["op"] == "all_gather"]
    assert gathered > update.index[-1]


@pytest.mark.parametrize("word", ["parallel.compression=bf16", "model.compile=true"])
def test_a_shared_update_refuses_what_it_does_not_exchange(word: str) -> None:
    with pytest.raises(ConfigError, match="resnet50 scatters its gradients as they are"):
        ask(["gpu=A100-SXM4-80GB", "model=resnet50", "devices=2", "parallel.zero=true", word])


def test_buckets_cost_memory_unless_gradients_are_views_of_them() -> None:
    copied, views = (
        asked(*WORDS, f"parallel.gradient_as_bucket_view={each}")[0].memory.peak
        for each in ("false", "true")
    )
    alone = capture(ask([*WORDS]).workload.plain(), 4).memory
    assert copied - alone.peak == pytest.approx(alone.parameters, rel=0.02)
    assert views == pytest.approx(alone.peak, rel=0.12) and views < copied


@pytest.mark.parametrize(
    ("words", "share"),
    [
        (("model=dlrm_small", "parallel.compression=bf16"), 0.5),
        (("model=dlrm_small", "parallel.compression=fp16"), 0.5),
        (("model=timm", "model.name=test_vit", "model.options.depth=1", "model.accumulation=2"), 1),
    ],
)
def test_gradients_are_exchanged_once_and_compressed_to_half(
    words: tuple[str, ...], share: float
) -> None:
    sums = []
    for given in (words[:-1], words):
        _, calls = asked(*given)
        sums.append(calls.loc[calls["op"] == "all_reduce", "bytes"].sum())
    assert sums[1] == share * sums[0] > 0


def test_tables_without_dense_gradients_are_refused_with_what_to_take() -> None:
    with pytest.raises(InputError, match=r"model\.embedding=dense"):
        asked("model=dlrm_small", "model.embedding=fused")


def test_a_users_own_wrapper_is_captured_as_it_is() -> None:
    def step(config: Any, batch_size: int, device: str) -> Step:
        with torch.device(device):
            model = DistributedDataParallel(nn.Linear(700, 700), bucket_cap_mb=1)
        assert torch.distributed.get_world_size() == 16

        def procedure(batch: Any, _: Any) -> None:
            with model.no_sync():
                model(batch[0]).sum().backward()
            model(batch[0]).sum().backward()

        batch = (torch.rand(batch_size, 700),)
        return Step([model], [batch], None, None, device, config, procedure=procedure)

    calls = predict(GPU, step=step, batch_size=8, devices=16).calls
    assert calls is not None
    reduced = calls[calls["op"] == "all_reduce"]
    # once, although there are two backward passes
    assert reduced["bytes_read"].sum() == 4 * 701 * 700


def test_a_module_that_the_user_wraps_exchanges_what_it_exchanges_unwrapped() -> None:
    def exchange_us(model: Any) -> float:
        batch = torch.rand(8, 700), torch.randint(10, (8,))
        step = predict(GPU, model=model, batch=batch, loss=nn.CrossEntropyLoss(), devices=4)
        assert step.several is not None
        return step.several.communication_us

    plain = lambda: nn.Linear(700, 10)  # noqa: E731
    assert exchange_us(lambda: DistributedDataParallel(plain())) == exchange_us(plain) > 0


def test_what_only_one_gpu_is_predicted_with_is_refused_for_several() -> None:
    batch, model = (torch.rand(8, 8), torch.rand(8, 8)), lambda: nn.DataParallel(nn.Linear(8, 8))
    with pytest.raises(InputError, match="leave out devices=, or take DistributedDataParallel"):
        predict("A100", model=model, batch=batch, loss=nn.MSELoss(), devices=4)


def test_norms_of_all_ranks_exchange_their_sums_in_both_directions() -> None:
    def make() -> nn.Module:
        plain = nn.Sequential(nn.Conv2d(3, 24, 3), nn.BatchNorm2d(24), nn.ReLU())
        return nn.SyncBatchNorm.convert_sync_batchnorm(plain)

    nodes, calls = captured_step(make, torch.empty(4, 3, 16, 16))
    gathered = calls.loc[calls["op"] == "all_gather", "bytes"].tolist()
    reduced = calls.loc[calls["op"] == "all_reduce", "bytes"].tolist()
    # 24 means, 24 deviations and a count of each of 2 ranks; then 2 x 24 sums for the gradient; then all weights
    assert gathered == [4 * 2 * 49]
    assert reduced == [4 * 48, 4 * (3 * 24 * 9 + 24 + 24 + 24)]
    image = 4 * 4 * 24 * 14 * 14
    read = calls.set_index(calls["node_id"].map({n.node_id: n.name for n in nodes}))["bytes_read"]
    assert read["aten::batch_norm_stats"] == image
    assert read["aten::batch_norm_backward_reduce"] == 2 * image
    assert not (calls["op"] == "unknown").any()
    copies = (calls["api"] == "cudaMemcpyAsync").sum()
    assert copies >= 3, "PyTorch's masks make the host wait three times"


def test_a_collective_names_the_axis_of_its_group_and_is_awaited_at_its_first_use() -> None:
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    from pipeline.as_on_cuda.functional_exchanges import functional_collectives_recorded
    from pipeline.as_on_cuda.recording_group import recording_group

    def exchange(batch: torch.Tensor) -> torch.Tensor:
        for group in groups:
            dist.all_reduce(batch, group=group)
        summed = functional.all_reduce(batch, "sum", dist.group.WORLD)
        batch.mul(2)
        return summed.add(1).sum()

    layout = Layout((("tp", 2), ("dp", 2)))
    config = {"architecture": "custom", "optimizer": "none", "mode": "inference"}
    with recording_group(layout), functional_collectives_recorded():
        groups = [None, *(dist.new_group(ranks) for ranks in ([0, 1], [0, 2], [0, 3]))]
        step = Step([], [(torch.empty(8, device="meta"),)], exchange, None, "meta", config)
        nodes = observe(step, False, config)[0]
    *reduced, _ = (node.attributes for node in nodes if node.name == "nccl:all_reduce")
    assert [each["axis"] for each in reduced] == ["world", "tp", "dp", ""]
    assert [each["ranks"] for each in reduced] == [4, 2, 2, 2]
    last = [node.name.partition("::")[2] for node in nodes]
    assert last.index("mul") < len(last) - last[::-1].index("wait") - 1 < last.index("add")


def test_a_kernel_behind_two_waits_awaits_both_collectives() -> None:
    names = [
        "aten::mm",
        "nccl:all_reduce",
        "nccl:all_reduce",
        "c10d::wait",
        "c10d::wait",
        "aten::add",
    ]
    said = ["{}", '{"collective": 0}', '{"collective": 1}', '{"awaits": 0}', '{"awaits": 1}', "{}"]
    numbers = range(len(names))
    graph = pd.DataFrame({"order": numbers, "node_id": numbers, "name": names, "attributes": said})
    calls = pd.DataFrame({"node_id": [0, 1, 2, 5], "stream": [0, 1, 2, 0]})
    assert stream_waits(graph, calls)[3] == (1, 2)


class AwaitedTwice(nn.Linear):
    """A layer of a sum over the ranks, for which it waits again where nothing runs any more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        work = torch.distributed.all_reduce(own := x * 1, async_op=True)
        work.wait()
        work.wait()
        return super().forward(own)


def test_a_wait_for_what_was_awaited_is_no_wait():
    nodes, _ = captured_step(lambda: AwaitedTwice(4, 4), torch.rand(4, 4, device="meta"))
    awaited = [node.attributes["awaits"] for node in nodes if node.name == "c10d::wait"]
    assert len(awaited) == len(set(awaited)) == 2, "the sum, and the gradients"
