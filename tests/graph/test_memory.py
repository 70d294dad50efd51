"""The memory of a step: all that is alive at once, temporaries included, against sums by hand, real runs and PyTorch's tracker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.answers.engine import STEPS
from pipeline.answers.memory_fit import largest_batch
from pipeline.as_on_cuda.emulation import run_as_on_cuda
from pipeline.graph.capture import capture, observe
from pipeline.graph.gpu_memory import needed_bytes
from pipeline.graph.memory import LiveMemory, memory_of_workload, with_states
from pipeline.graph.table import Memory
from pipeline.hardware.find_gpu import load_gpu
from pipeline.question.question import ask
from pipeline.workloads import make_step
from pipeline.workloads.training_step import Step, host_empty

GPT = (
    "model=gpt2_large model.layers=1 model.width=128 model.heads=4 model.seq_len=128 batch_size=4"
    " model.vocabulary="
)
SMALL = [
    GPT + "50000",
    "model=resnet50 model.image_size=64 batch_size=8",
    "model=dlrm_small model.rows=5000 batch_size=512",
    "model=bert_large model.layers=1 model.width=128 model.heads=4 model.seq_len=64 batch_size=4",
    "model=transformer model.layers=1 model.width=64 model.heads=4 batch_size=4",
]


def config_of(words: str) -> tuple[dict[str, Any], int]:
    question = ask(["gpu=A100", *words.split()])
    return question.workload.plain(), question.batch_size


def measured_peak(config: dict[str, Any], batch_size: int, folder: Path) -> int:
    """Most bytes that the second step has allocated on this machine's CPU, as PyTorch's profiler sees them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = make_step(config, batch_size, "cpu")
        step.pool = step.pool[:1]
        step.run(0)
        with record_function("measured step"):
            step.run(0)
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    (span,) = (e for e in events if e.get("name") == "measured step" and e.get("ph") == "X")
    memory = [(e["ts"], e["args"]) for e in events if e.get("name") == "[memory]"]
    first = memory[0][1]  # what an earlier profile saw stays in the total
    before = first["Total Allocated"] - first["Bytes"]
    inside = [args for ts, args in memory if 0 <= ts - span["ts"] <= span["dur"]]
    return max(args["Total Allocated"] for args in inside) - before


@pytest.mark.parametrize("words", [*SMALL, f"{SMALL[2]} model.copies=none"])
@pytest.mark.usefixtures("shallow")
def test_the_peak_is_that_of_a_real_run(words: str, tmp_path: Path) -> None:
    config, batch_size = config_of(words)
    memory = capture(config, batch_size).memory
    assert memory_of_workload(config, batch_size) == memory
    measured = measured_peak(config, batch_size, tmp_path)
    assert 0.95 <= measured / memory.peak <= 1.1


def test_the_peak_holds_a_row_and_an_index_of_the_sparse_gradient_for_each_lookup(
    tmp_path: Path,
) -> None:
    """Four tables of 512 x 20 lookups in rows of 64, more than all weights. They count in every moment of the step."""
    config, batch_size = config_of(
        "model=dlrm_small model.rows=5000 model.embedding=sparse batch_size=512"
    )
    memory = capture(config, batch_size).memory
    sparse = 4 * 512 * 20 * (64 * 4 + 8)
    measured = measured_peak(config, batch_size, tmp_path)
    assert 0.9 <= measured / memory.peak <= 1.0 < measured / (memory.peak - sparse)


@pytest.mark.parametrize(
    "words",
    [
        GPT + "1000 model.optimizer=adagrad",
        GPT + "1000 model.dtype=bf16",
        "model=gnmt model.width=64 batch_size=4",
    ],
)
def test_pytorchs_own_tracker_agrees(words: str) -> None:
    from torch.distributed._tools.mem_tracker import MemTracker

    config, batch_size = config_of(words)
    step = make_step(config, batch_size, "meta")
    assert with_states(step, config)
    tracker = MemTracker()
    tracker.track_external(*step.modules, *step.optimizers)
    with run_as_on_cuda(), tracker:
        step.run(0)
    peaks = tracker.get_tracker_snapshot("peak")
    total = next(sizes for device, sizes in peaks.items() if device.type == "meta")["Total"]
    assert memory_of_workload(config, batch_size).peak == pytest.approx(total, rel=0.05)


