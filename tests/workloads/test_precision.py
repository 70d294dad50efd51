"""`model.precision=pure`: whole models in half precision, captured and run, and what that does to memory and calls."""

import json

import pytest
import torch
from torch import nn

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.question.compose import choices
from pipeline.question.options import workload_values
from pipeline.question.question import expand
from pipeline.workloads import make_step
from pipeline.workloads.training_step import _replace_parameters
from tests.workloads.small import LIKE_ANOTHER, SMALL, config_of, small

pytestmark = pytest.mark.usefixtures("shallow")
PRODUCTS = (
    "gemm",
    "bmm",
    "conv2d_forward",
    "conv2d_backward_data",
    "conv2d_backward_weight",
    "rnn",
)
DLRM = {"rows": 40, "tables": 2, "dim": 8, "bottom_mlp": [4, 8], "top_mlp": [8, 1], "lookups": 3}
CAPTURED = [(name, {}) for name in SMALL if name not in LIKE_ANOTHER] + [
    ("dlrm_ddp", {"embedding": embedding}) for embedding in ("joint_sparse", "sparse", "dense")
]
LOOKUPS = {
    kind: ("dlrm_ddp", {**DLRM, "embedding": kind})
    for kind in ("fused", "joint_sparse", "sparse", "dense")
}
MODELS = ("dcgan", "transformer", "gnmt", "resnet50", "bert_large", "gpt2_large")
RUN = [
    *((name, {}, "bf16") for name in MODELS),
    *((*case, "bf16") for case in LOOKUPS.values()),
    *(("dcgan", {}, "fp16"), ("bert_large", {}, "fp16")),
    *((*LOOKUPS[kind], "fp16") for kind in ("fused", "sparse")),
]
"""Both dtypes go through the same code: fp16, whose roots might vanish, is tried once for each kind of update."""


def pure(name, dtype="bf16", **changes):
    return small(name, dtype=dtype, precision="pure", **changes)


def floating(graph):
    """Bytes by floating dtype of everything that operators of the forward pass take."""
    found = {}
    for node in graph.nodes():
        if node.phase == "forward":
            for tensor in node.tensors():
                if tensor.dtype in ("fp32", "bf16", "fp16"):
                    found[tensor.dtype] = found.get(tensor.dtype, 0) + tensor.bytes
    return found


WITH_MAIN_WEIGHTS = ("gpt", "llama")
"""Decoders whose optimizer holds fp32 copies of half-precision weights."""


@pytest.mark.parametrize(
    "name, changes", [case for case in CAPTURED if case[0] not in WITH_MAIN_WEIGHTS], ids=str
)
def test_a_whole_model_lies_in_half_precision(name, changes):
    graph = capture(pure(name, optimizer="adam", **changes), 4)
    plain = capture(small(name, optimizer="adam", **changes), 4)
    calls = map_calls(graph)
    assert unknown_operators(graph, calls) == {}
    assert set(calls.loc[calls["family"].isin(PRODUCTS), "dtype"]) == {"bf16"}
    half = graph.memory
    full = plain.memory
    assert half.gradients <= 0.6 * full.gradients  # indices of sparse gradients stay
    assert half.optimizer == pytest.approx(0.5 * full.optimizer)
    assert half.parameters == pytest.approx(0.5 * full.parameters, rel=0.02)  # index buffers stay
    assert half.activations < 0.75 * full.activations
    sizes = floating(graph)
    assert sizes["bf16"] > 4 * sizes.get("fp32", 0)  # losses of language models ask for fp32
    copied, before = (
        map_calls(g).query("family == 'memcpy_h2d'")["bytes_written"].sum() for g in (graph, plain)
    )
    assert copied <= before


def test_inputs_cross_the_bus_in_half_precision():
    graph = capture(pure("resnet50"), 4)
    plain = capture(small("resnet50"), 4)
    assert graph.memory.inputs - 4 * 8 == (plain.memory.inputs - 4 * 8) / 2  # labels are int64


