"""What a GPU has not: what runs instead is said, and priced as it runs."""

from __future__ import annotations

from functools import lru_cache

import pytest

from pipeline.answers.engine import engine
from pipeline.prediction import Prediction
from pipeline.question.question import expand


@lru_cache
def found(gpu: str, model: str, dtype: str, *more: str) -> Prediction:
    texts = f"gpu={gpu} model={model} model.dtype={dtype} batch_size=128 predict.draws=100"
    (point,) = expand([*texts.split(), *more])
    return engine(None).predict_one(point).whole()


@pytest.mark.parametrize("gpu", ["V100", "MI250"])
def test_tf32_where_there_is_none_is_fp32_and_says_so(gpu: str) -> None:
    asked, plain = found(gpu, "dlrm_small", "tf32"), found(gpu, "dlrm_small", "fp32")
    assert asked.warnings == (f"{gpu} has no TF32: what runs, and is predicted, is fp32",)
    assert asked.predicted_us == plain.predicted_us and plain.warnings == ()


def test_convolutions_in_emulated_bf16_are_slower_than_in_fp32() -> None:
    emulated, plain = found("V100", "dcgan", "bf16"), found("V100", "dcgan", "fp32")
    assert emulated.predicted_us > 1.3 * plain.predicted_us
    (text,) = emulated.warnings
    assert text.startswith("V100 has no bf16:") and "without cuDNN" in text
    assert not any(name.startswith("conv2d") for name in emulated.families_us)


def test_emulated_products_run_at_the_rate_of_fp32() -> None:
    emulated, plain, half = (
        found("V100", "bert_large", dtype, "model.layers=1") for dtype in ("bf16", "fp32", "fp16")
    )
    assert emulated.families_us["gemm"] == pytest.approx(plain.families_us["gemm"], rel=0.1)
    assert half.families_us["gemm"] < 0.5 * emulated.families_us["gemm"]


def test_recurrent_layers_without_cudnn_are_said_to_be_slower_than_predicted() -> None:
    (text,) = found("V100", "gnmt", "bf16").warnings
    assert "cuDNN's recurrent layers would be slower than predicted" in text


def test_a_gpu_that_has_them_says_nothing() -> None:
    assert (
        found("A100", "dlrm_small", "bf16").warnings
        == found("A100", "dlrm_small", "tf32").warnings
        == ()
    )
