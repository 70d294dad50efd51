"""A question that comes again is read from the cache, unless something that its answer depends on has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.answers import known_answers
from pipeline.answers.engine import engine
from pipeline.answers.known_answers import answer_key, known_prediction
from pipeline.question.question import ask

POINT = ("gpu=V100", "model=dlrm_small")


def test_an_answer_that_is_read_is_the_one_that_was_computed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path))
    questions = [
        ask([*POINT, "price.V100=2", "electricity=0.3", "samples=1000"]),
        ask([*POINT, "devices=2", "parallel=ddp"]),
    ]
    computed = [known_prediction(question) for question in questions]
    monkeypatch.delattr(known_answers, "engine")  # nothing is computed
    assert [known_prediction(question) for question in questions] == computed
    monkeypatch.undo()
    whole = [engine().predict_one(question).whole() for question in questions]
    assert [each.as_dict() for each in whole] == [each.as_dict() for each in computed]


def test_an_answer_is_known_by_all_that_it_depends_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    question, key = ask(POINT), answer_key(ask(POINT), tmp_path)
    assert answer_key(question, tmp_path) == key

    def other() -> str:
        return answer_key(question, tmp_path)

    keys = [key, answer_key(ask([*POINT, "host=typical-2020"]), tmp_path)]
    keys.append(answer_key(replace(question, electricity=0.3), tmp_path))
    fitted = tmp_path / "V100/kernels/gemm/auto/family.json"
    fitted.parent.mkdir(parents=True)
    for text in ("{}", "{ }"):
        fitted.write_text(text)
        keys.append(other())
    for folder in ("packs_dir", "measurements_dir", "config_dir"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("")
        monkeypatch.setattr(known_answers, folder, lambda folder=folder: tmp_path / folder)
        keys.append(other())
    for name in ("module_digest", "graph_key"):
        monkeypatch.setattr(known_answers, name, lambda *given: "changed")
        keys.append(other())
    monkeypatch.setattr(known_answers, "installed", lambda: ["numpy-9"])
    assert len({*keys, other()}) == len(keys) + 1
