"""Prints predictions: one in full, several as a table, with the paths of their artifacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from pipeline.prediction import Prediction
from pipeline.report.comparison_table import Comparison
from pipeline.report.terminal_tables import console, one


def show(predictions: Sequence[Prediction], places: Mapping[str, str] | None = None) -> None:
    """Print one prediction in full or several as a table, and the paths of the artifacts."""
    screen = console()
    screen.print(one(predictions[0], screen.width) if len(predictions) == 1 else Comparison(predictions))
    for name, place in (places or {}).items():
        screen.print(Text.assemble((f"{name}:", "dim"), f" {place}"), soft_wrap=True, highlight=False)
