"""Small hand-made tables for figures and accounts; and a headless browser where the machine has one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluation.pages import chromium
from pipeline.answers.engine import engine
from pipeline.question.question import ask
from pipeline.show.figures.gallery import Artifacts
from pipeline.simulate.timeline_page import write_timeline
from pipeline.summary_rows import predictions_of, summary_row
from tests.predictions import predicted
from tests.show.test_roofline import step as rooflined_step
from tests.show.timelines import Event, Step


@pytest.fixture
def summary() -> pd.DataFrame:
    rows = []
    for gpu, factor in (("V100", 1.0), ("P100", 1.7)):
        for batch in (512, 2048):
            active, host = 3.0 * batch * factor, 3300.0
            step = max(active, host) + 200.0
            rows.append(
                summary_row(
                    predicted(
                        step,
                        gpu=gpu,
                        model="dlrm_default",
                        batch_size=batch,
                        active_us=active,
                        host_us=host,
                        p90_us=1.2 * step,
                        memory_bytes=2 << 30,
                        fits=batch < 2048 or gpu == "V100",
                        evidence={"pack": 0.9, "roofline": 0.1},
                        host_evidence={"shared": 1.0},
                        unmodelled_share=0.01,
                        families_us={
                            "gemm": 0.6 * active,
                            "memcpy_h2d": 0.3 * active,
                            "concat": 0.1 * active,
                        },
                        measured_us=1.05 * step if gpu == "V100" else None,
                    )
                )
            )
    return pd.concat(rows, ignore_index=True)


@pytest.fixture
def models(tmp_path: Path) -> tuple[tuple[str, Path], ...]:
    """Folders of two fitted models with their held-out errors."""
    random = np.random.default_rng(0)
    found = []
    for family in ("gemm", "softmax"):
        folder = tmp_path / "results/V100/kernels" / family / "auto"
        folder.mkdir(parents=True)
        facts = {
            "family": family,
            "variant": "average",
            "evidence": "fitted",
            "split": "held-out shapes",
            "samples": 80,
            "held_out": 20,
            "measured_on": ["V100"],
            "metrics": {"gmae": 0.02, "mape": 0.05, "bias": 0.0, "coverage": 0.8},
        }
        (folder / "family.json").write_text(json.dumps(facts))
        measured = random.lognormal(5, 1, 200)
        test = pd.DataFrame(
            {
                "latency_us": measured,
                "predicted_us": measured * random.lognormal(0, 0.05, 200),
                "op": "mm",
            }
        )
        test.to_parquet(folder / "test_predictions.parquet")
        found.append(("V100", folder))
    return tuple(found)


@pytest.fixture
def artifacts(summary: pd.DataFrame) -> Artifacts:
    """Everything that any figure of the product needs."""
    network = summary.head(1).assign(model="resnet50", measured_us=None, error=None)
    faster, slower = predictions_of(summary)[1::2]
    faster = replace(faster, calls=rooflined_step().calls, arithmetic=rooflined_step().arithmetic)
    return Artifacts(
        pd.concat([summary, network], ignore_index=True),
        detailed=(slower, faster),
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    """A page of a running headless Chromium, to move the mouse in, press keys and read values."""
    if chromium.program() is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    with chromium.running(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="session")
def step() -> Step:
    """A small step, predicted from shipped models."""
    question = ask(["gpu=H100", "model=dlrm_small", "batch_size=64", "predict.draws=10"])
    answer = engine(None).predict_one(question)
    assert answer.prediction is not None and answer.timeline is not None
    return Step(answer.prediction, answer.timeline, answer.calls)


@pytest.fixture(scope="session")
def events(step: Step, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The events of its timeline, as a file holds them."""
    path = tmp_path_factory.mktemp("trace") / "timeline.json.gz"
    write_timeline(step.timeline, path, step.calls)
    found: list[Event] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found
