"""The page to play with: the data it gets, what its script makes of them, and that names cannot break out of it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from evaluation.pages.chromium import Page
from pipeline.answers.engine import engine
from pipeline.cli import app
from pipeline.prediction import Prediction
from pipeline.question.question import ask
from pipeline.readable import number_of
from pipeline.show.explore_page import SCRIPT, page_points, policy_of, write_page
from pipeline.work import WORK_KEYS, Work
from tests.predictions import predicted

GIB = 1 << 30


def point(gpu: str, batch: int, ms: float, **others: Any) -> Prediction:
    """A step of a model whose batch of 1,024 does not fit a V100."""
    return predicted(
        1000 * ms,
        gpu=gpu,
        batch_size=batch,
        active_us=800 * ms,
        host_us=500 * ms,
        memory_bytes=batch * GIB // 32,
        fits=gpu != "V100" or batch < 1024,
        own_price=3.06 if gpu == "V100" else None,
        families_us={"gemm": 600 * ms, "conv2d_forward": 200 * ms},
        **others,
    )


POINTS = [
    point("V100", 512, 100), point("V100", 1024, 198), point("H100", 512, 30),
    point("H100", 1024, 56),
    point("V100", 512, 60, variant="d", overrides=("model.dtype=fp16",), asked={"dtype": "fp16"}),
]  # fmt: skip


def data(points: list[Prediction]) -> list[dict[str, Any]]:
    return page_points(points, [31 * GIB if p.gpu == "V100" else 79 * GIB for p in points])


def test_a_point_has_its_cost_its_memory_and_its_options() -> None:
    """A V100 costs 3.06 USD an hour: a million samples at 5,120 a second take 195 s, which is 0.166 USD."""
    first, *_, half = data(POINTS)
    assert ran("points[0].cost") == pytest.approx(3.06 * 1e6 / 5120 / 3600, rel=1e-6)
    assert (first["memory"], first["usable"], first["fits"]) == (16 * GIB, 31 * GIB, True)
    assert (half["dtype"], half["options"], half["hosts"][0]["overrides"]) == (
        "fp16",
        "",
        ["model.dtype=fp16"],
    )
    parts = first["hosts"][0]["parts"]
    assert parts == {"gemm": 60_000, "conv2d_forward": 20_000, "idle": 20_000}


def ran(expression: str, points: list[Prediction] = POINTS) -> Any:
    """The value of an expression after the page's script, with `points`; skipped where the machine has no node."""
    if shutil.which("node") is None:
        pytest.skip("no node on this machine")
    script, given = SCRIPT.read_text(encoding="utf-8"), json.dumps(data(points))
    code = f"{script}\nconst points = atSpeeds({given});\nconsole.log(JSON.stringify({expression}))"
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    return json.loads(done.stdout)


def test_the_page_begins_with_all_gpus_at_the_largest_batch_that_fits() -> None:
    assert ran('readState(points, "")') == {
        "model": ["m"],
        "gpu": ["V100", "H100"],
        "dtype": ["", "fp16"],
        "options": [""],
        "batch": 512,
        "devices": 1,
        "speed": 1,
        "unit": "samples",
        "amount": "",
        "epochs": "",
    }


def test_the_state_is_in_the_address_and_comes_back_from_it() -> None:
    assert (
        ran('writeState(points, {...readState(points, ""), gpu: ["H100"], batch: 1024})')
        == "#gpu=H100&batch=1024"
    )
    again = ran('readState(points, "#gpu=H100&batch=1024&dtype=none&model=<b>")')
    assert (again["gpu"], again["batch"], again["model"]) == (["H100"], 1024, ["m"]), (
        "unknown values are ignored"
    )
    typed = "#batch=512&samples=1.2M&epochs=3"
    assert ran(f'writeState(points, readState(points, "{typed}"))') == typed


def test_the_front_is_what_no_other_point_beats_in_time_and_cost() -> None:
    """H100, 6.88 USD an hour: 0.1 USD at batch 1,024 for 55 s. The V100 is slower and dearer in fp32, and does not fit at 1,024."""
    front = ran("front(points).map(p => [p.gpu, p.batch, p.dtype])")
    assert front == [["H100", 1024, ""], ["V100", 512, "fp16"]]


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (
            "points.filter(p => p.batch === 1024)",
            "steptime compare gpu=V100,H100 model=m batch_size=1024",
        ),
        (
            "[points[0], points[4]]",
            "steptime predict gpu=V100 model=m batch_size=512\n"
            "steptime predict gpu=V100 model=m batch_size=512 model.dtype=fp16",
        ),
        (
            '[{...points[0], model: "it\'s"}]',
            "steptime predict gpu=V100 'model=it'\\''s' batch_size=512",
        ),
    ],
)
def test_the_command_asks_for_what_is_chosen(chosen: str, says: str) -> None:
    assert ran(f'command({chosen}, readState(points, ""))') == says


