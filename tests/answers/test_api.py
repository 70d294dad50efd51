"""What the Python interface finds for a GPU: its models or an altered card's, a variant, the largest batch."""

from __future__ import annotations

import pandas as pd
import pytest

from pipeline.answers.memory_fit import first_digits
from pipeline.answers.predict import predict
from pipeline.answers.who_answers import kernel_predictor
from pipeline.errors import ConfigError, InputError, UnknownNameError, in_python
from pipeline.hardware.spec import GpuSpec
from pipeline.question.question import expand
from pipeline.show.comparison import compare


def v100(*overrides: str) -> GpuSpec:
    return expand(["gpu=V100", "model=dlrm_default", *overrides])[0].gpu


def test_physics_alone_is_what_kernels_roofline_predicts_where_nothing_is_fitted() -> None:
    predictor = kernel_predictor(v100(), "roofline", None)
    assert not predictor.models
    calls = pd.DataFrame([{"family": "gemm", "op": "linear", "M": 64, "N": 64, "K": 64}])
    assert predictor.predict(calls)["evidence"].tolist() == ["roofline"]
    with pytest.raises(InputError, match="kernels=trees: no such models were fitted for V100"):
        kernel_predictor(v100(), "trees", None)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(6, 6), (99, 99), (949, 940), (10_999, 10_000)],
)
def test_the_largest_batch_is_never_rounded_up(number: int, shown: int) -> None:
    assert first_digits(number) == shown


def test_more_samples_take_no_less_host_time() -> None:
    """The lookups' sort has more launches from 8 samples on; both counts have the host times of the same op."""
    host = [predict("V100", batch_size=size).host_us for size in (2, 4, 8, 16, 64)]
    assert host == sorted(host) and host[-1] < 1.1 * host[0]


def test_a_list_in_python_is_a_sweep_where_the_option_is_no_list() -> None:
    listed = compare(["V100", "T4"], ("dlrm_small", "dlrm_ddp"), batch_size=(64, 128))
    joined = compare("V100,T4", "dlrm_small,dlrm_ddp", batch_size="64,128")
    assert listed.predictions == joined.predictions and len(listed.predictions) == 8


def test_errors_from_python_name_options_as_arguments() -> None:
    """A dotted option of a message becomes an argument with a value that Python reads."""
    with pytest.raises(ConfigError, match='set model__dtype="bf16" or fp16'):
        predict("V100", "bert_large", model__precision="pure")
    with pytest.raises(UnknownNameError, match=r"unknown model__dtype 'fp17'"):
        compare("V100", "bert_large", model__dtype="fp17")
    with pytest.raises(ConfigError, match="did you mean 'model__dtype'"):
        predict(model__dtyp="bf16")
    assert in_python("no file 'model.json.gz'") == "no file 'model.json.gz'"
    assert in_python("give model.wait=true.") == "give model__wait=True."
    assert (
        in_python("see config/model.yaml and my.model.dtype")
        == "see config/model.yaml and my.model.dtype"
    )
