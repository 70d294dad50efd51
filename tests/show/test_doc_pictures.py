"""Pictures of the documents say what is predicted today: `make pictures` makes those anew that do not."""

from __future__ import annotations

import json
import re

import pytest

from evaluation.pages import chromium
from evaluation.pages.doc_pictures import SAYS, TIMELINE, figures, texts_of, timeline_digest
from pipeline.paths import project_dir

IMAGES = project_dir() / "docs" / "images"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
SAME = 0.02
"""Largest relative difference between a number in a picture and today's: processors differ in the last digits."""


@pytest.mark.parametrize("last", ["breakdown", pytest.param("", marks=pytest.mark.nightly)])
def test_pictures_say_what_is_predicted(last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one workload on one GPU each, up to `last`; the others with `make nightly`."""
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    says = json.loads((IMAGES / SAYS).read_text(encoding="utf-8"))
    for name, figure in figures():
        now, before = texts_of(figure), says[f"{name}.svg"]
        assert (IMAGES / f"{name}.svg").is_file()
        texts = ["\n".join(each) for each in (now, before)]
        words = [NUMBER.sub("#", text) for text in texts]
        assert words[0] == words[1], f"{name}.svg: run `make pictures`"
        numbers = [
            [float(number.replace(",", "")) for number in NUMBER.findall(text)] for text in texts
        ]
        assert numbers[0] == pytest.approx(numbers[1], rel=SAME, abs=0.011), (
            f"{name}.svg: run `make pictures`"
        )
        if name == last:
            break


def test_the_picture_of_a_timeline_shows_the_page_of_today() -> None:
    if chromium.program() is None:
        pytest.skip("no chromium on this machine, with which `make pictures` draws it")
    says = json.loads((IMAGES / SAYS).read_text(encoding="utf-8"))
    assert says[TIMELINE] == timeline_digest(), "run `make pictures`"
