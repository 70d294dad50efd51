"""Writes timelines: as a Chrome trace for Perfetto, or as one HTML file that opens without a network.

The page has rows of slices, to zoom, move, search and point at. Perfetto's page must be loaded from its site, and Chromium has
no viewer of its own any more.

Why not a library: Perfetto's viewer is 10 MB and must come from a server. Plotly (4 MB per file) and the vis-timeline
family draw an element per slice or redraw every trace, and stall at 50,000 slices. The page draws on a canvas, slices
narrower than a pixel together, and needs 300 lines of plain JavaScript (`timeline_page.html`).

The data are columns of whole numbers, times in nanoseconds and as differences, so that 50,000 slices need 1.5 MB.
"""

from __future__ import annotations

import gzip
import html
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pandas as pd

from pipeline.families import COLOURS
from pipeline.palette import PHASES
from pipeline.schemas import atomic_path
from pipeline.simulate.chrome_trace import Event
from pipeline.simulate.step_rows import EARLIER, PHASE_NAMES
from pipeline.simulate.timeline import Timeline
from pipeline.simulate.timeline_events import timeline_events

TEMPLATE = Path(__file__).with_suffix(".html")

COLOURED = 7
"""Number of kernel families, or kernels, with a colour of their own: the longest. More colours are hard to tell apart."""

OTHER = "other kernels"

NAMED_ROWS = ("phase on the host", "phase on the GPU", "communication")
"""Rows whose slices have the colour of their name."""

LATENCIES = ("launch latency", "gap between calls")
"""Slices of the critical path that are no time of the host and of no kernel."""


KINDS = ("html", "json.gz", "json")
"""Endings of the files that `write_timeline` writes."""


def write_timeline(
    timeline: Timeline | Sequence[tuple[Timeline, float]],
    path: str | Path | Sequence[str | Path],
    calls: pd.DataFrame | None = None,
    names: Sequence[Sequence[str]] | None = None,
    beside: Sequence[Event] = (),
    title: str = "Predicted step",
    measured_us: Sequence[float] = (),
    memory: Mapping[str, Any] | None = None,
) -> None:
    """Write one or several steps (their first draws).

    Args:
        timeline: a step, or pairs (step, begin in µs); the begin aligns predicted iterations with measured ones.
        path: the file or files to write: a page if a name ends in `.html`, else Chrome JSON, compressed if it ends in
            `.gz`.
        calls: `calls` table for the kernels' family, op and sizes, where there is one.
        names: kernel names per step, in the order of its calls.
        beside: events of other rows on the same time axis, such as the measured step.
        title: title of the page.
        measured_us: measured time of each step, to draw the difference.
        memory: what is alive over the step, for a page (`MemoryCourse.drawn`).

    Raises:
        SteptimeError: the file cannot be written.
    """
    events = timeline_events(timeline, calls, names, beside, measured_us)
    for file in [Path(path)] if isinstance(path, (str, Path)) else map(Path, path):
        if file.suffix == ".html":
            content = page(events, title, memory).encode()
        else:
            content = orjson.dumps(
                {"schemaVersion": 1, "displayTimeUnit": "ns", "traceEvents": events}
            )
        with atomic_path(file) as part:
            part.write_bytes(
                gzip.compress(content, 5, mtime=0) if file.suffix == ".gz" else content
            )


def page(events: Sequence[Event], title: str, memory: Mapping[str, Any] | None = None) -> str:
    """The page of a list of trace events (`timeline_events`)."""
    data = (
        orjson.dumps(page_data(events, title) | {"memory": memory}).decode().replace("<", "\\u003c")
    )  # no tag can end the script
    template = TEMPLATE.read_text(encoding="utf-8")
    texts = {"title": html.escape(title), "phases": orjson.dumps(PHASES).decode(), "data": data}
    for name, text in texts.items():
        template = template.replace(f"{{{{{name}}}}}", text)
    return template


