"""A predicted step with its timeline, for tests of what is drawn of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pipeline.prediction import Prediction
from pipeline.simulate.timeline import Timeline

Event = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A predicted step with its calls."""

    prediction: Prediction
    timeline: Timeline
    calls: pd.DataFrame


def slices(events: Sequence[Event], chosen: Callable[[Event], bool]) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and chosen(event)]
