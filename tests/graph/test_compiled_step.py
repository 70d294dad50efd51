"""Compiled steps: what PyTorch's compiler would launch, and the step's graph with it."""

import os
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from pipeline.answers.advice import MIN_GAIN, advise
from pipeline.answers.predict import predict
from pipeline.as_on_cuda.compiler_gpu import Target
from pipeline.errors import ConfigError, InputError, SteptimeError
from pipeline.graph import compiled_step
from pipeline.graph.compiled_functions import BACKWARD, FORWARD, spliced
from pipeline.graph.compiled_step import check_machine, explained, launches_of
from pipeline.graph.device_calls import map_calls
from pipeline.graph.launched_nodes import padding
from pipeline.graph.step_store import StepStore
from pipeline.graph.table import Graph, Memory, Node, Tensor, write_nodes
from pipeline.question.compiled_target import as_written
from pipeline.question.question import ask
from pipeline.workloads.user_steps import questions_about
from tests.graph.compiler_cases import CASES, lowered
from tests.graph.real_processes import run_real

X = Tensor((64, 32), "fp32", (32, 1))
HOLDER = "autograd::engine::evaluate_function: "


def node(number: int, name: str, phase: str, parent: int | None = None, **more) -> Node:
    thread = int(phase == "backward")
    return Node(number, name, parent, number, thread, phase, is_top_level=parent is None, **more)


def written(parts: int = 1) -> Graph:
    """A step of two operators and a loss, each with its backward pass, for each part of a batch."""
    nodes: list[Node] = []

    def add(name: str, phase: str, module: str | None = None, inside: bool = True) -> None:
        at = len(nodes)
        nodes.append(node(at, name, phase, module=module))
        if inside:
            nodes.append(node(at + 1, "aten::mul", phase, at, inputs=(X, X), outputs=(X,)))

    for _ in range(parts):
        add("aten::linear", "forward", "Net")
        add("aten::relu", "forward", "Net")
        add("aten::mse_loss", "loss", "loss")
        add(f"{HOLDER}MseLossBackward0", "backward", "loss")
        add(f"{HOLDER}ReluBackward0", "backward", "Net")
        add(f"{HOLDER}torch::autograd::AccumulateGrad", "backward", "Net", inside=False)
    add("aten::_foreach_add_", "optimizer", "optimizer")
    return Graph(write_nodes(nodes), Memory(peak=8))


def launched() -> Graph:
    """The launches of a compiled function: a product and a fused kernel, and a fused kernel in its backward pass."""
    moved = {"read": 8192, "written": 4096, "rows": 1024, "width": 1, "op": "pointwise"}
    fused = {"attributes": {**moved, "dtype": "fp32"}, "module": "Net"}
    nodes = [
        node(0, FORWARD, "forward"),
        node(1, "aten::mm", "forward", 0, inputs=(X, X), outputs=(X,)),
        node(2, "triton::relu", "forward", 0, **fused),
        node(3, BACKWARD, "backward"),
        node(4, "triton::mul", "backward", 3, **fused),
    ]
    return Graph(write_nodes(nodes), computed={"graph_breaks": "0"})


@pytest.mark.parametrize("parts", [1, 2])
def test_launches_take_the_place_of_the_forward_function_and_of_its_gradient(parts: int) -> None:
    graph = spliced(written(parts), launched())
    top = [each.name.removeprefix(HOLDER) for each in graph.nodes() if each.parent_id is None]
    of_part = ["CompiledFunction", "aten::mse_loss", "MseLossBackward0", "CompiledFunctionBackward"]
    assert top == [*[*of_part, "torch::autograd::AccumulateGrad"] * parts, "aten::_foreach_add_"]
    assert graph.memory == Memory(peak=8) and "memory" in graph.warnings[0]
    calls = map_calls(graph)
    fused = calls[calls["family"] == "fused"]
    moved = fused[["bytes_read", "bytes_written", "op", "api"]].values.tolist()
    assert moved == [[8192, 4096, "pointwise", "cuLaunchKernel"]] * 2 * parts


