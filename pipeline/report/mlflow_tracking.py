"""MLflow: one database per results folder, one run per GPU x family x variant, the best variant tagged `champion`.

`$STEPTIME_TRACKING_URI` names a database for several machines instead, such as PostgreSQL or a tracking server.

The first process that logs creates the database and its experiments. Only one process at a time does so, because
several that create a new database together crash (MLflow 3). MLflow is imported inside the functions because its import
takes seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from pipeline.errors import InputError, SteptimeError
from pipeline.report import mlflow_views
from pipeline.schemas import atomic_path

KERNEL_MODELS, OVERHEADS, PLANS = "kernel models", "overheads", "plans"
EXPERIMENTS = {
    KERNEL_MODELS: "One run per GPU, kernel family and variant.",
    OVERHEADS: "Host overheads (T1 to T5), one run per GPU and estimator.",
    PLANS: "Searches for the best point of a space (docs/codesign.md), one run per space, objective and constraints.",
}
"""Experiments, with the description that the UI shows above their runs."""

_NOTE = "mlflow.note.content"
MAX_NOTE = 5000
"""Number of characters that every supported version of MLflow stores in a tag of an experiment."""

LOOPBACK, PORT = "127.0.0.1", 5000
"""Address that the MLflow UI binds, and its port. The UI has no password, so other machines must not be able to reach
it."""

_DATABASE = "mlflow.db"

DIGITS = 4
"""Significant digits of logged metrics; MLflow's table shows all that are stored."""

SHARED_DATABASE = "STEPTIME_TRACKING_URI"
"""Environment variable: the tracking URI that replaces the database in the results folder. MLflow's own variable of that
kind is not used: MLflow sets it itself in each process that logs."""

_SERVER_VARIABLES = re.compile(r"MLFLOW_(HOST|PORT|WORKERS|SERVER_\w+|\w+_OPTS)|(UVICORN|GUNICORN)_\w+")
"""Environment variables that would move MLflow's server to another address or open it to other machines."""

_ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}


P = ParamSpec("P")
T = TypeVar("T")


def _one_process_at_a_time(
    function: Callable[Concatenate[str | Path, P], T],
) -> Callable[Concatenate[str | Path, P], T]:
    """Decorator that lets one process at a time use a folder's database.

    Without it, SQLite stops waiting for a lock after some seconds, and the log of a fit is lost.
    """

    @functools.wraps(function)
    def locked(folder: str | Path, /, *args: P.args, **kwargs: P.kwargs) -> T:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return function(folder, *args, **kwargs)
            except Exception as error:
                if "database or disk is full" not in str(error):
                    raise
                raise SteptimeError(f"{folder}: MLflow's database cannot be written (the disk is full)") from None

    return locked


@dataclass(frozen=True)
class Data:
    """The table that a run was fitted to, for the column *Dataset*: name, digest of its rows, origin, number of rows."""

    name: str
    digest: str
    source: str
    rows: int


@_one_process_at_a_time
def log_run(
    folder: str | Path,
    experiment: str,
    name: str,
    *,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
    made_by: str = "steptime",
    data: Data | None = None,
    artifacts: Mapping[str, Path] | None = None,
    figures: Mapping[str, Any] | None = None,
) -> str:
    """Log one finished run, mark earlier runs of the same name as superseded, and return the run's id.

    Args:
        folder: the tracking folder (`Artifacts.tracking`); created if it does not exist.
        metrics: numbers; they are rounded to `DIGITS` significant digits, and NaN is left out.
        made_by: what MLflow shows as the run's source.
        data: the table that was fitted.
        artifacts: folder inside the run -> file or folder to copy there.
        figures: file name inside the run -> matplotlib figure.
    """
    import mlflow
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT, MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE

    client = _client(Path(folder))
    owner = _experiment(client, Path(folder), experiment)
    mlflow.set_tracking_uri(_uri(Path(folder)))
    earlier = client.search_runs([owner], f"attributes.run_name = '{name}' and tags.current = 'yes'")
    for run in earlier:
        client.set_tag(run.info.run_id, "current", "no")
        client.delete_run(run.info.run_id)
    source = {MLFLOW_SOURCE_NAME: made_by, MLFLOW_SOURCE_TYPE: "LOCAL"}
    with mlflow.start_run(experiment_id=owner, run_name=name, tags={**source, **tags, "current": "yes"}) as run:
        mlflow.log_params({key: str(value)[:480] for key, value in params.items()})
        mlflow.log_metrics(
            {key: rounded(value) for key, value in metrics.items() if value is not None and value == value}
        )
        if data is not None:
            about = Dataset(data.name, data.digest, "local", data.source, profile=f'{{"num_rows": {data.rows}}}')
            client.log_inputs(run.info.run_id, [DatasetInput(about, [InputTag(MLFLOW_DATASET_CONTEXT, "training")])])
        for place, path in (artifacts or {}).items():
            log = mlflow.log_artifacts if path.is_dir() else mlflow.log_artifact
            log(str(path), place)
        for place, figure in (figures or {}).items():
            mlflow.log_figure(figure, place)
    return str(run.info.run_id)


