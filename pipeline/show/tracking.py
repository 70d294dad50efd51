"""MLflow: one database per results folder, one run per GPU x family x variant, the best variant tagged `champion`.

`$STEPTIME_TRACKING_URI` names a database for several machines instead, such as PostgreSQL or a tracking server.

The first process that logs creates the database and its experiments. Only one process at a time does so, because
several that create a new database together crash (MLflow 3). MLflow is imported inside the functions because its import
takes seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.errors import SteptimeError
from pipeline.schemas import atomic_path

KERNEL_MODELS = "kernel models"
"""The experiment of all runs."""

ABOUT = (
    "One run per GPU, kernel family and variant. To see one model: tags.family = 'gemm' and"
    " tags.gpu = 'V100'."
)
"""Its description, which the UI shows above the runs."""

NOTE = "mlflow.note.content"
"""MLflow's tag for the description of an experiment."""

_DATABASE = "mlflow.db"

DIGITS = 4
"""Significant digits of logged metrics; MLflow's table shows all that are stored."""

SHARED_DATABASE = "STEPTIME_TRACKING_URI"
"""Environment variable: the tracking URI that replaces the database in the results folder. MLflow's own variable of that
kind is not used: MLflow sets it itself in each process that logs."""

QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


@contextlib.contextmanager
def _client_alone(folder: str | Path) -> Iterator[Any]:
    """The client of a folder's database, for one process at a time.

    Without the lock, SQLite stops waiting for another process after some seconds, and the log of a fit is lost.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield _client(Path(folder))
        except Exception as error:
            if "database or disk is full" not in str(error):
                raise
            raise SteptimeError(
                f"{folder}: MLflow's database cannot be written (the disk is full)"
            ) from None


def log_run(
    folder: str | Path,
    name: str,
    *,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
    made_by: str = "steptime",
    model: Path | None = None,
) -> str:
    """Log one finished run, delete earlier runs of the same name, and return the run's id.

    Args:
        folder: the tracking folder (`Artifacts.tracking`); created if it does not exist.
        metrics: numbers; they are rounded to `DIGITS` significant digits, and NaN is left out.
        made_by: what MLflow shows as the run's source.
        model: folder to copy into the run.
    """
    from mlflow.entities import Metric, Param

    with _client_alone(folder) as client:
        owner = _experiment(client, Path(folder))
        for earlier in client.search_runs([owner], f"attributes.run_name = '{name}'"):
            client.delete_run(earlier.info.run_id)
        source = {"mlflow.source.name": made_by, "mlflow.source.type": "LOCAL"}
        run = client.create_run(owner, run_name=name, tags={**source, **tags})
        run_id, now = run.info.run_id, run.info.start_time
        numbers = {
            key: rounded(value)
            for key, value in metrics.items()
            if value is not None and value == value
        }
        client.log_batch(
            run_id,
            metrics=[Metric(key, value, now, 0) for key, value in numbers.items()],
            params=[Param(key, str(value)[:480]) for key, value in params.items()],
        )
        if model is not None:
            client.log_artifacts(run_id, str(model), "model")
        client.set_terminated(run_id)
    return str(run_id)


def rounded(value: float) -> float:
    """A metric with `DIGITS` significant digits; whole numbers stay as they are."""
    return float(value) if float(value).is_integer() else float(f"{value:.{DIGITS}g}")


def champions_page(folder: str | Path) -> str:
    """The page of the UI with the champions, smallest error first, relative to the UI's address."""
    with _client_alone(folder) as client:
        owner = _experiment(client, Path(folder))
    shown, order = quote("tags.champion = 'yes'"), quote("metrics.`gmae_percent`")
    page = f"#/experiments/{owner}/runs?workflowType=machine_learning"
    return f"{page}&searchFilter={shown}&orderByKey={order}&orderByAsc=true"


def write_pyfunc(data: Path, folder: Path, loader: str) -> Path:
    """Write a model that `mlflow.pyfunc.load_model` can load, and return its folder.

    Args:
        data: folder with the model's files.
        folder: is created.
        loader: module whose function `_load_pyfunc` reads these files.
    """
    from mlflow.pyfunc import save_model

    save_model(folder, loader_module=loader, data_path=str(data), pip_requirements=["steptime"])
    return folder


