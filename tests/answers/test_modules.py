"""Where the time of a step goes, by module; FLOPs of a model and their share of the GPU's peak."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipeline.answers.arithmetic import model_flops
from pipeline.answers.modules import alone_us
from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.prediction import Prediction
from pipeline.readable import three_digits
from pipeline.summary_rows import predictions_of, summary_row
from steptime import predict
from tests.commands import Steptime

BATCH = 128


class Net(nn.Module):
    """Two equal layers in `body`, and a last one; `again` computes the body's results once more in the backward pass."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        self.last = nn.Linear(64, 10)
        self.again = again

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(
            checkpoint(self.body, x, use_reentrant=False) if self.again else self.body(x)
        )


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(size, 64), torch.randint(10, (size,))


def of_net(gpu: str = "V100", again: bool = False, **more: Any) -> Prediction:
    return predict(
        gpu, model=lambda: Net(again), batch=batch, loss=F.cross_entropy, batch_size=BATCH, **more
    )


@pytest.fixture(scope="module")
def net() -> Prediction:
    return of_net()


BODY, LAST = 2 * BATCH * 64 * 64, 2 * BATCH * 64 * 10
"""FLOPs of one product of a layer. The first layer has two products, as its input has no gradient, the others three."""


def test_a_model_needs_a_product_forward_and_two_backward_of_each_layer(net: Prediction) -> None:
    assert net.arithmetic is not None
    assert net.arithmetic.model_flops == 2 * BODY + 3 * BODY + 3 * LAST
    assert net.mfu == pytest.approx(
        net.arithmetic.model_flops
        / (net.predicted_us * 1e-6)
        / load_gpu("V100").fp32_gflop_per_s
        / 1e9
    )
    assert "of the fp32 peak (MFU)" in dict(net.rows())["arithmetic"]


def test_what_runs_again_is_executed_does_not_count_for_the_model_and_keeps_no_result(
    net: Prediction,
) -> None:
    """The second layer of the body needs the result of the first, the last layer that of the body."""
    again = of_net(again=True)
    assert again.arithmetic is not None and net.arithmetic is not None
    assert again.arithmetic.model_flops == net.arithmetic.model_flops
    plain, more = (p.modules.set_index("module") for p in (net, again))
    assert more["flops"]["Net.body"] > plain["flops"]["Net.body"] == 5 * BODY
    assert more["flops"]["Net.last"] == plain["flops"]["Net.last"] == 3 * LAST
    result = 4 * 64 * BATCH
    modules = ["Net", "Net.body", "Net.body.0", "Net.last"]
    assert plain["kept_bytes"][modules].tolist() == [2 * result, 2 * result, result, 0]
    assert more["kept_bytes"][modules[1:3]].tolist() == [result, 0]


def test_a_row_has_all_that_is_in_it_and_the_outer_rows_add_up_to_the_active_time(
    net: Prediction,
) -> None:
    table = net.modules.set_index("module")
    modules = "inputs Net Net.body Net.body.0 Net.body.1 Net.last loss optimizer"
    assert list(table.index) == modules.split()
    assert list(table["parameters"]) == [0, 2 * 4160 + 650, 2 * 4160, 4160, 4160, 650, 0, 0]
    assert table.loc[table["depth"] == 0, "active_us"].sum() == pytest.approx(net.active_us)
    assert table["flops"]["Net.body"] == table["flops"]["Net.body.0"] + table["flops"]["Net.body.1"]
    assert table["active_us"]["Net"] == pytest.approx(
        table["active_us"][["Net.body", "Net.last"]].sum()
    )
    first = table.loc["Net.body.0"]
    peak = load_gpu("V100").fp32_gflop_per_s * 1e3  # FLOP/µs
    assert first["peak_share"] == pytest.approx(first["flops"] / first["active_us"] / peak)
    assert table["backward_us"]["loss"] > 0 and table["backward_us"]["inputs"] == 0
    assert pd.isna(table["peak_share"]["loss"]) and sum(
        first["evidence"].values()
    ) == pytest.approx(1)