def page_data(events: Sequence[Event], title: str) -> dict[str, Any]:
    """Columns of the page.

    Returns:
        `rows`: rows in the order of processes and threads, each with the columns of its slices by begin: `begin`
        (differences, ns), `length` (ns), and the numbers of name, colour and detail. `arrows`: row and position of the
        begin and the end of each arrow. `names`, `colours`, `details`: texts. `steps`: the numbers of each step. `families`:
        the colour of each kernel family, as in the figures.
    """
    group, order, label = _rows_of(events)
    slices: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
    kernels = _coloured([event for event in events if event.get("cat") == "kernel"])
    names, colours, details = (defaultdict[str, int](count().__next__) for _ in range(3))
    rows, place = [], {}
    for number, row in enumerate(sorted(slices, key=lambda key: (order.get(key[0], 99), key))):
        own = sorted(slices[row], key=lambda event: (event["ts"], -event["dur"]))
        begins = [round(1000 * event["ts"]) for event in own]
        for at, event in enumerate(own):
            place[(*row, event["ts"])] = (
                number,
                at,
            )  # the innermost of the slices that begin together
        rows.append(
            {
                "group": group.get(row[0], ""),
                "name": label.get(row, str(row[1])),
                "begin": [b - a for a, b in zip([0, *begins], begins, strict=False)],
                "length": [round(1000 * event["dur"]) for event in own],
                "text": [names[event["name"]] for event in own],
                "colour": [colours[_colour(event, kernels)] for event in own],
                "detail": [details[_detail(event["args"])] for event in own],
            }
        )
    ends = {
        (event["ph"], event["id"]): place[event["pid"], event["tid"], event["ts"]]
        for event in events
        if event["ph"] in "sf"
    }
    arrows = [
        [*begin, *ends["f", number]] for (phase, number), begin in ends.items() if phase == "s"
    ]
    steps = [
        {"name": event["name"], **event["args"]} for event in events if event.get("cat") == "step"
    ]
    return {
        "title": title,
        "rows": rows,
        "arrows": arrows,
        "names": list(names),
        "colours": list(colours),
        "details": list(details),
        "steps": steps,
        "families": {name: COLOURS[name] for name in colours if name in COLOURS},
    }


def _rows_of(
    events: Sequence[Event],
) -> tuple[dict[int, str], dict[int, int], dict[tuple[int, int], str]]:
    """Names of processes, their order, and names of threads."""
    stated: dict[str, dict[tuple[int, int], Any]] = defaultdict(dict)
    for event in events:
        if event["ph"] == "M":
            (value,) = event["args"].values()
            stated[event["name"]][event["pid"], event["tid"]] = value
    group = {pid: name for (pid, _), name in stated["process_name"].items()}
    order = {pid: index for (pid, _), index in stated["process_sort_index"].items()}
    return group, order, stated["thread_name"]


def _coloured(kernels: Sequence[Event]) -> dict[str, str]:
    """Colour of each kernel's name: that of its family, or of itself without one; the shortest share a colour."""
    spent = Counter[str]()
    for event in kernels:
        spent[_family(event["name"])] += event["dur"]
    own = {family for family, _ in spent.most_common(COLOURED)}
    return {
        event["name"]: family if (family := _family(event["name"])) in own else OTHER
        for event in kernels
    }


@cache
def _family(name: str) -> str:
    """`gemm` of `gemm:linear`; of a kernel's C++ name, the function without namespace, templates and arguments."""
    own = re.split(r"[<(]", name.removeprefix("void "))[0].rpartition("::")[2].strip()
    return own.partition(":")[0] or name


def _colour(event: Event, kernels: dict[str, str]) -> str:
    """What a slice's colour stands for."""
    if event["name"] in kernels and event["cat"] in ("kernel", "critical path"):
        return kernels[event["name"]]
    if event["cat"] in NAMED_ROWS or event["name"] == EARLIER:
        return str(event["name"])
    if event["cat"] in ("cpu_op", "module"):
        phase = str(event["args"].get("phase", "operator"))
        return PHASE_NAMES.get(phase, phase)
    if event["cat"] == "critical path" and event["name"] not in LATENCIES:
        return "host time"
    return str(event["name" if event["cat"] == "critical path" else "cat"])


def _detail(args: dict[str, Any]) -> str:
    """What the page shows of a slice beside its name and times: sizes first."""
    words = [str(args[key]) for key in ("sizes", "dtype") if args.get(key)]
    words += [
        f"{key}: {args[key]}"
        for key in ("operator", "phase", "p10 to p90", "evidence", "bound")
        if args.get(key)
    ]
    return " · ".join([*words, *(["on the critical path"] if args.get("critical") else [])])
