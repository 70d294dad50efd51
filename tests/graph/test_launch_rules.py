"""Launches beside main kernels: what traces and PyTorch's source say of single operators."""

import pytest

from pipeline.graph.sizes.library_launches import splits_product
from pipeline.graph.sizes.reduction import blocks_share_outputs

A100, V100, RTX2080TI = (108, 8.0), (80, 7.0), (68, 7.5)


@pytest.mark.parametrize(
    "outputs, inputs, fastest, across",
    [  # sums over the first dimension, over all elements, over the last dimension; a100x8_dlrm shows each
        (512, 1024, False, True),
        (128, 1024, False, True),
        (96, 1024, False, False),
        (1705, 1024, False, False),
        (15, 98304, False, True),
        (1, 1007616, True, True),
        (1, 1024, True, False),
        (979, 1024, True, False),
    ],
)
def test_blocks_share_outputs_as_in_a_trace(outputs, inputs, fastest, across):
    assert blocks_share_outputs(outputs, inputs, fastest, 108) == across


@pytest.mark.parametrize(
    "m, n, k, turned, gpu, split",
    [
        (512, 1024, 1024, True, RTX2080TI, True),  # rtx2080ti_linear: addmm
        (1024, 512, 1024, False, RTX2080TI, False),  # its weight gradient
        (128, 512, 1000, True, RTX2080TI, True),  # rtx2080ti_resnet
        (32, 2048, 1000, True, V100, True),  # v100_ddp
        (16, 512, 512, True, V100, True),  # v100x8_dlrm
        (16, 256, 128, True, V100, False),
        (1024, 1024, 1024, False, A100, True),  # a100_event_sync
        (1024, 1024, 2048, True, A100, False),  # a100x8_dlrm
        (1024, 1024, 128, True, A100, True),
    ],
)
def test_products_are_split_where_traces_show_it(m, n, k, turned, gpu, split):
    assert splits_product(m, n, k, turned, *gpu) == split