def register_model(folder: str | Path, name: str, run_id: str, tags: Mapping[str, str]) -> None:
    """Register the model that a run logged as a new version of `name`, and choose the champion of that name.

    The champion has the lowest GMAE among registered models of current runs on the same samples as `run_id`. Errors on other
    samples are not comparable, and a superseded run must not be the champion. A fit of a single sample has no error and comes last.
    """
    from mlflow.exceptions import MlflowException

    with _client_alone(folder) as client:
        # it may exist since an earlier fit, and gets a new version
        with contextlib.suppress(MlflowException):
            client.create_registered_model(name, tags=dict(tags))
        last = client.get_run(run_id)
        source, samples = f"{last.info.artifact_uri}/model", last.data.tags["samples"]
        client.create_model_version(name, source, run_id=run_id, tags=dict(tags))
        versions = {
            version.run_id: version.version
            for version in client.search_model_versions(f"name = '{name}'")
        }
        runs = _current_runs(client, last.info.experiment_id)
        current = [run for run in runs if run.data.tags.get("model") == name]
        best = min(
            (
                run
                for run in current
                if run.info.run_id in versions and run.data.tags["samples"] == samples
            ),
            key=lambda run: run.data.metrics.get("gmae", math.inf),
        )
        for run in current:
            client.set_tag(run.info.run_id, "champion", "yes" if run is best else "no")
        client.set_registered_model_alias(name, "champion", versions[best.info.run_id])


def current_models(folder: str | Path) -> dict[str, set[str]]:
    """The models whose fits are in the experiment `KERNEL_MODELS`, with digests of what each was fitted to."""
    with _client_alone(folder) as client:
        owner = _experiment(client, Path(folder))
        models: dict[str, set[str]] = {}
        for run in _current_runs(client, owner):
            tags = run.data.tags
            models.setdefault(tags.get("model", ""), set()).add(tags.get("samples", ""))
    return models


def _current_runs(client: Any, experiment: str) -> list[Any]:
    """The runs that no later run of their name has deleted."""
    return list(client.search_runs([experiment], max_results=50_000))


def _experiment(client: Any, folder: Path) -> str:
    """Id of the experiment; it is created if the database has none."""
    from mlflow.exceptions import MlflowException

    if (known := client.get_experiment_by_name(KERNEL_MODELS)) is not None:
        return str(known.experiment_id)
    # a server has a place of its own for artifacts
    place = folder.resolve() / "artifacts" / KERNEL_MODELS.replace(" ", "_")
    try:
        created = client.create_experiment(
            KERNEL_MODELS, artifact_location=None if is_server() else place.as_uri()
        )
    except MlflowException:  # another machine created it since
        if (known := client.get_experiment_by_name(KERNEL_MODELS)) is not None:
            return str(known.experiment_id)
        raise
    client.set_experiment_tag(created, NOTE, ABOUT)
    return str(created)


def database_of(folder: str | Path) -> Path:
    """The database in a tracking folder; it is not used if `SHARED_DATABASE` names another."""
    return Path(folder) / _DATABASE


def shared_database() -> str:
    """URI of the database or server of several machines; empty if each results folder has its own database."""
    return os.environ.get(SHARED_DATABASE, "")


def is_server() -> bool:
    """Whether the shared database is a tracking server, which has a UI of its own."""
    return shared_database().startswith("http")


def database_uri(folder: Path) -> str:
    """The tracking URI of a folder: the shared database, or the one in the folder."""
    return shared_database() or f"sqlite:///{database_of(folder).resolve()}"


def _client(folder: Path) -> Any:
    import logging
    import warnings

    os.environ.update({key: os.environ.get(key, value) for key, value in QUIET.items()})
    warnings.filterwarnings("ignore")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    from mlflow import MlflowClient

    database = database_of(folder)
    if not shared_database() and not database.is_file():
        # MLflow makes its tables one by one: a process that is killed meanwhile would leave a database that no other can use
        with atomic_path(database) as part:
            part.unlink()
            MlflowClient(tracking_uri=f"sqlite:///{part.resolve()}").search_experiments(
                max_results=1
            )
    return MlflowClient(tracking_uri=database_uri(folder))
