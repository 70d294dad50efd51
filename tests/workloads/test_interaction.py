"""DLRM's dot products as one kernel: the same numbers as by parts, and less traffic."""

import pytest
import torch

from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.workloads import make_step
from pipeline.workloads.dlrm_operators import FusedInteraction, interaction_width
from tests.workloads.small import config_of


def by_parts(vectors, dense):
    row, column = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1)
    return torch.cat([dense, torch.bmm(vectors, vectors.transpose(1, 2))[:, row, column]], 1)


def test_one_kernel_gives_the_same_products_and_gradients_as_the_parts():
    torch.manual_seed(0)
    vectors = torch.rand(3, 4, 5, requires_grad=True)
    dense = torch.rand(3, 5, requires_grad=True)
    plain = by_parts(vectors, dense)
    found = FusedInteraction.apply(vectors, dense)
    assert found.shape == (3, interaction_width(4, 5)) == (3, 16)
    torch.testing.assert_close(found[:, :11], plain)
    assert (found[:, 11:] == 0).all()
    weight = torch.rand(3, 16)
    expected = torch.autograd.grad((plain * weight[:, :11]).sum(), [vectors, dense])
    torch.testing.assert_close(
        torch.autograd.grad((found * weight).sum(), [vectors, dense]), expected
    )


@pytest.mark.parametrize("features, dim, columns", [(27, 128, 480), (9, 128, 168), (5, 6, 16)])
def test_the_joined_row_is_as_wide_as_tensor_cores_like_it(features, dim, columns):
    assert interaction_width(features, dim) == columns


@pytest.mark.parametrize("embedding", ["fused", "joint_sparse", "sparse", "dense"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_one_call_in_each_direction_takes_the_place_of_products_index_and_concatenation(
    embedding, dtype
):
    config = config_of("dlrm_ddp", embedding=embedding, dtype=dtype)
    parts = map_calls(capture(config, 512))
    calls = map_calls(capture({**config, "interaction": "fused"}, 512))
    one = calls[calls["family"] == "interaction"]
    assert list(one["phase"]) == ["forward", "backward"] and set(one["dtype"]) == {dtype}
    assert (one[["B", "F", "D"]] == [512, 9, 128]).all(axis=None)
    size = 4 if dtype == "fp32" else 2
    assert list(one["bytes_written"]) == [512 * 168 * size, 512 * (9 + 1) * 128 * size]
    assert not set(calls["family"]) & {"bmm", "tril_index_forward", "tril_index_backward"}
    assert {"bmm", "tril_index_forward", "tril_index_backward"} <= set(parts["family"])
    moved = [(found["bytes_read"] + found["bytes_written"]).sum() for found in (calls, parts)]
    assert moved[0] < moved[1]


def test_a_step_with_one_kernel_runs_for_real():
    small = config_of(
        "dlrm_ddp", rows=30, tables=2, dim=8, bottom_mlp=[4, 8], top_mlp=[8, 1], lookups=3
    )
    step = make_step({**small, "interaction": "fused"}, 8, "cpu")
    step.run(0)
    assert all(
        p.grad is not None and torch.isfinite(p.grad).all()
        for p in step.modules[0].top.parameters()
    )
