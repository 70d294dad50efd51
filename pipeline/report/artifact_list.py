"""Paths of a run's artifacts, for the line below the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.paths import Artifacts
from pipeline.prediction import Prediction
from pipeline.report.mlflow_tracking import database_of, kernel_models_page


def places(predictions: Sequence[Prediction], summary: Path) -> dict[str, str]:
    """Folders and commands that give the details of the predictions.

    Args:
        predictions: rows of a summary table.
        summary: the folder of that table: the results folder, or a folder under `grids/` in it.
    """
    root = summary.parent.parent if summary.parent.name == "grids" else summary
    artifacts = Artifacts(str(root))
    found = {}
    if len(predictions) == 1:
        p = predictions[0]
        folder = artifacts.point(p.gpu, p.model, p.variant, p.batch_size)
        found = {
            "artifacts": folder,
            "timeline": f"{folder}/timeline.html (in a browser; timeline.json.gz is for ui.perfetto.dev)",
        }
    else:
        found = {"artifacts": f"{root}/"}
    if not Path(found["artifacts"]).is_dir():  # the table was copied elsewhere
        found = {}
    if database_of(artifacts.tracking).is_file():
        command = "steptime ui" if str(root) == "results" else f"steptime ui --results {root}"
        found["kernel models"] = f"{command}, then {kernel_models_page(artifacts.tracking)}"
    return found
