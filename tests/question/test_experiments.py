"""Experiments, as people write them for Hydra: defaults lists, values, sweeps, files of one's own, and damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import SteptimeError
from pipeline.question.compose import choices
from pipeline.question.question import expand


def test_an_experiment_names_a_grid_and_overrides_outrank_it() -> None:
    assert len(expand(["experiment=paper_dlrm", "gpu=V100"])) == 12


def asked_by(file: Path, text: str, *more: str) -> list[tuple[str, str, str, int]]:
    """GPU, model, variant and batch size of each point of an experiment file."""
    file.write_text(text)
    return [
        (point.gpu.name, point.model, point.variant, point.batch_size)
        for point in expand([f"experiment={file}", *more])
    ]


SWEEP = "hydra: {sweeper: {params: {%s}}}\n"
DEFAULTS = (
    "# @package _global_\ndefaults:\n  - override /gpu: T4\n  - override /model: dlrm_small\n  -"
    " _self_\n"
)


@pytest.mark.parametrize(
    ("text", "grid"),
    [
        (DEFAULTS + "batch_size: 64\nmodel: {optimizer: adam}\n", [("T4", "optimizer-adam", 64)]),
        (DEFAULTS + "batch_size: [64, 128]\n", [("T4", "default", 64), ("T4", "default", 128)]),
        (
            DEFAULTS + SWEEP % "batch_size: 'choice(8,16)'",
            [("T4", "default", 8), ("T4", "default", 16)],
        ),
        (DEFAULTS + SWEEP % "gpu: 'glob(P1*0)'", [("P100", "default", 1024)]),
        (
            "defaults: [override /model: dlrm_small, /gpu: [V100, T4]]\n",
            [("V100", "default", 1024), ("T4", "default", 1024)],
        ),
    ],
)
def test_an_experiment_is_written_as_for_hydra(
    text: str, grid: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    asked = asked_by(tmp_path / "mine.yaml", text)
    assert asked == [(gpu, "dlrm_small", variant, size) for gpu, variant, size in grid]


def test_an_experiment_builds_on_another_and_overrides_outrank_both(tmp_path: Path) -> None:
    text = "defaults: [paper_cnn, override /gpu: T4]\nbatch_size: 8\n"
    loop = "copies-pageable_foreach-False_set_to_none-False"  # of the paper
    assert asked_by(tmp_path / "a.yaml", text) == [
        ("T4", name, loop, 8) for name in ("resnet50", "inception_v3")
    ]
    assert asked_by(tmp_path / "a.yaml", text, "model=dcgan", "gpu=P4") == [
        ("P4", "dcgan", loop, 8)
    ]


def test_several_experiments_are_one_grid() -> None:
    names = "paper_cnn", "paper_surfer", "paper_dlrm", "paper_cnn,paper_cnn", "glob(paper_*)"
    *alone, twice, all_of_them = (len(expand([f"experiment={name}", "gpu=V100"])) for name in names)
    assert min(alone) > 3 and all_of_them == sum(alone)
    assert twice == alone[0], "a point of both is asked once"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- gpu: V100", "not the file of an experiment"),
        ("gpu: [V100", "not readable as YAML"),
        ("defaults: [override /gpus: V100]", "write `override /GROUP: NAME`"),
        ("defaults: [mine]", "mine"),
        ("hydra: {sweeper: {params: [gpu]}}", "write KEY: VALUE,VALUE"),
        (SWEEP % "gpu: 'choice('", "cannot read the override"),
        ("model: {atention: fused}", "unknown option"),
    ],
)
def test_an_unreadable_experiment_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SteptimeError) as refused:
        asked_by(tmp_path / "mine.yaml", text)
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", choices("experiment"))
def test_every_experiment_composes_a_grid(name: str) -> None:
    assert expand([f"experiment={name}"])
