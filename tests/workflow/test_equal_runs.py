"""The same grid leaves the same bytes, whatever the order of its points, the runs that came before and the cores."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

import pytest

from tests.workflow.test_main_job import snakemake

GRID = {"gpu": ["V100", "P100"], "batch_size": ["64", "128"], "overrides": ["sgd", "adam"]}
POINTS = 8
NOT_COMPARED = ("logs", "mlflow")
"""Folders with times of day and durations, which are no results."""


def config_of(values: dict[str, list[str]]) -> list[str]:
    """Snakemake's `--config` values of a grid, in the order of the lists."""
    texts = {name: ",".join(listed) for name, listed in values.items()}
    return [
        "model=dlrm_small",
        f"gpu={texts['gpu']}",
        f"batch_size={texts['batch_size']}",
        f"overrides=predict.draws=64 model.optimizer={texts['overrides']}",
    ]


def shuffled(draw: Random, smallest: int) -> dict[str, list[str]]:
    """The values of each axis in a random order, of each at least so many."""
    return {
        name: draw.sample(values, draw.randint(min(smallest, len(values)), len(values)))
        for name, values in GRID.items()
    }


def digests(folder: Path) -> dict[str, str]:
    """Digest of each artifact, by its path."""
    files = [path for path in sorted((folder / "results").rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not set(path.parts) & set(NOT_COMPARED)
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests after one run of the whole grid, with its report."""
    folder = tmp_path_factory.mktemp("reference")
    run = snakemake("--config", *config_of(GRID), "--", "report", folder=folder)
    assert run.returncode == 0, run.stderr[-3000:]
    made = digests(folder)
    assert sum(name.endswith("prediction.parquet") for name in made) == POINTS
    return made


@pytest.mark.nightly  # 20 runs of a grid
@pytest.mark.parametrize("seed", range(20))
def test_a_grid_in_any_order_and_on_any_cores_leaves_equal_bytes(
    seed: int, reference: dict[str, str], tmp_path: Path
) -> None:
    draw = Random(seed)
    for _ in range(draw.randint(0, 2)):  # a part of the grid was asked before
        part = snakemake(
            "--cores",
            str(draw.randint(1, 4)),
            "--config",
            *config_of(shuffled(draw, 1)),
            folder=tmp_path,
        )
        assert part.returncode == 0, part.stderr[-3000:]
    before = set(digests(tmp_path)) - set(reference)
    config = ["--config", *config_of(shuffled(draw, 2)), "--", "report"]
    run = snakemake("--cores", str(draw.randint(1, 4)), *config, folder=tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]
    made = {name: digest for name, digest in digests(tmp_path).items() if name not in before}
    assert {
        name for name in reference.keys() | made.keys() if reference.get(name) != made.get(name)
    } == set()
    again = snakemake("--cores", str(draw.randint(1, 4)), *config, folder=tmp_path)
    assert again.returncode == 0 and "Nothing to be done" in again.stderr + again.stdout
