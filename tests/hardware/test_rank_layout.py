"""Where the groups of a layout's axes are, and what collectives learn of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.hardware.clusters import load_cluster
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.rank_layout import AXES, WORLD, Groups, Layout, stream_of
from pipeline.kernels.collective_bandwidth import collective_model

MEGATRON = Layout((("tp", 8), ("dp", 4), ("pp", 2)), 8)
"""64 ranks on 8 nodes of 8."""


@pytest.mark.parametrize(
    ("axis", "members", "groups"),
    [
        ("tp", range(8), Groups(8, 1, 1)),
        ("dp", range(0, 32, 8), Groups(4, 4, 8)),
        ("pp", range(0, 64, 32), Groups(2, 2, 8)),
        (WORLD, range(64), Groups(64, 8, 1)),
    ],
)
def test_groups_along_an_axis_span_nodes_and_share_their_nics(
    axis: str, members: range, groups: Groups
) -> None:
    assert MEGATRON.members(axis) == members
    assert MEGATRON.groups(axis) == groups
    assert MEGATRON.axis_of(list(members)) == axis


def test_axes_of_equal_size_are_told_apart_by_their_ranks() -> None:
    layout = Layout((("tp", 2), ("dp", 2)))
    assert (layout.axis_of([0, 1]), layout.axis_of([0, 2]), layout.axis_of([0, 3])) == (
        "tp",
        "dp",
        "",
    )
    assert len({stream_of(axis) for axis in (*AXES, "")}) == len(AXES) + 1


def test_groups_that_share_nics_exchange_more_slowly() -> None:
    model = collective_model(load_gpu("A100"), load_cluster("pcie4"))
    assert model is not None
    call = {"family": "collective", "op": "all_reduce", "dtype": "fp32", "bytes": 1 << 30}
    calls = pd.DataFrame([call | {"ranks": 4, "nodes": 4, "node_groups": n} for n in (1, 2, 8)])
    alone, two, eight = model.predict(calls).kernel
    assert alone <= two < eight and np.isfinite(eight)
