"""A page to play with: computed points with toggles and a slider of the batch size, as one file that needs no network.

`explore.js` draws what is chosen; it holds no library. The report of a grid shows the same part first.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.prediction import Prediction
from pipeline.schemas import write_text
from pipeline.show.brief import Fact

PART = Path(__file__).with_name("explore.html")
SCRIPT = Path(__file__).with_name("explore.js")
SHELL = Path(__file__).with_suffix(".html")

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a page may do: neither fetch nor run anything but the scripts that are named."""

STYLE = Path(__file__).with_name("page.css")
"""Colours and text of the report and of a page of its own."""


def page_points(
    predictions: Sequence[Prediction], usable_bytes: Sequence[int]
) -> list[dict[str, Any]]:
    """What the page shows of each prediction: plain values, times in µs, memory in bytes, cost of a million samples.

    Args:
        predictions: the points.
        usable_bytes: memory of each point's GPU that PyTorch can use.
    """
    return [
        {
            "model": p.model,
            "gpu": p.gpu,
            "dtype": p.asked.get("dtype", ""),
            "options": " ".join(
                text for text in p.options if text != f"dtype={p.asked.get('dtype')}"
            ),
            "batch": p.batch_size,
            "samples": p.global_batch,
            "us": p.predicted_us,
            "active": p.active_us,
            "p10": p.p10_us,
            "p90": p.p90_us,
            "bound": p.bound,
            "memory": p.memory_bytes,
            "usable": usable,
            "fits": p.fits,
            "tight": p.tight,
            "cost": 1e6 / p.samples_per_price if p.samples_per_price else None,
            "currency": p.price.currency if p.price else "",
            "overrides": [text.lstrip("+") for text in p.overrides],
        }
        for p, usable in zip(predictions, usable_bytes, strict=True)
    ]


def explore_part(points: Sequence[Mapping[str, Any]]) -> str:
    """The part of a page, with its data and its script."""
    data = json.dumps({"points": list(points)}, allow_nan=False).replace(
        "<", "\\u003c"
    )  # no tag can end the script
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
