"""The MLflow UI on a folder's database, for this machine alone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from pipeline.errors import InputError
from pipeline.show.tracking import (
    QUIET,
    SHARED_DATABASE,
    champions_page,
    database_uri,
    is_server,
    shared_database,
)

LOOPBACK, PORT = "127.0.0.1", 5000
"""Address that the MLflow UI binds, and its port. The UI has no password, so other machines must not be able to reach
it."""

_SERVER_VARIABLES = re.compile(
    r"MLFLOW_(HOST|PORT|WORKERS|SERVER_\w+|\w+_OPTS)|(UVICORN|GUNICORN)_\w+"
)
"""Environment variables that would move MLflow's server to another address or open it to other machines."""


def serve(port: int, folder: str | Path, prepare: Callable[[], object] = lambda: None) -> int:
    """Run the MLflow UI on a folder's database until it is stopped; print its address when it answers.

    It always binds `LOOPBACK`.

    Args:
        port: its port.
        folder: the tracking folder; created if it does not exist.
        prepare: is called before the server starts, when the port is known to be free.

    Returns:
        The server's exit code.

    Raises:
        InputError: the port is invalid or in use, or the shared database is a server with a UI of its own.
    """
    folder = Path(folder)
    _check_port(port)
    if is_server():
        raise InputError(
            f"${SHARED_DATABASE}={shared_database()}: "
            "this server has a UI of its own; open it in a browser"
        )
    os.environ.update(QUIET)
    for name in [name for name in os.environ if _SERVER_VARIABLES.fullmatch(name)]:
        del os.environ[name]
    # processes for jobs of language models
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    prepare()
    page = f"http://{LOOPBACK}:{port}/{champions_page(folder)}"
    # one worker: with several, a worker that needs over five seconds to import MLflow (busy machine) is killed repeatedly
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", database_uri(folder)]
    command += f"--host {LOOPBACK} --port {port} --workers 1".split()
    # uvicorn searches libraries in the current folder first: a file of the user must not be one
    with subprocess.Popen(command, cwd=sys.prefix) as server:
        signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the server, too
            if _answers(server, f"http://{LOOPBACK}:{port}/health"):
                print(
                    f"MLflow UI (stop with Ctrl-C); kernel models, the best of each: {page}",
                    flush=True,
                )
            server.wait()
    return server.returncode


def _answers(server: subprocess.Popen[bytes], address: str) -> bool:
    """Whether a started server answers; waits until it does or has ended."""
    while server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return True
        time.sleep(0.2)
    return False


def _check_port(port: int) -> None:
    """Refuse a port that the server cannot use. The server itself would fail half a minute later, in twenty lines."""
    import socket

    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
    except (OverflowError, OSError) as error:
        reason = getattr(error, "strerror", None) or "a port is a number from 1 to 65535"
        raise InputError(
            f"--port {port}: {reason}; give another port, such as --port 5001"
        ) from None