def rounded(value: float) -> float:
    """A metric with `DIGITS` significant digits; whole numbers stay as they are."""
    return float(value) if float(value).is_integer() else float(f"{value:.{DIGITS}g}")


@_one_process_at_a_time
def describe_kernel_models(folder: str | Path) -> str:
    """Write the views of the kernel models' table (`mlflow_views`), and links to them above it.

    Returns:
        The path of the page with all kernel models, relative to the UI's address.
    """
    client = _client(Path(folder))
    owner = _experiment(client, Path(folder), KERNEL_MODELS)
    created = int(client.get_experiment(owner).creation_time or 0)
    runs = client.search_runs([owner], "tags.current = 'yes'", max_results=50_000)
    tags = [run.data.tags for run in runs]
    models = sorted({(each["family"], each["gpu"]) for each in tags if {"gpu", "family"} <= each.keys()})
    views, links = {mlflow_views.ALL: mlflow_views.view("Kernel models, smallest error first", created)}, []
    for family, gpu in models:
        key, chosen = mlflow_views.of_model(gpu, family)
        views[key] = mlflow_views.view("", created, chosen)
        links.append(f"[{family} · {gpu}]({mlflow_views.page(owner, key)})")
    for key, text in views.items():
        client.set_experiment_tag(owner, mlflow_views.SHARED_VIEW + key, text)
    client.set_experiment_tag(owner, _NOTE, _note(links))
    return mlflow_views.page(owner, mlflow_views.ALL)


def _note(links: Sequence[str]) -> str:
    """The description of the kernel models, with as many links as it holds.

    The links come first, because the page shows one line of the description until it is opened.
    """
    shown = [link for link, size in zip(links, accumulate(len(link) + 2 for link in links), strict=True)
             if size < MAX_NOTE - 200]  # fmt: skip
    if not shown:
        return EXPERIMENTS[KERNEL_MODELS]
    rest = (
        f" and {len(links) - len(shown)} more (search for tags.family and tags.gpu)" if len(shown) < len(links) else ""
    )
    return f"Variants of {', '.join(shown)}{rest}  \n{EXPERIMENTS[KERNEL_MODELS]}"


def kernel_models_page(folder: str | Path) -> str:
    """Address of the page with all kernel models while `steptime ui` runs; the UI's own if no fit was logged.

    This reads the database itself, because a command that only prints the address shall not import MLflow (seconds).
    """
    known = f"file:{quote(str(database_of(folder).resolve()))}?mode=ro"
    with contextlib.closing(sqlite3.connect(known, uri=True)) as database:
        asked = "SELECT experiment_id FROM experiments WHERE name = ? AND lifecycle_stage = 'active'"
        try:
            found = database.execute(asked, [KERNEL_MODELS]).fetchone()
        except sqlite3.Error:  # it is being created, or it is no database
            found = None
    return f"http://{LOOPBACK}:{PORT}/" + (mlflow_views.page(str(found[0]), mlflow_views.ALL) if found else "")


@_one_process_at_a_time
def register_model(folder: str | Path, name: str, run_id: str, place: str, tags: Mapping[str, str]) -> str:
    """Register the model logged under `place` of a run as a new version of `name`; returns the version."""
    from mlflow.exceptions import MlflowException
    from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_MODELS

    client = _client(Path(folder))
    with contextlib.suppress(MlflowException):  # it exists since an earlier fit and gets a new version
        client.create_registered_model(name, tags=dict(tags))
    run = client.get_run(run_id)
    logged = [{"run_id": run_id, "artifact_path": place, "flavors": {"steptime": {}}}]
    client.set_tag(run_id, MLFLOW_LOGGED_MODELS, json.dumps(logged))  # the column *Models* joins it with the version
    version = client.create_model_version(name, f"{run.info.artifact_uri}/{place}", run_id=run_id, tags=dict(tags))
    return str(version.version)


