"""DLRM's dot products as one kernel: the same numbers as by parts, and less traffic."""

import pytest
import torch
import torch.nn.functional as F

from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.workloads.dlrm_operators import FusedInteraction
from tests.workloads.small import config_of


def test_one_kernel_gives_the_same_products_and_gradients_as_the_parts():
    torch.manual_seed(0)
    inputs = vectors, dense = [
        torch.rand(shape, requires_grad=True) for shape in ((3, 4, 5), (3, 5))
    ]
    row, column = torch.tril_indices(4, 4, -1)
    plain = torch.cat([dense, torch.bmm(vectors, vectors.transpose(1, 2))[:, row, column]], 1)
    found = FusedInteraction.apply(vectors, dense)
    weight = torch.rand(3, 16)
    torch.testing.assert_close(found, F.pad(plain, (0, 5)))
    one, other = (
        torch.autograd.grad((each * weight[:, : each.shape[1]]).sum(), inputs)
        for each in (found, plain)
    )
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "embedding, dtype, size",
    [("fused", "fp32", 4), ("joint_sparse", "fp16", 2), ("dense", "fp16", 2)],
)
def test_one_call_in_each_direction_takes_the_place_of_products_index_and_concatenation(
    embedding, dtype, size
):
    config = config_of("dlrm_ddp", embedding=embedding, dtype=dtype)
    parts, calls = (
        map_calls(capture({**config, "interaction": kind}, 512)) for kind in ("by_parts", "fused")
    )
    one = calls[calls["family"] == "interaction"]
    assert list(one["phase"]) == ["forward", "backward"] and set(one["dtype"]) == {dtype}
    assert (one[["B", "F", "D"]] == [512, 9, 128]).all(axis=None)
    assert list(one["bytes_written"]) == [512 * 168 * size, 512 * (9 + 1) * 128 * size]
    by_parts = {"bmm", "tril_index_forward", "tril_index_backward"}
    assert not set(calls["family"]) & by_parts and by_parts <= set(parts["family"])
    moved, before = (
        each[["bytes_read", "bytes_written"]].sum(axis=None) for each in (calls, parts)
    )
    assert moved < before
