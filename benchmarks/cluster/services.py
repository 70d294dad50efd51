"""Servers for the checks, all on this machine's loopback address and in a temporary folder: Slurm, an S3 store, PostgreSQL.

Each is a context manager that starts the server, waits until it answers, and stops it at the end. They need Debian's
packages slurm-wlm, munge and postgresql, and the rights of root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOOPBACK = "127.0.0.1"

SLURM_CONF = """\
ClusterName=steptime
SlurmctldHost={host}({loopback})
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
MinJobAge=3600
SlurmctldTimeout=30
SlurmdTimeout=30
NodeName={host} NodeAddr={loopback} CPUs={cores} RealMemory={memory_mb} Gres=gpu:1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""Settings of a cluster of one node, which is also the controller. It counts one GPU, so that jobs that measure take turns."""

SYSTEM_CONF = Path("/etc/slurm/slurm.conf")
"""Where Slurm's commands look for settings. A variable that names another place does not reach the processes of a job."""


def missing() -> list[str]:
    """Programs that are needed and not installed."""
    return [
        name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None
    ] + ([] if _postgres() else ["postgresql"])


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """A Slurm cluster of this machine; yields the environment that its commands and jobs need."""
    folder.mkdir()
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 * 3 // 4
    (folder / "slurm.conf").write_text(
        SLURM_CONF.format(
            host=socket.gethostname().split(".")[0],
            loopback=LOOPBACK,
            folder=folder,
            cores=os.cpu_count(),
            memory_mb=memory_mb,
            controller_port=free_port(),
            node_port=free_port(),
        )
    )
    environment = dict(os.environ)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    with ExitStack() as servers:
        servers.enter_context(_linked(SYSTEM_CONF, folder / "slurm.conf"))
        servers.enter_context(_linked(SYSTEM_CONF.with_name("gres.conf"), folder / "gres.conf"))
        servers.enter_context(
            _running(
                [
                    "munged",
                    "--foreground",
                    "--force",
                    f"--key-file={key}",
                    f"--socket={folder}/munge.socket",
                    f"--pid-file={folder}/munge.pid",
                    f"--seed-file={folder}/munge.seed",
                ],
                folder / "munge.log",
                environment,
            )
        )
        wait_until(lambda: (folder / "munge.socket").exists(), "munged")
        for program in ("slurmctld", "slurmd"):
            servers.enter_context(_running([program, "-D"], folder / f"{program}.out", environment))
        wait_until(
            lambda: "idle" in told(["sinfo", "-h", "-o", "%T"], environment),
            "the node of the Slurm cluster",
        )
        yield environment
        subprocess.run(["scancel", "--user=root"], env=environment, check=False)


@contextmanager
def object_store(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """An S3 server (moto) with an empty bucket; yields the environment for its clients, with `AWS_ENDPOINT_URL`."""
    folder.mkdir()
    url = f"http://{LOOPBACK}:{(port := free_port())}"
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "check",
        "AWS_SECRET_ACCESS_KEY": "check",
        "AWS_ENDPOINT_URL": url,
    }
    with _running(
        [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(port)],
        folder / "log",
        environment,
    ):
        wait_until(lambda: _answers(port), "the S3 server")
        client = s3_client(environment)
        client.create_bucket(Bucket=bucket)
        yield environment


def s3_client(environment: Mapping[str, str]):
    """A client of the server that the environment names."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL server with an empty database `mlflow`; yields its address for SQLAlchemy."""
    folder.mkdir()
    port, programs, user = free_port(), _postgres(), ["runuser", "-u", "postgres", "--"]
    shutil.chown(folder, "postgres")
    folder.parent.chmod(0o755)  # the server runs as another user
    data = folder / "data"
    subprocess.run(
        [*user, f"{programs}/initdb", "-D", str(data), "-A", "trust"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    settings = f"-p {port} -k {folder} -c listen_addresses={LOOPBACK}"
    control = [*user, f"{programs}/pg_ctl", "-D", str(data), "-w"]
    subprocess.run(
        [*control, "-o", settings, "-l", str(folder / "log"), "start"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        subprocess.run(
            [*user, f"{programs}/createdb", "-h", LOOPBACK, "-p", str(port), "mlflow"], check=True
        )
        yield f"postgresql+psycopg2://postgres@{LOOPBACK}:{port}/mlflow"
    finally:
        subprocess.run(
            [*control, "-m", "immediate", "stop"], check=False, stdout=subprocess.DEVNULL
        )


def told(command: list[str], environment: Mapping[str, str]) -> str:
    """What a command prints; empty if it fails."""
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def wait_until(ready: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait until a condition holds.

    Raises:
        SystemExit: it does not hold in time.
    """
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"{what} is not ready after {seconds:g} s")
        time.sleep(0.2)


@contextmanager
def _linked(place: Path, file: Path) -> Iterator[None]:
    """A link at `place` to a file, removed with the block."""
    if place.exists() or place.is_symlink():
        raise SystemExit(
            f"{place}: exists; this machine has a Slurm of its own, which is left alone"
        )
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(file)
    try:
        yield
    finally:
        place.unlink()


@contextmanager
def _running(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """A process that is ended with the block; its output goes to a file."""
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _postgres() -> str:
    """Folder of the newest PostgreSQL's programs; empty if there is none."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3])
    )
    return str(found[-1].parent) if found else ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