def test_a_step_is_refused_whose_arithmetic_the_compiler_cannot_follow() -> None:
    left = replace(launched(), computed={"graph_breaks": "1"})
    assert spliced(written(), left).computed["compiled"].endswith("1 graph break")
    nodes = [each for each in left.nodes() if each.name != "aten::mm"]
    spliced(written(), replace(left, table=write_nodes(nodes)))  # has no product to lose
    product = replace(written().nodes()[0], name="aten::mm", inputs=(X, X), outputs=(X,))
    eager = Graph(write_nodes([product, *written().nodes()[2:]]))
    with pytest.raises(InputError, match="100% of the arithmetic"):
        spliced(eager, replace(left, table=write_nodes(nodes)))


def test_products_are_padded_where_our_model_says_that_it_pays() -> None:
    """The vocabulary of GPT-2 is odd: its three products are padded on tensor cores, and none in fp32."""

    def pays(dtype: torch.dtype, rows: int = 8192, copied: int = 0, tf32: bool = False) -> bool:
        odd, even = [1, rows, 768, 50257], [1, rows, 768, 50264]
        return padding(Target(8.0, 108), tf32)(dtype, odd, even, (False, True), copied)

    assert pays(torch.bfloat16) and pays(torch.float32, tf32=True) and not pays(torch.float32)
    assert not pays(torch.bfloat16, copied=10**12)  # the copies take longer
    assert not pays(torch.bfloat16, rows=8)  # memory bounds it


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_launches_move_the_bytes_that_pytorchs_tests_pin_on_a_gpu(part: int) -> None:
    """In a process of its own: the compiler is told of a GPU that this machine does not have."""
    found, cases = run_real(partial(lowered, part), 1), CASES[part::2]
    assert [by_compiler for by_compiler, *_ in found["moved"]] == [case.elements for case in cases]
    for case, (_, own, calls) in zip(cases, found["moved"], strict=True):
        again = 100 * (20 in case.shapes)  # 20 lookups in 10 rows read some of them twice
        assert calls or own == case.elements + again  # those of a library's call are in its shapes
    # Triton kernels and library calls in code for a real GPU
    assert found["encoder"] == ([12, 7] if part else [0, 0])
    for by_compiler, in_closed_form in found["optimizers"]:
        assert by_compiler[1:] == in_closed_form[1:]
        assert by_compiler[0] - in_closed_form[0] in (0, 8)  # 8 bytes: counters of two parameters