def test_nothing_is_cast_as_autocast_does():
    def casts(config):
        calls = map_calls(capture(config, 4))
        return int(((calls["family"] == "elementwise") & (calls["op"] == "cast")).sum())

    for name in ("resnet50", "dlrm_ddp", "gnmt"):
        assert casts(pure(name)) == 0 < casts(small(name, dtype="bf16"))
    assert casts(pure("gpt2_large")) < casts(small("gpt2_large", dtype="bf16")) / 4


def test_autocast_is_what_half_precision_means_by_default():
    said = small("dlrm_ddp", dtype="bf16")
    silent = {key: value for key, value in said.items() if key != "precision"}
    one, other = (map_calls(capture(config, 4)) for config in (said, silent))
    assert one.equals(other)
    assert capture(said, 4).memory.parameters == capture(small("dlrm_ddp"), 4).memory.parameters


@pytest.mark.parametrize("name, changes, dtype", RUN, ids=str)
def test_a_half_precision_step_runs_for_real(name, changes, dtype):
    step = make_step(pure(name, dtype, **changes, optimizer="adam"), 4, "cpu")
    wanted = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    before = [p.detach().clone() for p in step.parameters()]
    step.run(0)
    step.run(1)
    kept = [
        *step.parameters(),
        *step.in_kernel,
        *(p.grad for p in step.parameters() if p.grad is not None),
    ]
    kept += [
        v
        for o in step.optimizers
        for state in o.state.values()
        for k, v in state.items()
        if k != "step" and v is not None
    ]
    kept += [t for m in step.modules for t in getattr(m, "states", [])]
    assert {t.dtype for t in kept if isinstance(t, torch.Tensor) and t.is_floating_point()} == {
        wanted
    }
    assert all(not t.is_floating_point() or t.dtype == wanted for batch in step.pool for t in batch)
    assert any(not torch.equal(a, b) for a, b in zip(before, step.parameters(), strict=True))
    assert all(torch.isfinite(p).all() for p in step.parameters())  # fp16's roots do not vanish


def test_inference_runs_in_half_precision():
    step = make_step(pure("dlrm_ddp", mode="inference", **DLRM), 4, "cpu")
    step.run(0)
    assert step.optimizer_bytes == step.gradient_bytes == 0
    assert {p.dtype for p in step.parameters()} == {torch.bfloat16}


def test_tied_weights_of_fake_models_stay_tied():
    module = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    module["b"].weight = module["a"].weight
    module.register_buffer("index", torch.arange(3))
    module.register_buffer("mask", torch.zeros(3))
    _replace_parameters(module, torch.bfloat16)
    assert module["a"].weight is module["b"].weight
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert (module.index.dtype, module.mask.dtype) == (torch.int64, torch.bfloat16)


@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_pure_needs_a_half_precision(dtype):
    with pytest.raises(
        ConfigError,
        match=rf"model.precision=pure: .*model.dtype={dtype}; set model.dtype=bf16 or fp16",
    ):
        make_step(config_of("dlrm_small", dtype=dtype, precision="pure"), 8, "meta")
    with pytest.raises(ConfigError, match=r"model\.precision=pure"):
        expand(["gpu=V100", "model=dlrm_small", f"model.dtype={dtype}", "model.precision=pure"])
    with pytest.raises(UnknownNameError, match=r"model.precision.*choose one of"):
        make_step(config_of("dlrm_small", dtype="bf16", precision="mixed"), 8, "meta")
    (point,) = expand(["gpu=V100", "model=dlrm_small", "model.dtype=bf16", "model.precision=pure"])
    assert "precision" in json.dumps(point.variant)


def test_every_model_has_the_default():
    halves = {"gpt", "llama"}  # as they are trained on many GPUs
    assert all(
        workload_values(name)["precision"] == ("pure" if name in halves else "autocast")
        for name in choices("model")
    )
