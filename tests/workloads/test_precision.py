"""`model.precision=pure`: whole models in half precision, captured and run, and what that does to memory and calls."""

from collections import Counter
from functools import cache

import pytest
import torch

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.question.question import expand
from pipeline.workloads import make_step
from tests.workloads.small import LIKE_ANOTHER, SMALL, config_of, known_calls, small

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
LIKE_NAMED = (*LIKE_ANOTHER, "dlrm_open_source", "opt_13")
CAPTURED = [(name, {}) for name in SMALL if name not in LIKE_NAMED] + [
    ("dlrm_ddp", {"embedding": embedding}) for embedding in ("joint_sparse", "sparse", "dense")
]
LOOKUPS = {
    kind: ("dlrm_ddp", {**DLRM, "embedding": kind})
    for kind in ("fused", "joint_sparse", "sparse", "dense")
}
RUN = [
    *((name, {}, "bf16") for name in ("dcgan", "gnmt", "gpt2_large")),
    *((*LOOKUPS[kind], "bf16") for kind in ("joint_sparse", "dense")),
    ("bert_large", {}, "fp16"),
    *((*LOOKUPS[kind], "fp16") for kind in ("fused", "sparse")),
]
"""Both dtypes go through the same code: fp16, whose roots might vanish, is tried once for each kind of update."""


@cache
def captured(name, **changes):
    """The graph of a small step of Adam in half precision; several tests ask for the same."""
    return capture(small(name, dtype="bf16", optimizer="adam", **changes), 4)


def pure(name, dtype="bf16", **changes):
    return small(name, dtype=dtype, precision="pure", **changes)


def floating(graph):
    """Bytes by dtype of everything that operators of the forward pass take."""
    found = Counter()
    for node in graph.nodes():
        for tensor in node.tensors() if node.phase == "forward" else ():
            found[tensor.dtype] += tensor.bytes
    return found


WITH_MAIN_WEIGHTS = ("gpt", "llama")
"""Decoders whose optimizer holds fp32 copies of half-precision weights."""


@pytest.mark.parametrize(
    "name, changes", [case for case in CAPTURED if case[0] not in WITH_MAIN_WEIGHTS], ids=str
)
def test_a_whole_model_lies_in_half_precision(name, changes):
    graph = captured(name, precision="pure", **changes)
    plain = capture(small(name, optimizer="adam", **changes), 4)
    calls, before = known_calls(graph), map_calls(plain)
    assert set(calls.loc[calls["family"].isin(PRODUCTS), "dtype"]) == {"bf16"}
    half, full = graph.memory, plain.memory
    assert half.gradients <= 0.6 * full.gradients  # indices of sparse gradients stay
    assert half.optimizer == pytest.approx(0.5 * full.optimizer)
    assert half.parameters == pytest.approx(0.5 * full.parameters, rel=0.02)  # index buffers stay
    assert half.activations < 0.75 * full.activations
    sizes = floating(graph)
    assert sizes["bf16"] > 4 * sizes["fp32"]  # losses of language models ask for fp32
    copied, usual = (
        each.loc[each["family"] == "memcpy_h2d", "bytes_written"].sum() for each in (calls, before)
    )
    assert copied <= usual


def test_nothing_is_cast_as_autocast_does():
    for name, share in (("dcgan", 0), ("dlrm_ddp", 0), ("gpt2_large", 0.25)):
        graphs = captured(name), captured(name, precision="pure")
        plain, pure_ = ((map_calls(graph)["op"] == "cast").sum() for graph in graphs)
        assert pure_ <= share * plain and plain > 0


def test_autocast_is_what_half_precision_means_by_default():
    said = small("dlrm_ddp", dtype="bf16")
    silent = {key: value for key, value in said.items() if key != "precision"}
    one, other = (capture(config, 4) for config in (said, silent))
    assert one.table.equals(other.table)
    assert one.memory.parameters == capture(small("dlrm_ddp"), 4).memory.parameters


@pytest.mark.parametrize("name, changes, dtype", RUN, ids=str)
def test_a_half_precision_step_runs_for_real(name, changes, dtype):
    step = make_step(pure(name, dtype, **changes, optimizer="adam"), 4, "cpu")
    before = [p.detach().clone() for p in step.parameters()]
    step.run(0)
    step.run(1)
    kept = [*step.parameters(), *step.in_kernel, *(p.grad for p in step.parameters())]
    for optimizer in step.optimizers:
        kept += [v for state in optimizer.state.values() for k, v in state.items() if k != "step"]
    kept += [t for m in step.modules for t in getattr(m, "states", [])]
    kept += [t for batch in step.pool for t in batch]
    found = {t.dtype for t in kept if isinstance(t, torch.Tensor) and t.is_floating_point()}
    assert found == {{"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]}
    assert not all(map(torch.equal, before, step.parameters()))
    assert all(torch.isfinite(p).all() for p in step.parameters())  # fp16's roots do not vanish


@pytest.mark.parametrize("dtype", ["fp32", "tf32"])
def test_pure_needs_a_half_precision(dtype):
    said = rf"model.precision=pure: .*model.dtype={dtype}; set model.dtype=bf16 or fp16"
    with pytest.raises(ConfigError, match=said):
        make_step(config_of("dlrm_small", dtype=dtype, precision="pure"), 8, "meta")
    with pytest.raises(ConfigError, match=r"model\.precision=pure"):
        expand(["gpu=V100", "model=dlrm_small", f"model.dtype={dtype}", "model.precision=pure"])
    with pytest.raises(UnknownNameError, match=r"model.precision.*choose one of"):
        make_step(config_of("dlrm_small", dtype="bf16", precision="mixed"), 8, "meta")