def test_several_gpus_have_a_row_of_what_is_not_hidden_and_inference_has_no_backward() -> None:
    step = of_net("A100-SXM4-80GB", devices=4)
    table = step.modules
    outer = table[table["depth"] == 0].set_index("module")["active_us"]
    assert outer.sum() == pytest.approx(step.active_us) and step.several is not None
    assert outer["communication"] >= step.several.exposed_communication_us * (1 - 1e-9)
    quiet = of_net(model__mode="inference").modules
    assert (quiet["backward_us"] == 0).all() and "optimizer" not in set(quiet["module"])


def test_a_moment_counts_once() -> None:
    """
    a  |------|              4, then 6 is covered until 4
    b     |-----|            2 of 4
    c                |--|    2
    all reduce |--------|    from 3 to 9: alone from 6 to 8
    """
    calls = pd.DataFrame(
        {
            "family": ["gemm", "gemm", "gemm", "collective"],
            "device_start_us": [0.0, 2.0, 8.0, 3.0],
            "device_end_us": [4.0, 6.0, 10.0, 9.0],
        }
    )
    assert list(alone_us(calls)) == [4.0, 2.0, 2.0, 2.0]


def fused(phase: str, causal: bool, flops: float) -> dict[str, Any]:
    said = json.dumps({"causal": causal}, separators=(",", ":"))
    call = {"node_id": 0, "family": "attention", "dtype": "bf16"}
    return {**call, "phase": phase, "flops": flops, "attributes": said}


def test_fused_attention_counts_as_the_products_that_it_stands_for() -> None:
    """Forward: 2 products, of which a causal kernel computes half. Backward: 4, and the kernel computes the scores again."""
    product = 1000.0
    operators = pd.DataFrame({"node_id": [0], "attributes": ["{}"]})
    calls = pd.DataFrame(
        [fused("forward", True, 2 * product / 2), fused("backward", True, 5 * product / 2)]
    )
    assert model_flops(operators, calls) == {"bf16": pytest.approx(6 * product)}
    calls = pd.DataFrame(
        [fused("forward", False, 2 * product), fused("backward", False, 5 * product)]
    )
    assert model_flops(operators, calls) == {"bf16": pytest.approx(6 * product)}


def test_the_arithmetic_is_in_json_and_in_tables_of_answers(net: Prediction) -> None:
    facts = net.as_dict()
    assert (facts["mfu"], facts["mfu_dtype"]) == (net.mfu, "fp32")
    (back,) = predictions_of(summary_row(net))
    assert back.mfu == pytest.approx(net.mfu) and back.tflop_per_s == pytest.approx(net.tflop_per_s)
    with pytest.raises(InputError, match="no modules"):
        _ = back.modules


def test_the_command_prints_modules_as_table_json_and_csv(steptime: Steptime) -> None:
    asked = [
        "predict",
        "gpu=V100",
        "model=dlrm_small",
        "batch_size=64",
        "--by",
        "module",
        "--depth",
        "0",
    ]
    assert "Dlrm" in steptime(*asked)[1]
    rows = pd.read_csv(StringIO(steptime(*asked, "--csv")[1]))
    facts = json.loads(steptime(*asked, "--json")[1])
    assert (
        [row["module"] for row in facts["modules"]]
        == list(rows["module"])
        == ["inputs", "Dlrm", "loss", "optimizer"]
    )
    assert np.isclose(sum(row["active_us"] for row in facts["modules"]), facts["active_us"])


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, ""), (1234.5, "1,234"), (0.9996, "1.00"), (0.00456, "0.0046"), (1e-6, "0")],
)
def test_numbers_have_three_digits_and_no_exponent(number: float, text: str) -> None:
    assert three_digits(number) == text


def test_collectives_share_what_nothing_covers_by_the_time_that_each_lasts() -> None:
    """A kernel until 10, all-reduces from 5 to 15 and from 15 to 45: 35 us are not covered, a quarter and three of them."""
    calls = pd.DataFrame(
        {
            "family": ["gemm", "collective", "collective"],
            "device_start_us": [0.0, 5.0, 15.0],
            "device_end_us": [10.0, 15.0, 45.0],
        }
    )
    assert list(alone_us(calls)) == [10.0, 35 / 4, 35 * 3 / 4]
