"""A page to play with: computed points with toggles and sliders, as one file that needs no network.

`explore.js` draws what is chosen; it holds no library. The report of a grid shows the same part first.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.answers.host_share import Key, point
from pipeline.families import family_colour
from pipeline.prediction import Prediction
from pipeline.schemas import write_text
from pipeline.show.brief import Fact
from pipeline.show.figures.python_plots import device_parts

PART = Path(__file__).with_name("explore.html")
SCRIPT = Path(__file__).with_name("explore.js")
SHELL = Path(__file__).with_suffix(".html")

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a page may do: neither fetch nor run anything but the scripts that are named."""

STYLE = Path(__file__).with_name("page.css")
"""Colours and text of the report and of a page of its own."""


def page_points(
    predictions: Sequence[Prediction],
    usable_bytes: Sequence[int],
    at_speeds: Mapping[Key, Mapping[float, Prediction]] | None = None,
) -> list[dict[str, Any]]:
    """What the page shows of each prediction: plain values, memory in bytes, and `hosts`: its step by the speed of the host.

    Args:
        predictions: the points.
        usable_bytes: memory of each point's GPU that PyTorch can use.
        at_speeds: the points with other speeds of their hosts (`host_share.at_speeds`).
    """
    known = at_speeds or {}
    return [
        {
            "model": p.model,
            "gpu": p.gpu,
            "devices": p.devices,
            "dtype": p.asked.get("dtype", ""),
            "options": " ".join(
                text
                for text in p.options
                if text not in (f"dtype={p.asked.get('dtype')}", f"devices={p.devices}")
            ),
            "batch": p.batch_size,
            "samples": p.global_batch,
            "seq_len": p.seq_len,
            "work": asdict(p.work) if p.work else None,
            "memory": p.memory_bytes,
            "usable": usable,
            "fits": p.fits,
            "tight": p.tight,
            "currency": p.price.currency if p.price else "",
            "hosts": [
                {"speed": speed, **_step(at)}
                for speed, at in sorted({1.0: p, **known.get(point(p), {})}.items())
            ],
        }
        for p, usable in zip(predictions, usable_bytes, strict=True)
    ]


def _step(p: Prediction) -> dict[str, Any]:
    """What depends on the host: times in µs, what all GPUs cost in an hour, and how to ask for the step."""
    return {
        "us": p.predicted_us,
        "active": p.active_us,
        "p10": p.p10_us,
        "p90": p.p90_us,
        "bound": p.bound,
        "per_hour": p.per_hour,
        "parts": {name: round(us, 2) for name, us in device_parts(p).items()},
        "overrides": [text.lstrip("+") for text in p.overrides],
    }


def explore_part(points: Sequence[Mapping[str, Any]]) -> str:
    """The part of a page, with its data and its script."""
    names = dict.fromkeys(name for each in points for name in each["hosts"][0]["parts"])
    shown = {"points": points, "colours": {name: family_colour(name) for name in names}}
    data = json.dumps(shown, allow_nan=False)
    data = data.replace("<", "\\u003c")  # no tag can end the script
    script = SCRIPT.read_text(encoding="utf-8")
    return PART.read_text(encoding="utf-8").replace("{{script}}", script).replace("{{data}}", data)


def policy_of(scripts: Iterable[str]) -> str:
    """The Content-Security-Policy that lets exactly these scripts run."""
    sums = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in dict.fromkeys(scripts)
    )
    sources = " ".join(f"'sha256-{digest}'" for digest in sums)
    return f"{POLICY}; script-src {sources}" if sources else POLICY


def write_page(
    path: Path,
    points: Sequence[Mapping[str, Any]],
    title: str,
    facts: Iterable[Fact],
    notes: Sequence[str],
) -> None:
    """Write the page of several points.

    Args:
        path: the HTML file.
        points: from `page_points`.
        title: what the points are.
        facts: what they answer.
        notes: sentences below them.
    """
    values = {
        "policy": html.escape(policy_of([SCRIPT.read_text(encoding="utf-8")])),
        "style": STYLE.read_text(encoding="utf-8"),
        "title": html.escape(title),
        "brief": "".join(fact.html() for fact in facts),
        "notes": "".join(f"<li>{html.escape(note)}</li>" for note in notes),
        "part": explore_part(points),
    }
    text = re.sub(r"\{\{(\w+)\}\}", lambda name: values[name[1]], SHELL.read_text(encoding="utf-8"))
    write_text(path, text)
