"""Views of MLflow's table of kernel models: which columns, in which order, sorted by what, for which runs.

A view is a JSON object in a tag of the experiment, `mlflow.sharedViewState.<key>`; `?viewStateShareKey=<key>` in the
address of the experiment's page applies it. MLflow documents neither. Its page for sharing a view writes the same tag
(read in version 3.17; the fields are those of the page's "search facets" and "UI state").
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

SHARED_VIEW = "mlflow.sharedViewState."
"""Begin of the tag that holds a view."""

ALL = "kernel_models"
"""Key of the view of all kernel models."""

ERROR = "gmae_percent"
"""Metric that orders the runs, smallest first."""

TAGS, METRICS = ("family", "gpu", "variant", "champion"), (ERROR, "mape_percent", "bias_percent", "coverage_percent")
"""Tags and metrics with a column. The metrics have the first charts too; MLflow would sort all charts by name."""

RUN_NAME, CREATED = "attributes.`Run Name`", "runDateAndNestInfo"
"""MLflow's two columns that are always shown, first. They are narrow here: the tags say what they say."""

WIDTHS = {RUN_NAME: 110, CREATED: 50, "tags.`family`": 100, "tags.`gpu`": 70, "tags.`variant`": 80,
          "tags.`champion`": 90} | dict.fromkeys(("metrics.`gmae_percent`", "metrics.`mape_percent`"), 125)  # fmt: skip
"""Widths of columns in pixels. The champion and its error are then seen without scrolling in a window of 1280 pixels."""

OTHER_WIDTH = 150
"""Width of the other columns."""

_SECTION = "steptime-metrics"
"""Identifier of the section of the charts; MLflow names it `Model metrics`."""


def column(kind: str, name: str) -> str:
    """MLflow's identifier of a column of its table of runs; `kind` is `tags`, `metrics`, `params` or `attributes`."""
    return f"{kind}.`{name}`"


def view(name: str, created_ms: int, chosen: str = "") -> str:
    """The text of a view's tag: a table of runs, smallest error first.

    Args:
        name: what MLflow's menu of views shows; without a name, the menu leaves the view out.
        created_ms: time of its making, for that menu, in ms since 1970.
        chosen: filter of the runs, in MLflow's search language.
    """
    tags, metrics = ([column(kind, key) for key in keys] for kind, keys in (("tags", TAGS), ("metrics", METRICS)))
    about = [column("attributes", key) for key in ("Dataset", "Models", "Source")]
    order = [*tags, *metrics, *about]
    state: dict[str, Any] = {
        "searchFilter": chosen,
        "orderByKey": column("metrics", ERROR),
        "orderByAsc": True,
        "selectedColumns": order,
        "columnOrder": [RUN_NAME, CREATED, *order],
        "columnWidths": {each: WIDTHS.get(each, OTHER_WIDTH) for each in (RUN_NAME, CREATED, *order)},
        "compareRunSections": [{"uuid": _SECTION, "name": "Model metrics", "display": True, "isReordered": True,
                                "deleted": False, "isGenerated": True}],
        "compareRunCharts": [{"uuid": f"steptime-{key}", "type": "BAR", "metricKey": key, "displayName": key,
                              "metricSectionId": _SECTION, "runsCountToCompare": 10, "deleted": False,
                              "isGenerated": True} for key in METRICS],
    }  # fmt: skip
    if not name:
        return json.dumps(state)
    # the page of MLflow 3.17 reads `state`, a text; earlier pages read the fields themselves
    return json.dumps({"name": name, "createdAt": created_ms, "state": json.dumps(state)} | state)


def of_model(gpu: str, family: str) -> tuple[str, str]:
    """Key of the view of one kernel model's variants, and the filter that chooses their runs."""
    return f"{family}.{gpu}", f"tags.gpu = '{gpu}' and tags.family = '{family}'"


def page(experiment: str, key: str) -> str:
    """Path of the page that shows an experiment's view, relative to the UI's address.

    Without `workflowType`, the page opens with MLflow's tools for language-model applications instead of the table.
    """
    return f"#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={quote(key)}"