@_one_process_at_a_time
def choose_champion(folder: str | Path, name: str, run_id: str) -> str:
    """Give the tag and the alias `champion` to the registered model `name` with the lowest GMAE; return its run's id.

    Only registered models of current runs on the same samples as `run_id` are compared. Errors on other samples are not
    comparable, and a superseded run must not be the champion. A fit of a single sample has no error and comes last.
    """
    client = _client(Path(folder))
    last = client.get_run(run_id)
    tags = last.data.tags
    asked = f"tags.model = '{name}' and tags.current = 'yes'"
    current = client.search_runs([last.info.experiment_id], asked, max_results=1000)
    versions = {version.run_id: version.version for version in client.search_model_versions(f"name = '{name}'")}
    able = [run for run in current if run.info.run_id in versions and run.data.tags["samples"] == tags["samples"]]
    best = min(able, key=lambda run: run.data.metrics.get("gmae", math.inf))
    for run in current:
        client.set_tag(run.info.run_id, "champion", "yes" if run is best else "no")
    client.set_registered_model_alias(name, "champion", versions[best.info.run_id])
    return str(best.info.run_id)


def serve(port: int, folder: str | Path) -> None:
    """Replace this process by the MLflow UI on a folder's database. It always binds `LOOPBACK`.

    Raises:
        InputError: no pipeline has run yet, the port is invalid or in use, or the shared database is a server with a UI
            of its own.
    """
    folder = Path(folder)
    _check_port(port)
    if _is_server():
        raise InputError(f"${SHARED_DATABASE}={_shared()}: this server has a UI of its own; open it in a browser")
    if not _shared() and not database_of(folder).is_file():
        raise InputError(
            f"{database_of(folder)}: no such file; run the pipeline first (make run), or give its folder with --results"
        )
    os.environ.update(_ENVIRONMENT)
    for name in [name for name in os.environ if _SERVER_VARIABLES.fullmatch(name)]:
        del os.environ[name]
    page = describe_kernel_models(folder)
    print(f"MLflow UI (stop with Ctrl-C); kernel models: http://{LOOPBACK}:{port}/{page}", flush=True)
    # one worker: with several, a worker that needs over five seconds to import MLflow (busy machine) is killed repeatedly
    options = ["--backend-store-uri", _uri(folder), "--host", LOOPBACK, "--port", str(port), "--workers", "1"]
    os.chdir(sys.prefix)  # uvicorn searches libraries in the current folder first: a file of the user must not be one
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", "ui", *options])


def _check_port(port: int) -> None:
    """Refuse a port that the server cannot use. The server itself would fail half a minute later, in twenty lines."""
    import socket

    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
    except (OverflowError, OSError) as error:
        reason = getattr(error, "strerror", None) or "a port is a number from 1 to 65535"
        raise InputError(f"--port {port}: {reason}; give another port, such as --port 5001") from None


def _experiment(client: Any, folder: Path, name: str) -> str:
    """Id of an experiment of `EXPERIMENTS`; it is created if the database has none of that name."""
    from mlflow.exceptions import MlflowException

    if (known := client.get_experiment_by_name(name)) is not None:
        return str(known.experiment_id)
    # a server has a place of its own for artifacts
    place = None if _is_server() else (folder.resolve() / "artifacts" / name.replace(" ", "_")).as_uri()
    try:
        made = client.create_experiment(name, artifact_location=place)
    except MlflowException:  # another machine created it since
        if (known := client.get_experiment_by_name(name)) is not None:
            return str(known.experiment_id)
        raise
    client.set_experiment_tag(made, "mlflow.experimentKind", "custom_model_development")
    client.set_experiment_tag(made, _NOTE, EXPERIMENTS[name])
    return str(made)


def database_of(folder: str | Path) -> Path:
    """The database in a tracking folder; it is not used if `SHARED_DATABASE` names another."""
    return Path(folder) / _DATABASE


def _shared() -> str:
    """URI of the database or server of several machines; empty if each results folder has its own database."""
    return os.environ.get(SHARED_DATABASE, "")


def _is_server() -> bool:
    return _shared().startswith("http")


def _uri(folder: Path) -> str:
    return _shared() or f"sqlite:///{database_of(folder).resolve()}"


def _client(folder: Path) -> Any:
    import logging
    import warnings

    os.environ.update({key: os.environ.get(key, value) for key, value in _ENVIRONMENT.items()})
    warnings.filterwarnings("ignore")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    from mlflow import MlflowClient

    database = database_of(folder)
    if not _shared() and not database.is_file():
        # MLflow makes its tables one by one: a process that is killed meanwhile would leave a database that no other can use
        with atomic_path(database) as part:
            part.unlink()
            MlflowClient(tracking_uri=f"sqlite:///{part.resolve()}").search_experiments(max_results=1)
    return MlflowClient(tracking_uri=_uri(folder))
