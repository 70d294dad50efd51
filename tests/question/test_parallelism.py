"""Questions about several GPUs: how they are asked, what they are called, and what is refused."""

from __future__ import annotations

import pytest

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.hardware.clusters import usual_cluster
from pipeline.question.question import Question, ask, expand


def test_one_gpu_is_asked_as_before() -> None:
    question = ask(["gpu=A100", "model=resnet50"])
    assert question.ranks is None and (question.devices, question.nodes) == (1, 1)
    assert "ddp" not in question.workload
    assert ask(["gpu=A100", "model=resnet50", "devices=1"]) == question


@pytest.mark.parametrize("devices, nodes", [("8", 1), ("9 nodes=9", 9), ("24", 3)])
def test_nodes_are_as_few_as_hold_the_gpus(devices: str, nodes: int) -> None:
    question = ask(["model=resnet50", "gpu=A100-SXM4-80GB", *f"devices={devices}".split()])
    assert question.nodes == nodes and question.ranks is not None
    assert question.ranks.cluster == usual_cluster(question.gpu)


def test_a_variant_names_what_differs_and_a_question_survives_snakemakes_params() -> None:
    question = ask(
        [
            "gpu=A100-SXM4-80GB",
            "model=resnet50",
            "devices=4",
            "ddp.bucket_cap_mb=50",
        ]
    )
    assert question.variant == "devices-4_parallel.bucket_cap_mb-50"
    assert set(question.overrides) == {"devices=4", "parallel.bucket_cap_mb=50"}
    assert question.notes[0] == "ddp.bucket_cap_mb is called parallel.bucket_cap_mb"
    again = Question.of(question.plain())
    assert again.ranks == question.ranks and again.workload == question.workload


def test_all_numbers_of_gpus_share_one_captured_step() -> None:
    questions = expand(["gpu=A100-SXM4-80GB", "model=resnet50", "devices=2,8,64"])
    assert len({question.workload for question in questions}) == 1
    assert len({question.model_variant for question in questions}) == 1
    assert len({question.variant for question in questions}) == 3


def test_shards_are_an_axis_and_their_replicas_share_a_capture() -> None:
    asked = ["gpu=A100-SXM4-80GB", "model=resnet50", "devices=16,32", "parallel=fsdp,ddp"]
    questions = expand(asked)
    one = next(each for each in questions if "parallel=fsdp" in each.overrides)
    assert one.ranks is not None and one.ranks.layout.sizes == (("fsdp", 16),)
    assert len({question.variant for question in questions}) == 4
    hybrid = expand([*asked[:3], "parallel=fsdp", "parallel.shard_size=8"])
    assert [q.ranks.layout.groups("dp").ranks for q in hybrid if q.ranks] == [2, 4]
    assert len({question.workload for question in hybrid}) == 1


def test_options_of_the_exchange_make_no_second_question_about_one_gpu() -> None:
    questions = expand(
        ["gpu=A100", "model=resnet50", "devices=1,2", "parallel.compression=none,fp16"]
    )
    assert [question.devices for question in questions] == [1, 2, 2]
    (alone,) = expand(["gpu=A100", "model=resnet50", "parallel.compression=fp16"])
    assert "does not read parallel" in alone.notes[-1]


@pytest.mark.parametrize(
    "given, says",
    [
        ("devices=0", "devices=0: give a whole number from 1"),
        ("devices=9", "give a multiple"),
        ("devices=16 nodes=1", "a node of dgx-a100 holds 8 GPUs; take nodes=2"),
        ("devices=4 nodes=3", "devices=4 nodes=3: each node holds the same number"),
        (
            "devices=3 cluster=pair-rtx",
            "devices=3: a node of pair-rtx holds 2 GPUs, so 2 are needed",
        ),
        ("devices=4 parallel=hybrid", "resnet50 has no embedding tables to spread"),
        ("devices=4 parallel=experts", "choose one of ddp, fsdp, hybrid"),
        ("devices=4 parallel=fsdp parallel.tp=2", "unknown option 'parallel.tp' of parallel=fsdp"),
        ("devices=4 parallel=fsdp parallel.shard_size=3", "give a divisor of devices=4 above 1"),
        ("devices=4 parallel=fsdp parallel.mixed_precision=fp8", "choose one of bf16, fp16, none"),
        ("devices=4 model.mode=inference", "multiply the throughput of one"),
        ("devices=4 global_batch=256", "the global batch divided by devices"),
        ("devices=4 parallel.bucket_mb=1", "bucket_cap_mb"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(given: str, says: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError)) as raised:
        ask(["gpu=A100-SXM4-80GB", "model=resnet50", *given.split()])
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_several_devices_of_this_machine_are_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"^gpu=local devices=2: .*; name a GPU, such as gpu=A100$"
    ):
        ask(["gpu=local", "model=resnet50", "devices=2"])


def test_a_gpu_without_nvlink_is_not_put_behind_an_nvswitch() -> None:
    with pytest.raises(ConfigError, match="not RTX4090; take cluster=pcie4"):
        ask(["gpu=RTX4090", "model=resnet50", "devices=2", "cluster=dgx-a100"])
