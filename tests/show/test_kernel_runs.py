"""What MLflow says of kernel models after several fits: each fit once, and one champion, whose run is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from pipeline.errors import TableError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import fit_family as fitter
from pipeline.kernels import fit_gpu as fitting
from pipeline.kernels.family_model import FittedModel
from pipeline.model_files import list_model_folders
from pipeline.paths import packs_dir
from pipeline.show.kernel_runs import fit_and_track, log_shipped_models
from pipeline.show.tracking import KERNEL_MODELS

ERRORS = {"auto": 0.02, "trees": 0.03, "roofline": 0.4}


def samples(gpu: str, rows: int) -> pd.DataFrame:
    sizes = np.random.default_rng(0).integers(4, 2000, (rows, 2))
    return pd.DataFrame(
        {
            "gpu": gpu,
            "family": "softmax",
            "op": "softmax",
            "phase": "forward",
            "dtype": "fp32",
            "latency_us": 20 + 8.0 * sizes.prod(axis=1) / 700e3,
            "source": "drawn",
            "campaign_id": "drawn",
            "B": sizes[:, 0],
            "H": sizes[:, 1],
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fits")


@pytest.fixture
def fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., MlflowClient]:
    real = fitting.fit_gpu

    def quick(
        table: pd.DataFrame, gpu: Any, out: str, *, variants: Any, seed: int, on_fit: Any, **_: Any
    ) -> Any:
        """Physics in the name of every variant, with errors as in `ERRORS`, or all physics where samples are few."""
        fitted = real(table, gpu, out, variants=("roofline",), seed=seed)["softmax"]
        names = variants if len(table) >= fitter.MIN_TREE_SAMPLES else ["roofline"] * len(variants)
        fits = [
            replace(
                fitted,
                metrics={**fitted.metrics, "gmae": ERRORS[name]},
                parameters={**fitted.parameters, "variant": name},
            )
            for name in names
        ]
        for each in fits:
            on_fit(each)
        return {"softmax": min(fits, key=lambda each: each.metrics["gmae"])}

    monkeypatch.setattr("pipeline.show.kernel_runs.fit_gpu", quick)

    def run(table: pd.DataFrame, *variants: str, seed: int = 0) -> MlflowClient:
        gpu = str(table["gpu"].iloc[0])
        settings = {"name": variants[0], "variants": variants, "seed": seed}
        fit_and_track(
            table, gpu, settings, [folder / gpu / "softmax" / "fitted"], folder / "mlflow", {}
        )
        return MlflowClient(f"sqlite:///{folder}/mlflow/mlflow.db")

    return run


def runs(client: MlflowClient, gpu: str) -> dict[str, Any]:
    owner = client.get_experiment_by_name(KERNEL_MODELS).experiment_id
    return {run.info.run_name: run for run in client.search_runs([owner], f"tags.gpu = '{gpu}'")}


def champion(client: MlflowClient, gpu: str) -> str:
    """Name of the run that the alias leads to, which must be there and alone carry the tag."""
    run = client.get_run(client.get_model_version_by_alias(f"{gpu}-softmax", "champion").run_id)
    assert run.info.lifecycle_stage == "active"
    tagged = [
        name for name, each in runs(client, gpu).items() if each.data.tags["champion"] == "yes"
    ]
    assert tagged == [run.info.run_name]
    return str(run.info.run_name)


def test_the_champion_is_the_best_of_all_fits_whichever_came_last(fit: Callable[..., Any]) -> None:
    table = samples("V100", 40)
    fit(table, "auto", "roofline")
    assert champion(fit(table, "trees"), "V100") == "V100 softmax auto"
    client = fit(table, "auto", "roofline")  # the same once more supersedes its earlier runs
    assert champion(client, "V100") == "V100 softmax auto"
    measured = runs(client, "V100")["V100 softmax trees"].data.metrics
    assert measured["gmae_percent"] == pytest.approx(100 * ERRORS["trees"])
    assert sorted(runs(client, "V100")) == [
        "V100 softmax auto",
        "V100 softmax roofline",
        "V100 softmax trees",
    ]


def test_a_champion_and_a_losing_variant_load_from_mlflow_and_predict_a_table(
    fit: Callable[..., Any], folder: Path
) -> None:
    client = fit(samples("L4", 40), "auto", "trees")
    calls = pd.DataFrame(
        {"op": ["softmax", "softmax"], "B": [512, 64], "H": [1000, 30]}, index=[7, 3]
    )
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow/mlflow.db")
    champion = mlflow.pyfunc.load_model("models:/L4-softmax@champion").predict(calls)
    fitted = FittedModel.load(folder / "L4" / "softmax" / "fitted", load_gpu("L4")).predict(calls)
    assert champion.index.tolist() == [7, 3]
    assert champion["predicted_us"].tolist() == pytest.approx(fitted.latency)
    assert champion["p10_us"].tolist() == pytest.approx(fitted.latency_p10)
    loser = mlflow.pyfunc.load_model(
        f"runs:/{runs(client, 'L4')['L4 softmax trees'].info.run_id}/model"
    )
    assert loser.predict(calls)["predicted_us"].gt(0).all()
    with pytest.raises(TableError, match="rows of gemm, but the model predicts softmax"):
        loser.predict(pd.DataFrame({"op": ["linear"], "M": [8], "N": [8], "K": [8]}))


def test_only_the_named_families_are_fitted(tmp_path: Path) -> None:
    table = pd.concat(
        [samples("P100", 12), samples("P100", 12).assign(family="layer_norm", op="layer_norm")]
    )
    settings = {"variants": ("roofline",), "seed": 0, "families": ["layer_norm"]}
    folders = [tmp_path / "P100" / name / "auto" for name in ("softmax", "layer_norm")]
    fit_and_track(table, "P100", settings, folders, tmp_path / "mlflow", {})
    assert [(path / "family.json").is_file() for path in folders] == [False, True]
    assert "kernels.families leaves it out" in (folders[0] / "no_samples.txt").read_text()


def test_shipped_models_are_champions_until_a_model_of_that_name_is_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = [packs_dir() / "V100/kernels/softmax", packs_dir() / "half/H100/kernels/gemm"]
    assert set(shipped) < set(list_model_folders())
    monkeypatch.setattr("pipeline.show.kernel_runs.list_model_folders", lambda: shipped)
    assert [log_shipped_models(tmp_path) for _ in range(2)] == [2, 0]  # once
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = runs(client, "V100").values()
    stored = json.loads((shipped[0] / "metrics.json").read_text())
    assert run.data.metrics["gmae_percent"] == pytest.approx(100 * stored["gmae"], rel=1e-3)
    assert champion(client, "V100") == "V100 softmax shipped"
    assert client.get_model_version_by_alias("H100-gemm-bf16", "champion")
    settings = {"variants": ("roofline",), "seed": 0}
    models = [tmp_path / "V100" / "softmax" / "fitted"]
    fit_and_track(samples("V100", 12), "V100", settings, models, tmp_path, {})
    assert champion(client, "V100") == "V100 softmax roofline"
    assert log_shipped_models(tmp_path) == 0 and champion(client, "V100") == "V100 softmax roofline"
