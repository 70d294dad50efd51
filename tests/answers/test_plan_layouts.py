"""Plans of decoders on several GPUs: every admissible layout is a point, and samples are those of an update of all replicas."""

from __future__ import annotations

from itertools import product

import pytest

from pipeline.answers.fitting_layouts import least_change
from pipeline.answers.plan import make_plan, space_of
from pipeline.answers.plan_results import Limits, Objective
from pipeline.errors import InputError, LayoutError
from pipeline.graph.step_store import StepStore
from pipeline.question.layouts import SAMPLES, TRIED
from pipeline.question.question import Question, expand

SMALL = [
    "gpu=H100", "model=llama", "model.layers=6", "model.width=512", "model.heads=8",
    "model.kv_heads=4", "model.ffn_width=1024", "model.seq_len=256", "model.vocabulary=1024",
    "predict.draws=16",
]  # fmt: skip


def layout(question: Question) -> tuple[int, ...]:
    assert question.ranks is not None
    of = question.ranks.parallel
    return question.ranks.replicas, of.tp, of.pp, of.micro_batches, question.batch_size


def test_a_space_has_every_layout_that_divides_heads_layers_gpus_and_the_global_batch() -> None:
    found = space_of([*SMALL, "devices=24"], Limits(global_batch=48))
    admissible = {
        (24 // (tp * pp), tp, pp, 48 * tp * pp // (24 * size), size)
        for tp, pp, size in product((1, 2, 4), (1, 2, 3, 6), TRIED[SAMPLES])
        if 24 % (tp * pp) == 0 and 48 * tp * pp % (24 * size) == 0
    }
    assert len(found) == len(admissible) and set(map(layout, found)) == admissible
    assert not any(question.notes for question in found)


def test_what_a_space_says_is_kept_and_micro_batches_make_4_million_tokens() -> None:
    found = space_of([*SMALL, "devices=8", "parallel.tp=2", "batch_size=4"], Limits())
    assert {layout(question)[1] for question in found} == {2}
    assert {question.global_batch for question in found} == {4 * 2**20 // 256}
    given = "devices=2 parallel.pp=2 parallel.micro_batches=3 parallel.tp=1 batch_size=1"
    (fixed,) = space_of([*SMALL, *given.split()], Limits())
    assert layout(fixed) == (1, 1, 2, 3, 1)
    alone = [*SMALL, "batch_size=1"]
    assert space_of(alone, Limits()) == expand(alone)


def test_a_grid_leaves_out_layouts_that_do_not_divide_and_says_so() -> None:
    found = expand([*SMALL, "devices=1,2,4", "parallel.tp=1,4"])
    ranks = [(q.devices, q.ranks.parallel.tp if q.ranks else 1) for q in found]
    assert ranks == [(1, 1), (2, 1), (4, 1), (4, 4)]
    assert "left out: devices=" in found[0].notes[0]
    with pytest.raises(LayoutError, match=r"model.kv_heads=4: must be a multiple of parallel.tp=8"):
        expand([*SMALL, "devices=8,16", "parallel.tp=8"])


def test_samples_of_a_plan_are_those_of_all_replicas_and_micro_batches() -> None:
    given = "devices=4 parallel.tp=2 parallel.pp=1 parallel.micro_batches=2,4 batch_size=2"
    words = [text.replace("layers=6", "layers=2") for text in (*SMALL, *given.split())]
    found = make_plan(Objective.samples_per_s, space_of(words, Limits()), Limits())
    for choice in found.contenders:
        p = choice.prediction
        assert choice.us_per_sample == pytest.approx(p.predicted_us / p.global_batch, rel=1e-9)
    assert found.best.as_dict(None)["layout"].startswith("dp ")
    fixed = make_plan(Objective.step, space_of(words, Limits()), Limits(global_batch=8))
    assert {choice.question.global_batch for choice in fixed.contenders} == {8}
    assert fixed.lost == {"batch does not divide the global batch": 1}


@pytest.mark.parametrize(
    "more, change",
    [
        ("", "parallel.tp=2"),
        ("model.heads=4 model.kv_heads=1", "parallel.pp=2"),
        ("model.kv_heads=1 model.layers=5", "model.checkpointing=full"),
    ],
)
def test_the_least_change_that_fits_splits_the_model_before_it_computes_again(
    more: str, change: str
) -> None:
    """In place of a capture: 96 GiB over the ranks of a replica, and half of it with full checkpointing."""

    def needs(question: Question) -> int:
        assert question.ranks is not None
        whole = 96 if question.workload["checkpointing"] == "none" else 48
        return int(whole * 2**30 / question.ranks.parallel.shares)

    given = dict(text.split("=") for text in [*SMALL, "devices=2", *more.split()])
    (question,) = expand([f"{key}={value}" for key, value in given.items()])
    assert least_change(question, needs) == change


def test_a_plan_that_fits_nowhere_says_the_fewest_gpus_that_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def needs(_: StepStore, question: Question, *__: int) -> int:
        return int(1000 * 2**30 / (question.ranks.parallel.shares if question.ranks else 1))

    monkeypatch.setattr(StepStore, "memory_bytes", needs)
    with pytest.raises(
        InputError,
        match=r"does not fit .*; the fewest that fit: devices=24 parallel.tp=4 parallel.pp=6",
    ):
        make_plan(Objective.step, space_of([*SMALL, "devices=8"], Limits()), Limits())