def test_the_work_that_is_typed_takes_the_hours_and_money_that_an_answer_states() -> None:
    typed = 'readState(points, "#samples=1.2M&epochs=3")'
    facts = dataclasses.replace(POINTS[0], work=Work(samples=1.2e6, epochs=3.0)).work_facts
    found = ran(f"workOf(points[0], {typed})")
    assert found["hours"] == pytest.approx([facts[key] for key in WORK_KEYS[1:4]])
    assert found["cost"] == pytest.approx([facts[key] for key in WORK_KEYS[4:]])
    assert ran(f"command([points[0]], {typed})").endswith(
        "batch_size=512 --samples 1.2M --epochs 3"
    )
    tokens = [dataclasses.replace(POINTS[0], asked={"seq_len": "512"}, work=Work(tokens=3e11))]
    hours = ran('workOf(points[0], readState(points, "")).hours[0]', tokens)
    assert hours == pytest.approx(tokens[0].work_facts["hours"])


def test_numbers_are_read_as_commands_read_them() -> None:
    texts = ["1281167", "1,281,167", "1.2M", "300B", "1e9", "$20", "2 k"]
    assert ran(f"{texts}.map(numberOf)") == [number_of(text) for text in texts]
    assert ran('["0", "-1", "many", "1,28", ""].map(numberOf)') == [None] * 5


def test_a_name_cannot_end_the_script_or_become_a_tag(tmp_path: Path) -> None:
    evil = dataclasses.replace(POINTS[0], model="</script><img src=x onerror=alert(1)>")
    write_page(tmp_path / "page.html", data([evil]), evil.model, [], ["a < b"])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img" not in text and text.count("</script>") == 2 and "a &lt; b" in text
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert unescape(policy) == policy_of([SCRIPT.read_text(encoding="utf-8")])
    assert "innerHTML" not in SCRIPT.read_text(encoding="utf-8")


def test_compare_writes_the_page_with_other_hosts_and_names_it(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    page = tmp_path / "out.html"
    asked = ["compare", "gpu=V100", "model=dlrm_small", "model.embedding=dense", "batch_size=64"]
    asked += ["devices=1,2", "predict.draws=10"]
    done = CliRunner().invoke(app, [*asked, "--page", str(page)])
    assert done.exit_code == 0 and f"page: {page}" in done.output.replace("\n", "")
    found = re.findall(
        r'<script id="explore-data" type="application/json">(.*?)</script>', page.read_text()
    )
    points = json.loads(found[0])["points"]
    assert [p["gpu"] + str(p["devices"]) for p in points] == ["V1001", "V1002"]
    for p in points:
        assert [host["speed"] for host in p["hosts"]] == [0.5, 0.8, 1, 1.25, 2]
        for host in (p["hosts"][0], p["hosts"][2]):
            words = f"gpu={p['gpu']} model={p['model']} batch_size=64".split()
            alone = engine().predict_one(ask([*words, *host["overrides"]])).whole()
            found = [host[key] for key in ("us", "p10", "p90", "bound")]
            assert found == [alone.predicted_us, alone.p10_us, alone.p90_us, alone.bound]
            assert sum(host["parts"].values()) == pytest.approx(alone.predicted_us, abs=0.1)


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_fits_a_screen_and_answers_to_its_controls(
    page: Page, tmp_path: Path, width: int, dark: bool
) -> None:
    file = tmp_path / "page.html"
    write_page(file, data(POINTS), "m", [], [])
    page.size(width, 900, dark=dark)
    page.open(f"{file.as_uri()}#samples=1.2M")
    assert page.value("document.documentElement.scrollWidth") <= width and page.errors == []
    assert page.value("document.querySelectorAll('#explore-work tr').length") == 4
    assert page.value("document.querySelectorAll('#explore-steps .active').length") == 3, (
        "a bar per point"
    )
    page.value("document.querySelector('#explore-toggles input[name=explore-gpu]').click()")
    assert page.value("location.hash") == "#gpu=H100&batch=512&samples=1.2M"
    assert (
        page.value("document.getElementById('explore-command').textContent")
        == "steptime predict gpu=H100 model=m batch_size=512 --samples 1.2M"
    )
