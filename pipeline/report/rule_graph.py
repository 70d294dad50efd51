"""Snakemake's graph of a workflow's rules: its text for documents, and a drawing of it as SVG."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np

from pipeline.errors import SteptimeError

CHARACTER, BOX_HEIGHT, GAP, LAYER = 7.6, 30.0, 26.0, 62.0
"""Sizes of the drawing in pixels: width of a letter, height of a box, gap between boxes, distance of the layers."""

SWEEPS = 8
"""Passes that order the boxes of a layer by their neighbours; more change nothing in graphs of this size."""

Node = str | tuple[str, str, int]
"""A rule, or a bend of an edge that passes a layer: (from, to, layer)."""


def mermaid(snakefile: str, config: Mapping[str, Any], targets: Sequence[str], **environment: str) -> str:
    """Snakemake's graph of the rules up to the targets, as Mermaid text. No rule runs.

    Args:
        snakefile: the workflow.
        config: its `--config` values.
        targets: files or rules.
        environment: environment variables of the call.

    Raises:
        SteptimeError: Snakemake could not draw it; the message says why.
    """
    values = ["--config", *(f"{key}={_text(value)}" for key, value in config.items())] if config else []
    command = [sys.executable, "-m", "snakemake", "--snakefile", snakefile, "--nolock", "--rulegraph", "mermaid-js", *values,
               "--", *targets]  # fmt: skip
    # rules are printed in the order of a set: with a fixed seed, the same graph gives the same text
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment, "PYTHONHASHSEED": "0"}
    )
    _, head, graph = run.stdout.partition("flowchart")
    if run.returncode != 0 or not head:
        lines = [line.strip() for line in (run.stderr or run.stdout).splitlines() if line.strip()] or ["no output"]
        raise SteptimeError(f"rule graph: Snakemake could not draw it: {lines[-1]}")
    return head + graph


def edges_of(text: str) -> list[tuple[str, str]]:
    """(from, to) of every arrow of a Mermaid graph, by rule."""
    names = dict(re.findall(r"(id\d+)\[(\w+)\]", text))
    return [(names[a], names[b]) for a, b in re.findall(r"(id\d+) --> (id\d+)", text)]


def svg(edges: Iterable[tuple[str, str]]) -> str:
    """A drawing of the graph from top to bottom, without edges that a longer path implies; empty for no edge.

    Boxes have the class `rule`, edges the class `edge`: the page that shows the drawing sets their colours.
    """
    whole = nx.DiGraph(sorted(set(edges)))
    if not whole:
        return ""
    graph = nx.transitive_reduction(whole)
    layers, links = _layers(graph)
    place = _places(layers)
    width = max(x + _width(node) / 2 for node, (x, _) in place.items()) + 4
    height = LAYER * (len(layers) - 1) + BOX_HEIGHT + 4
    paths = [_path([place[node] for node in link]) for link in links]
    boxes = [_box(node, *place[node]) for layer in layers for node in layer if isinstance(node, str)]
    marker = ('<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
              '<path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>')  # fmt: skip
    names = ", ".join(node for layer in layers for node in layer if isinstance(node, str))
    return (f'<svg class="rules" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" role="img" '
            f'aria-label="Rule graph: {escape(names)}">{marker}{"".join(paths)}{"".join(boxes)}</svg>')  # fmt: skip


def _layers(graph: nx.DiGraph[str]) -> tuple[list[list[Node]], list[list[Node]]]:
    """Layers of rules and bends, ordered so that few edges cross, and the nodes that each edge passes."""
    depth: dict[str, int] = {}
    for node in reversed(list(nx.topological_sort(graph))):  # as late as possible: an input stands above its first use
        depth[node] = min((depth[after] for after in graph.successors(node)), default=0) - 1
    least = min(depth.values())
    layers: list[list[Node]] = [[] for _ in range(-least)]
    for node in nx.lexicographical_topological_sort(graph):
        layers[depth[node] - least].append(node)
    links: list[list[Node]] = []
    for one, two in sorted(graph.edges):
        bends: list[Node] = [(one, two, layer) for layer in range(depth[one] + 1, depth[two])]
        for bend, layer in zip(bends, range(depth[one] + 1, depth[two]), strict=True):
            layers[layer - least].append(bend)
        links.append([one, *bends, two])
    near: dict[Node, list[Node]] = {}
    for link in links:
        for a, b in pairwise(link):
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
    for _ in range(SWEEPS):
        for nodes in layers:
            at = {node: (number + 0.5) / len(each) for each in layers for number, node in enumerate(each)}
            middle = {node: float(np.mean([at[other] for other in near[node]])) for node in nodes}
            nodes.sort(key=middle.__getitem__)
    return layers, links


def _places(layers: list[list[Node]]) -> dict[Node, tuple[float, float]]:
    """Centre of every node: each layer side by side, around a common middle."""
    spans = [sum(_width(node) for node in layer) + GAP * (len(layer) - 1) for layer in layers]
    middle = max(spans) / 2 + 4
    place: dict[Node, tuple[float, float]] = {}
    for number, (layer, span) in enumerate(zip(layers, spans, strict=True)):
        left = middle - span / 2
        for node in layer:
            place[node] = (left + _width(node) / 2, LAYER * number + BOX_HEIGHT / 2 + 2)
            left += _width(node) + GAP
    return place


def _width(node: Node) -> float:
    return CHARACTER * len(node) + 20 if isinstance(node, str) else 8.0


def _box(name: str, x: float, y: float) -> str:
    width = _width(name)
    return (f'<g class="rule"><rect x="{x - width / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{width:.0f}" '
            f'height="{BOX_HEIGHT:.0f}" rx="6"/><text x="{x:.0f}" y="{y + 4.5:.1f}">{escape(name)}</text></g>')  # fmt: skip


def _path(points: list[tuple[float, float]]) -> str:
    """A smooth line from the lower edge of the first box through the bends to the upper edge of the last box."""
    ends = [
        (points[0][0], points[0][1] + BOX_HEIGHT / 2),
        *points[1:-1],
        (points[-1][0], points[-1][1] - BOX_HEIGHT / 2 - 2),
    ]
    line = f"M{ends[0][0]:.0f},{ends[0][1]:.0f}"
    for (x0, y0), (x1, y1) in pairwise(ends):
        half = (y1 - y0) / 2
        line += f" C{x0:.0f},{y0 + half:.0f} {x1:.0f},{y1 - half:.0f} {x1:.0f},{y1:.0f}"
    return f'<path class="edge" marker-end="url(#arrow)" d="{line}"/>'


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
