"""The GPU with the best throughput and the best cost per sample, for the five models of Habitat (ATC 2021).

python benchmarks/transfer/gpu_choice.py

It plans each model of `config/experiment/surfer_choice.yaml` twice, and writes the table of docs/codesign.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evaluation.pages.markdown import markdown, rewrite
from pipeline.answers.plan import make_plan
from pipeline.answers.plan_results import Choice, Limits, Objective, Plan
from pipeline.paths import project_dir
from pipeline.question.question import Question, expand
from pipeline.readable import compact, distinct, rate

SECTION = "gpu choice"
"""The text between `<!-- gpu choice -->` and `<!-- /gpu choice -->` of the page."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, default=project_dir() / "docs" / "codesign.md")
    options = parser.parse_args()
    points = expand(["experiment=surfer_choice"])
    gpus = distinct(point.gpu.name for point in points)
    rows, notes = [], ""
    for model in dict.fromkeys(point.model for point in points):
        own = [point for point in points if point.model == model]
        fastest = make_plan(Objective.samples_per_s, own, Limits(), results=None)
        cheapest = make_plan(Objective.samples_per_dollar, own, Limits(), results=None)
        rows.append((model, str(own[0].batch_size), *_cells(fastest, cheapest, own)))
        notes = "; ".join(fastest.prices)
    head = ("model", "batch", *gpus, "fastest", "cheapest")
    text = f"{markdown(head, rows)}\n\nPrices: {notes}."
    print(text)
    rewrite(options.page, {SECTION: text})


def _cells(fastest: Plan, cheapest: Plan, points: list[Question]) -> list[str]:
    """Samples per second and per unit of the currency of each GPU, and the winner of both."""
    found = {each.question.gpu.name: each for each in fastest.contenders}
    return [_cell(found.get(point.gpu.name)) for point in points] + [
        _winner(fastest),
        _winner(cheapest),
    ]


def _cell(choice: Choice | None) -> str:
    if choice is None:
        return "does not fit"
    cost = choice.cost_per_sample
    return (
        f"{rate(1e6 / choice.us_per_sample)}; {'no price' if cost is None else compact(1 / cost)}"
    )


def _winner(plan: Plan) -> str:
    wins = "" if plan.best.wins is None else f" ({plan.best.wins:.0%})"
    return f"{plan.best.question.gpu.name}{wins}"


if __name__ == "__main__":
    main()
