"""Commands that list what there is: GPUs, workloads, and what this machine can do."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.answers.step_errors import NORMAL_P90
from pipeline.answers.who_answers import observations_in, shipped_overheads
from pipeline.completion import complete_model
from pipeline.errors import InputError
from pipeline.model_files import HALF, SHARED, TRANSFER, check_pack, list_packs
from pipeline.paths import campaign_gpus, datasets_dir, packs_dir
from pipeline.question.options import NAMED_BY
from pipeline.show.catalogue import cluster_rows, gpu_rows, host_rows, model_rows, option_rows
from pipeline.show.tracking import log_run
from pipeline.terminal import Csv, Json, catalogue, examples, print_json, working
from pipeline.workloads.model_names import names_in
from pipeline.yaml_text import NAME

app = typer.Typer()


@app.command(epilog=examples("gpus"))
def gpus(as_json: Json = False, as_csv: Csv = False) -> None:
    """List the GPUs that can be predicted, with the evidence available for each."""
    catalogue(gpu_rows(), as_json, as_csv)


@app.command(epilog=examples("hosts"))
def hosts(as_json: Json = False, as_csv: Csv = False) -> None:
    """List the hosts that launch the work of a GPU: where their overheads come from, and how sure they are."""
    catalogue(host_rows(), as_json, as_csv)


@app.command(epilog=examples("clusters"))
def clusters(as_json: Json = False, as_csv: Csv = False) -> None:
    """List the clusters that GPUs share: what joins the GPUs of a node, and the nodes."""
    catalogue(cluster_rows(), as_json, as_csv, optional=("host", "NICs"))


@app.command(epilog=examples("host", "host --out lab.yaml"))
def host(
    out: Annotated[
        Path, typer.Option(help="the file to write; its name is the name of the host")
    ] = Path("my_host.yaml"),
    as_json: Json = False,
) -> None:
    """Probe this machine's CPU in a minute or two, without a GPU, and write a file for host=FILE."""
    if out.suffix != ".yaml" or not re.fullmatch(NAME, out.stem):
        raise InputError(
            f"--out {out}: name a .yaml file with letters, digits, - and _; the host gets its name"
        )
    if out.exists():
        raise InputError(f"--out {out}: exists already; give another name, or remove it")
    from pipeline.collect.host_probe import DONOR, probe_host, write_host

    with working("probing the host") as say:
        probed = probe_host(out.stem, observations_in(shipped_overheads(DONOR)), say)
    write_host(probed, out)
    low, high = (probed.scale * math.exp(sign * NORMAL_P90 * probed.log_sd) for sign in (-1, 1))
    facts = {"host": probed.name, "times": probed.scale, "p10": low, "p90": high, "file": str(out)}
    if as_json:
        print_json(facts)
        return
    print(
        f"{out}: host times are {probed.scale:.2f} (p10-p90: {low:.2f} to {high:.2f}) of those of"
        " v100-traces"
    )
    print(f"use it: steptime predict gpu=H100 model=dlrm_default host={out}")


@app.command(
    epilog=examples("models", "models dlrm_default", "models timm", "models timm --options")
)
def models(
    name: Annotated[
        str | None,
        typer.Argument(
            help="list the options of this workload, or the models of this library",
            autocompletion=complete_model,
        ),
    ] = None,
    options: Annotated[
        bool, typer.Option("--options", help="list the options of a library's models")
    ] = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """List the workloads that can be predicted, the options of one with their values, or the models of a library."""
    if name in NAMED_BY and not options:
        catalogue([{NAMED_BY[name]: model} for model in names_in(name)], as_json, as_csv)
    else:
        catalogue(model_rows() if name is None else option_rows(name), as_json, as_csv)


@app.command(epilog=examples("doctor"))
def doctor(as_json: Json = False, as_csv: Csv = False) -> None:
    """Check what this machine can do: device, profiler, MLflow, data, packs."""
    with working("checking this machine") as say:
        rows = examine(say)
    catalogue(rows, as_json, as_csv)
    if any(row["status"] == "broken" for row in rows):
        raise typer.Exit(1)


def examine(say: Callable[[str], object] = lambda _: None) -> list[dict[str, Any]]:
    """Check every ability; a check that raises an error is reported as broken with its message.

    Args:
        say: called with the progress before each check.
    """
    checks: dict[str, Callable[[], tuple[str, str]]] = {
        "torch": _torch,
        "GPU": _gpu,
        "profiler": _profiler,
        "MLflow": _mlflow,
        "packs": _packs,
        "public data": _data,
        "own measurements": _measurements,
        "disk": _disk,
    }
    rows = []
    for number, (name, check) in enumerate(checks.items(), 1):
        say(f"checking {name} ({number} of {len(checks)})")
        try:
            status, detail = check()
        except Exception as error:  # every kind of failure is reported
            status, detail = (
                "broken",
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            )
        rows.append({"what": name, "status": status, "detail": detail})
    return rows


def _torch() -> tuple[str, str]:
    import torch

    return "ok", f"{torch.__version__}, {torch.get_num_threads()} CPU threads"


def _gpu() -> tuple[str, str]:
    import torch

    if not torch.cuda.is_available():
        return "absent", "no CUDA device: gpu=local measures the CPU, other GPUs are predicted"
    return "ok", f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"


def _profiler() -> tuple[str, str]:
    import torch
    from torch.profiler import profile

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with profile() as profiler:
        torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
    events = [event for event in profiler.events() or [] if "mm" in event.name]
    if not events:
        return "broken", "the profiler did not record the matmul"
    if device == "cuda" and not any(
        str(e.device_type).endswith("CUDA") for e in profiler.events() or []
    ):
        return "broken", "the profiler records no kernels; check that this user may profile"
    return "ok", f"records {'kernels' if device == 'cuda' else 'operators'} on {device}"


def _mlflow() -> tuple[str, str]:
    import mlflow

    with tempfile.TemporaryDirectory() as folder:
        log_run(folder, "doctor", params={}, metrics={}, tags={})

    return "ok", f"{mlflow.__version__}, sqlite store works"


def _packs() -> tuple[str, str]:
    names = list_packs() + [f"{HALF}/{gpu}" for gpu in list_packs(HALF)]
    for name in (*names, TRANSFER, SHARED):
        check_pack(name)
    return _found(names, f"none under {packs_dir()}")


def _data() -> tuple[str, str]:
    folders = [str(folder)] if (folder := datasets_dir()) else []
    return _found(folders, "shipped packs are used; set $STEPTIME_DATASETS to refit")


def _measurements() -> tuple[str, str]:
    return _found(campaign_gpus(), "none yet; see docs/measure_your_gpu.md")


def _found(names: list[str], absent: str) -> tuple[str, str]:
    return ("ok", ", ".join(names)) if names else ("absent", absent)


def _disk() -> tuple[str, str]:
    free = shutil.disk_usage(Path.cwd()).free
    return ("ok" if free > 2**30 else "broken"), f"{free / 2**30:.1f} GiB free here"