@pytest.mark.parametrize(
    "optimizer, foreach, states, weights",
    [
        # weights, gradients, two states; the square roots of all second moments at once
        ("adam", True, 2, 2 * (1 + 1 + 2) + 2),
        # a root, that over the bias correction, and the latter of the weight before
        ("adam", False, 2, 2 * (1 + 1 + 2) + 3),
        ("sgd_momentum", True, 1, 2 * (1 + 1 + 1)),
        ("sgd", True, 0, 2 * (1 + 1)),
    ],
)
def test_the_peak_of_an_update_by_hand(
    optimizer: str, foreach: bool, states: int, weights: int
) -> None:
    """Two square layers of 64 without a bias: 16 KiB each; a batch of one sample takes 256 bytes."""
    layers = nn.Sequential(*(nn.Linear(64, 64, bias=False, device="meta") for _ in range(2)))
    config = {"mode": "train", "optimizer": optimizer, "foreach": foreach}
    pool: Any = [(host_empty(1, 64),)]
    step = Step([layers], pool, layers, lambda output, x: output.sum(), "meta", config)
    memory = observe(step, False, step.config)[1]
    rest = memory.peak - weights * 64 * 64 * 4
    assert 0 < rest <= 4 * 256, "the batch, the loss, and single numbers"
    assert memory.optimizer == states * 2 * 64 * 64 * 4


def test_flash_attention_sums_the_gradient_of_the_query_in_fp32() -> None:
    """Batch 2, 4 heads, 256 tokens of 64, in bf16: the output, three gradients, and sums in fp32 with one number per row."""
    q = torch.empty(2, 4, 256, 64, device="meta", dtype=torch.bfloat16)
    inputs = [torch.empty_like(q, requires_grad=True) for _ in range(3)]
    with run_as_on_cuda(), LiveMemory(inputs) as live:
        nn.functional.scaled_dot_product_attention(*inputs).sum().backward()
    assert live.bytes == pytest.approx((2 + 3 * 2 + 4 * (1 + 1 / 64)) * q.numel(), rel=1e-4)


def test_a_trained_lstm_keeps_its_gates_and_cells() -> None:
    """One layer of 32 over 10 tokens of 4 samples: 4 gates, the cell and the output of each, beside the layer's output."""
    lstm = nn.LSTM(16, 32, batch_first=True).to("meta")
    x = torch.empty(4, 10, 16, device="meta")
    alive = []
    for trains in (True, False):
        with (
            run_as_on_cuda(),
            torch.set_grad_enabled(trains),
            LiveMemory([x, *lstm.parameters()]) as live,
        ):
            lstm(x)
        alive.append(live.bytes)
    assert alive[0] - alive[1] == 6 * 4 * 10 * 32 * 4


def test_what_a_process_takes_beside_its_tensors() -> None:
    """On a T4: 40 SMs · 3.7 MB of context, two workspaces of 8,519,680 bytes in training, 22 MiB of segments, 512 B a tensor."""
    t4, h100 = load_gpu("T4"), load_gpu("H100")
    inferred = Memory(blocks=10, peak=10**9)
    trained = replace(inferred, gradients=1)
    fixed = 10**9 + 10 * 512 + 22 * 2**20
    assert needed_bytes(trained, t4) == fixed + 40 * 3_700_000 + 2 * 8_519_680
    assert needed_bytes(inferred, t4) == fixed + 40 * 3_700_000 + 8_519_680
    assert needed_bytes(trained, h100) == fixed + 132 * 3_700_000 + 2 * 2**25
    assert needed_bytes(Memory(), t4) == 0, "the memory of a trace is not known"


@pytest.mark.parametrize(
    "gpu, gib",
    [("T4", 14.6), ("A100-PCIE-40GB", 39.5), ("H100", 79.0)],
)
def test_usable_memory_is_what_pytorch_can_allocate(gpu: str, gib: float) -> None:
    assert load_gpu(gpu).usable_memory_bytes / 2**30 == pytest.approx(gib, rel=0.01)


def test_the_largest_batch_of_inference_is_one_that_a_gpu_holds() -> None:
    found = largest_batch(
        ask(["gpu=H100", "model=bert_large", "model.layers=1", "model.mode=inference"]),
        STEPS.memory_bytes,
    )
    assert found is not None and 100 < found < 10_000  # 13 million where inputs alone count


def test_what_is_alive_by_kind_adds_up_to_the_peak() -> None:
    memory = memory_of_workload(*config_of(SMALL[2]))
    course = memory.course
    assert course is not None
    alive = course.drop(columns="phase").sum(axis=1)
    assert memory.parameters + memory.optimizer + alive.max() == memory.peak
    assert course["gradients"].max() == memory.gradients
    backward = course.loc[course["phase"] == "backward", "activations"]
    assert backward.iloc[0] == memory.saved
    assert course["activations"].iloc[-1] == 4, "the loss"


def test_every_weight_and_input_takes_a_block_of_the_allocator() -> None:
    """512 bytes each of a weight, a bias, the input and the result: `steptime predict` shows them as memory."""
    x, layer = torch.empty(4, 8, device="meta"), nn.Linear(8, 8, device="meta")
    with torch.no_grad(), LiveMemory([x, *layer.parameters()]) as live:
        layer(x)
    assert live.blocks == 4
