"""Draws Snakemake's rule graph without Graphviz: rules in layers from top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pipeline.errors import SteptimeError
from pipeline.paths import project_dir

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOMS = (
    ("collect", "#0072B2", ("collect_step", "import_graph", "capture_graph", "convert_trace", "map_calls")),
    ("kernel models", "#009E73", ("local_samples", "public_samples", "campaign_samples", "fit_kernels",
                                  "fit_measured_kernels")),
    ("overheads", "#CC79A7", ("local_overheads", "public_overheads", "overhead_statistics")),
    ("prediction", "#D55E00", ("predict", "summary", "error_parts")),
    ("what people look at", "#555555", ("figures", "accuracy", "report", "all")),
)  # fmt: skip
"""Stages of the workflow, each with its colour and its rules."""

SWEEPS = 8
"""Number of passes over the layers that move rules towards their neighbours. On graphs of this size, more passes change
nothing."""

_NODE = re.compile(r'^\s*(\d+)\s*\[label\s*=\s*"([^"\\]+)', re.MULTILINE)
_EDGE = re.compile(r"^\s*(\d+)\s*->\s*(\d+)\s*$", re.MULTILINE)


def rule_graph(config: Sequence[str], target: str) -> str:
    """Snakemake's rule graph of a target, in the dot language. No rule runs, and existing artifacts have no effect.

    Raises:
        SteptimeError: Snakemake could not draw it; the message says why.
    """
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(project_dir() / "Snakefile"), "--directory",
               str(project_dir()), "--nolock", "--rulegraph", "--config", *config, "results=no-results",
               "--", target]  # fmt: skip
    environment = {**os.environ, "STEPTIME_DATASETS": "none"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if run.returncode != 0 or "digraph" not in run.stdout:
        lines = [line for line in (run.stderr or run.stdout).splitlines() if line.strip()] or ["no output"]
        raise SteptimeError(f"rule graph: Snakemake could not draw it: {lines[-1].strip()}")
    return run.stdout


def parse(dot: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Rules and (from, to) edges of a rule graph in the dot language, sorted as Snakemake's order is not stable."""
    names = dict(_NODE.findall(dot))
    return sorted(names.values()), sorted((names[a], names[b]) for a, b in _EDGE.findall(dot))


def reduced(edges: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Edges without those that a longer path implies. The order stays visible, and lines do not run behind boxes."""
    after: dict[str, list[str]] = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)

    def reaches(start: str, goal: str) -> bool:
        return any(rule == goal or reaches(rule, goal) for rule in after.get(start, []))

    return [(a, b) for a, b in edges if not any(reaches(other, b) for other in after[a] if other != b)]


def layers(rules: Sequence[str], edges: Sequence[tuple[str, str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Rules in layers, and every edge as the list of places that it passes.

    A rule's layer is the length of its longest path from a rule without input. An edge over several layers gets its own
    place in each layer between, so that its line runs beside the boxes. The order within a layer keeps crossings few.
    """
    before = {rule: [a for a, b in edges if b == rule] for rule in rules}
    after = {rule: [b for a, b in edges if a == rule] for rule in rules}
    depth: dict[str, int] = {}

    def deep(rule: str) -> int:
        if rule not in depth:
            depth[rule] = 1 + max((deep(other) for other in before[rule]), default=-1)
        return depth[rule]

    for rule in rules:
        deep(rule)
    for rule in sorted(
        rules, key=lambda name: -depth[name]
    ):  # rules without input move down to the rules that need them
        if after[rule] and not before[rule]:
            depth[rule] = min(depth[other] for other in after[rule]) - 1
    found = [[rule for rule in rules if depth[rule] == level] for level in range(max(depth.values()) + 1)]
    ways = []
    for a, b in edges:
        between = [f"{a}>{b}>{level}" for level in range(depth[a] + 1, depth[b])]
        for level, place in enumerate(between, depth[a] + 1):
            found[level].append(place)
        ways.append([a, *between, b])
    return _ordered(found, ways), ways


def _ordered(found: list[list[str]], ways: Sequence[Sequence[str]]) -> list[list[str]]:
    """Layers sorted so that every place is near the mean of its neighbours; passes go down and up alternately."""
    steps = [step for way in ways for step in pairwise(way)]
    above, below = defaultdict(list), defaultdict(list)
    for a, b in steps:
        below[a].append(b)
        above[b].append(a)
    at = {place: i - (len(layer) - 1) / 2 for layer in found for i, place in enumerate(layer)}
    for sweep in range(SWEEPS):
        near = above if sweep % 2 == 0 else below
        for layer in found if sweep % 2 == 0 else reversed(found):
            wish = {p: sum(at[n] for n in near[p]) / len(near[p]) if near[p] else at[p] for p in layer}
            layer.sort(key=lambda place, wish=wish: (wish[place], place))  # type: ignore[misc]
            at |= {place: i - (len(layer) - 1) / 2 for i, place in enumerate(layer)}
    return found


def draw(dot: str) -> Figure:
    """The rule graph as a figure from top to bottom, with a colour per stage. It has only the edges of `reduced`."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch
    from matplotlib.path import Path as Curve

    rules, every = parse(dot)
    found, ways = layers(rules, reduced(every))
    colour_of = {rule: colour for _, colour, names in ROOMS for rule in names}
    broad = max(len(layer) for layer in found)
    wide, high, half, low = 1.95, 0.72, 0.86, 0.17
    figure = Figure(figsize=(wide * broad, high * len(found) + 0.45))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(-wide * broad / 2, wide * broad / 2)
    axes.set_ylim(-high * (len(found) - 0.45), 0.75)
    axes.set_axis_off()
    at = {place: (wide * (i - (len(layer) - 1) / 2), -high * level) for level, layer in enumerate(found)
          for i, place in enumerate(layer)}  # fmt: skip
    for way in ways:
        points = [at[way[0]], *(at[place] for place in way[1:-1]), at[way[-1]]]
        knots = [(points[0][0], points[0][1] - low), *points[1:-1], (points[-1][0], points[-1][1] + low + 0.02)]
        vertices, codes = [knots[0]], [Curve.MOVETO]
        for (x0, y0), (x1, y1) in pairwise(knots):
            vertices += [(x0, (y0 + y1) / 2), (x1, (y0 + y1) / 2), (x1, y1)]
            codes += [Curve.CURVE4] * 3
        axes.annotate("", knots[-1], (knots[-1][0], knots[-1][1] + 0.06),
                      arrowprops={"arrowstyle": "-|>", "color": "#888888", "shrinkA": 0, "shrinkB": 0})  # fmt: skip
        axes.add_patch(_line(Curve(vertices, codes)))
    for rule in rules:
        x, y = at[rule]
        axes.add_patch(FancyBboxPatch((x - half, y - low), 2 * half, 2 * low,
                                      boxstyle="round,pad=0,rounding_size=0.1", facecolor="white",
                                      edgecolor=colour_of.get(rule, "#555555"), linewidth=2, zorder=3))  # fmt: skip
        axes.text(x, y, rule.replace("_", " "), ha="center", va="center", fontsize=10, zorder=4)
    for (room, colour, _), share in zip(ROOMS, (0.02, 0.17, 0.38, 0.55, 0.72), strict=True):
        axes.text(share, 0.985, f"\u25a0 {room}", va="top", fontsize=9.5, color=colour, transform=axes.transAxes)
    return figure


def _line(curve: Any) -> Any:
    from matplotlib.patches import PathPatch

    return PathPatch(curve, facecolor="none", edgecolor="#aaaaaa", linewidth=1.4, zorder=1)