def test_a_given_module_is_compiled_and_advised_to_be_and_its_loss_is_not() -> None:
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10))
    batch = torch.rand(64, 256), torch.randint(10, (64,))
    options = {"model": net, "batch": batch, "loss": nn.CrossEntropyLoss()}
    advice = advise("A100", same_results=True, compiled=True, **options)
    assert advice.lines[-1].change == "model.compile=true"
    assert advice.lines[-1].on_top.share >= MIN_GAIN
    eager = predict("A100", **options)
    compiled = predict("A100", model__compile=True, **options)
    assert "0 graph breaks" in compiled.asked["compiled"]
    calls = compiled.calls.dropna(subset="family")
    assert {"Sequential.2", "Sequential.0"} <= set(calls["module"])
    assert len(calls) < eager.calls["family"].count()
    assert "loss" in set(calls["phase"]) and "fused" in set(calls["family"])
    assert compiled.memory_bytes == eager.memory_bytes
    assert compiled.host_evidence["assumed"] > 0.1 and "assumed" not in eager.host_evidence


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("gpu=P100 model=resnet50", "Triton needs compute capability 7.0"),
        ("gpu=MI300X model=resnet50", "NVIDIA"),
        ("gpu=A100 model=gpt devices=2", "layers that GPUs share"),
        (
            "gpu=A100 model=dlrm_small model.embedding=fused devices=2 parallel=hybrid",
            "parallel=hybrid",
        ),
        ("gpu=local model=resnet50", "gpu=local measures"),
    ],
)
def test_a_step_that_is_not_compiled_is_refused_in_one_line(words: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ask([*words.split(), "model.compile=true"])


def order_of(calls) -> str:
    """Device calls of a backward pass in the order of the host: kernels of the model (k) and collectives (*), repeats as one."""
    calls = calls[calls["family"].notna() & (calls["phase"] == "backward")]
    marks = calls["family"].map({"fused": "k", "gemm": "k", "collective": "*"}).dropna()
    return "".join(marks[marks != marks.shift()])


class Block(nn.Module):
    """4 MiB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x):
        return torch.relu(self.linear(x)).square()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_gpus_exchange_while_compiled_code_runs(parallel: str) -> None:
    net = nn.Sequential(*(Block() for _ in range(3)))
    options = {
        "batch": (torch.rand(256, 1024), torch.rand(256, 1024)),
        "loss": nn.MSELoss(),
        "devices": 4,
        "parallel": parallel,
        **({"parallel__bucket_cap_mb": 4} if parallel == "ddp" else {}),
    }
    found = []
    for compile_ in (False, True):
        with questions_about("A100", net, {**options, "model__compile": compile_}) as (question,):
            found.append(StepStore().calls(question))
    assert not [part for part in net.modules() if "FSDP" in type(part).__name__]
    eager, compiled = found
    sent = [calls[calls["family"] == "collective"] for calls in found]
    assert sorted(sent[0]["bytes_read"]) == sorted(sent[1]["bytes_read"])
    assert "fused" in set(compiled["family"])
    assert order_of(compiled) == ("k*" * 3 if parallel == "ddp" else order_of(eager))


@pytest.mark.parametrize(
    ("model", "parallel", "why"),
    [
        (lambda: nn.SyncBatchNorm(8), "ddp", "exchanges between GPUs"),
        (lambda: nn.Linear(8, 8), "fsdp", "this one has none"),
    ],
)
def test_what_is_not_compiled_on_several_gpus_is_refused(model, parallel: str, why: str) -> None:
    options = {"batch": (torch.rand(4, 8), torch.rand(4, 8)), "loss": nn.MSELoss(), "devices": 2}
    with pytest.raises(InputError, match=why):
        predict("A100", model=model, parallel=parallel, model__compile=True, **options)


def test_lookups_that_update_their_tables_are_refused() -> None:
    question = ask(["gpu=V100", "model=dlrm_small", "model.embedding=fused", "model.compile=true"])
    with pytest.raises(InputError, match="update their tables"):
        StepStore().graph(question)


def test_a_terminal_is_told_that_the_compiler_is_asked(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(compiled_step, "_write", lambda *_: os._exit(9))
    with pytest.raises(SteptimeError, match="ended with code 9"):
        launches_of({"name": "resnet50", "compiled_for": "8.0-108"}, 1, tmp_path)
    assert "compiling resnet50" in capsys.readouterr().err


def test_another_version_of_pytorch_and_another_system_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(compiled_step, "version", lambda _: "2.12.1+cpu")
    with pytest.raises(InputError, match=r"needs PyTorch 2\.13"):
        check_machine()
    monkeypatch.setattr(compiled_step.sys, "platform", "darwin")
    with pytest.raises(InputError, match="on Linux alone"):
        check_machine()


def test_the_operator_is_named_that_the_compiler_cannot_lower() -> None:
    error = RuntimeError("no lowering\n  target: aten.frobnicate.default\n  args[0]: x")
    assert "(aten.frobnicate.default): RuntimeError: no lowering" in explained(error)


def test_graphs_of_gpus_differ_and_the_memory_is_that_of_the_step_as_written() -> None:
    plain, one, other = (
        ask(["model=resnet50", *words])
        for words in (
            ["gpu=V100"],
            *([gpu, "model.compile=true"] for gpu in ("gpu=V100", "gpu=A100")),
        )
    )
    assert one.workload != other.workload and one.variant == other.variant == "compile-True"
    assert as_written(one.workload) == as_written(other.workload) == dict(plain.workload)
