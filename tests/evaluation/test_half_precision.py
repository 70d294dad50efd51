"""Public bf16 products of newer GPUs: reading the tables, and the shipped models against them."""

import numpy as np
import pandas as pd
import pytest

from evaluation.published import aiconfigurator
from pipeline.answers.gap_models import tensor_core_gemm_model
from pipeline.errors import TableError, UnknownNameError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.model_files import HALF, list_packs

ROWS = pd.DataFrame(
    [
        ("bfloat16", 128, 256, 512, 0.004),
        ("bfloat16", 4096, 8192, 1024, 0.1),
        ("fp8", 1, 2, 5, 3.0),
    ],
    columns=["gemm_dtype", "m", "n", "k", "latency"],
).assign(device="NVIDIA H200")


def table(folder, rows=ROWS, gpu="H200"):
    path = aiconfigurator.table_path(gpu, folder)
    path.parent.mkdir(parents=True)
    rows.to_parquet(path)
    return path


def test_a_table_becomes_samples_in_microseconds_with_n_as_reduction(tmp_path):
    table(tmp_path, pd.concat([ROWS, ROWS[1:]]))
    found = aiconfigurator.read_products("H200", tmp_path)
    # other dtypes and repeats are left out
    assert found["kernel_us"].tolist() == pytest.approx([4.0, 100.0])
    assert found[["M", "N", "K"]].iloc[1].tolist() == [4096, 1024, 8192]
    assert set(found["dtype"]) == {"bf16"}


def test_a_bad_table_is_refused_by_its_name(tmp_path):
    with pytest.raises(TableError, match="no such file"):
        aiconfigurator.read_products("H200", tmp_path)
    path = table(tmp_path, ROWS.drop(columns="latency"))
    with pytest.raises(TableError, match=r"column latency.* is missing"):
        aiconfigurator.read_products("H200", tmp_path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(TableError, match="not a readable parquet file"):
        aiconfigurator.read_products("H200", tmp_path)
    with pytest.raises(UnknownNameError, match="H200"):
        aiconfigurator.read_products("T4", tmp_path)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(aiconfigurator, "data_dir", lambda: None)
    with pytest.raises(TableError, match="pip install"):
        aiconfigurator.read_products("H200")


@pytest.mark.parametrize("gpu", list_packs(HALF))
def test_a_shipped_model_predicts_what_it_was_fitted_on(gpu):
    if aiconfigurator.data_dir() is None:
        pytest.skip("aiconfigurator-core is not installed")
    samples = aiconfigurator.read_products(gpu).sample(1000, random_state=0)
    model = tensor_core_gemm_model(load_gpu(gpu))
    error = np.abs(model.predict(samples).kernel / samples["kernel_us"].to_numpy() - 1.0)
    promised = model.base.description["metrics"]["gmae"]
    assert 0.3 * promised < np.exp(np.mean(np.log(np.maximum(error, 1e-6)))) < 1.2 * promised
