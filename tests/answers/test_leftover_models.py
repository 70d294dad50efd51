"""Models that an earlier run left under `results/` answer only while the samples behind them are at hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.answers import who_answers
from pipeline.answers.engine import engine
from pipeline.answers.who_answers import Source, available_models, shipped_models
from pipeline.flow import Flow
from pipeline.model_files import DIGEST_KEY, write_json
from pipeline.paths import Artifacts, packs_dir
from pipeline.question.question import expand

POINT = expand(["gpu=V100", "model=dlrm_ddp", "batch_size=64"])[0]
pytestmark = pytest.mark.skipif(
    not (packs_dir() / "V100" / "kernels").is_dir(), reason="no shipped pack of the V100"
)


@pytest.fixture
def leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results with a gemm model that answers otherwise than the pack: the T4's, in the name of the V100."""
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    folder = Path(Artifacts(str(tmp_path)).kernels("V100")) / "gemm" / "auto"
    shutil.copytree(packs_dir() / "T4" / "kernels" / "gemm", folder)
    description = folder / "family.json"
    text = description.read_text().replace('"pack"', '"fitted"')
    values = json.loads(text.replace('"gpu": "T4"', '"gpu": "V100"'))
    values.pop(DIGEST_KEY, None)
    write_json(description, values)
    return tmp_path


def from_public_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who_answers, "kernel_source", lambda gpu: Source.PUBLIC)


def test_without_their_samples_they_are_not_used(leftover: Path) -> None:
    with_results, without = (
        engine(leftover).predict_one(POINT).whole(),
        engine(None).predict_one(POINT).whole(),
    )
    assert with_results.as_dict() == without.as_dict()
    assert "fitted" not in with_results.evidence
    assert with_results.models_from == (str(packs_dir() / "V100"),)


def test_with_their_samples_they_answer_and_the_prediction_names_their_folder(
    leftover: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_public_samples(monkeypatch)
    found = engine(leftover).predict_one(POINT).whole()
    assert found.evidence["fitted"] > 0
    assert found.active_us != engine(None).predict_one(POINT).whole().active_us
    assert found.models_from == (
        Artifacts(str(leftover)).kernels("V100"),
        str(packs_dir() / "V100"),
    )


def test_python_and_the_rules_declare_the_same_models_and_no_shipped_file(
    leftover: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: with public data at hand, a prediction also ran the rule that rewrites the GPU's pack."""
    flow = Flow((POINT,), Artifacts(str(leftover)))
    place = SimpleNamespace(
        gpu=POINT.gpu.name, model=POINT.model, variant=POINT.variant, batch=str(POINT.batch_size)
    )
    here = [str(path) for path in available_models("V100", "auto", leftover)]
    assert flow.models_of_point(place) == []
    assert here == [str(path) for path in shipped_models("V100")]
    from_public_samples(monkeypatch)
    monkeypatch.setattr("pipeline.flow.kernel_source", lambda gpu: Source.PUBLIC)
    inputs = flow.models_of_point(place)
    assert inputs and not [path for path in inputs if Path(path).is_relative_to(packs_dir())]
    declared = [*inputs, *map(str, shipped_models(place.gpu))]
    assert {str(path) for path in available_models("V100", "auto", leftover)} <= set(declared)
