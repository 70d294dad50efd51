"""Every command and every block of Python in the README and the docs runs as it is printed; long ones with `make nightly`."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.paths import project_dir
from pipeline.question.options import NAMED_BY
from tests.show.test_docs import COMMANDS, FENCE, prose

ROOT = project_dir()
PAGES = [ROOT / "README.md", ROOT / "config" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

EXCEPT = {
    "steptime ui": "serves until it is stopped; tests/show/test_tracking.py starts the server",
    "profiles/slurm": "needs a cluster",
    "s3://": "needs an object store",
    "mlflow db": "needs a database server",
    "pip ": (
        "fetches packages; tests/workflow/test_wheel.py builds the wheel and runs what it holds"
    ),
    "dist/steptime": "fetches packages",
    "collect.campaign ": (
        "needs a GPU; tests/collect/test_pretended_gpu.py gives it one that is pretended"
    ),
    "overheads=own,pooled": (
        "needs a campaign that traced every step of the experiment, which our H100's did not"
    ),
    "FOLDS": "needs the public data and 20 minutes",
    "build_tensor_core": "needs the package aiconfigurator-core",
    "track(device": "needs a GPU; tests/transfer/test_tracker.py moves saved traces of one",
}
"""Parts of the commands and blocks that are not run here, each with the reason."""

NIGHTLY = re.compile(
    r"^steptime (plan|kernels fit|advise gpu=A100)|glob\(|--models"
    r" models|--probes|model=gpt2_large|edit\."
    r"|=resnet50|--depth 4|P4000|model.layers=96|GPT2Config|devices=(64|1,2,4,8)"
    r"|fp32,fp16 --page|gpu.dram_gb_per_s=|bert_large model.dtype|regnet"
    r"|compile=false,true|model=hstu .*uniform,full|ddp,fsdp|my_plan|round_robin,|plan_sharding\("
    r'|advise\(|predict_grid\(|="1,2,4,8"|mlflow\.pyfunc'
    r"|advise gpu=V100|gpu=V100,A100,T4 model=dlrm_default,resnet50|A100,L4,H100|diff --trace"
    r"|gpu=RTX2080Ti,V100|\.diff\(predict|=fused,sparse,dense|vit_base|torch\.compile\("
)
"""Commands and blocks that take more than a few seconds, or use what such a command made.

`make test` runs commands of the same kind on smaller steps: `tests/show/test_widths.py`, and those beside each part."""


def shown() -> list[str]:
    """Lines after a prompt, and others in fences and indented blocks that begin with a program; each once."""
    lines: list[str] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines += [
            line
            for _, block in FENCE.findall(text)
            for line in block.replace("\\\n", " ").splitlines()
        ]
        lines += re.findall(r"^    (\S.*)$", prose(text), re.MULTILINE)
    parts = [
        line.split("  #")[0].strip()
        for line in lines
        if line.startswith("$ ") or line.split(" ")[0] in COMMANDS
    ]
    return list(dict.fromkeys(part.removeprefix("$ ") for part in parts))


GIVEN = {
    " step()": "import torch; step = lambda: torch.rand(8, 8) @ torch.rand(8, 8)",
    "choose_probes(": "import pandas; calls = pandas.read_parquet('calls.parquet')",
    "MyNet": (
        "MyNet = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224,"
        " 1000))"
    ),
    "mlflow.pyfunc": (
        "from pipeline.show.kernel_runs import log_shipped_models as log;"
        " log(Path('results/mlflow'))"
    ),
    "scaler": (
        """import torch.nn.functional as F; from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint; model, scaler = torch.nn.Linear(64, 10), torch.amp.GradScaler()
x, y, optimizer = torch.rand(8, 64), torch.randint(10, (8,)), torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)"""
    ),
}
"""Parts of Python blocks, and what the reader has in their place: a step, a model, a table, a database."""


def runnable(ours: bool) -> Iterator[object]:
    """Commands of steptime, or all others."""
    for command in shown():
        marks = [pytest.mark.nightly] if NIGHTLY.search(command) or not ours else []
        for library in NAMED_BY:
            if re.search(rf"(model=|models ){library}", command):
                marks.append(
                    pytest.mark.skipif(
                        find_spec(library) is None, reason=f"{library} is not installed"
                    )
                )
        if command.startswith("steptime ") == ours and not any(part in command for part in EXCEPT):
            yield pytest.param(command, marks=marks)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages speak of."""
    folder = tmp_path_factory.mktemp("desk")
    drawn = gzip.decompress(
        (ROOT / "tests/trace/golden/drawn_gpu/input/kineto.json.gz").read_bytes()
    )
    for name in ("trace.json.gz", "TRACE"):
        (folder / name).write_bytes(
            gzip.compress(drawn.replace(b"Test GPU", b"Tesla V100-SXM2-16GB"))
        )
    sizes = [256, 512, 768, 1024, 1536, 2048]
    calls = pd.DataFrame({"op": "linear", "B": 1, "M": sizes, "N": 1024, "K": 1024})
    calls.to_parquet(folder / "calls.parquet")
    rows = pd.DataFrame(
        [
            {"op": "linear", "B": 1, "M": m, "N": n, "K": k, "latency_us": 30 + m * n * k * 2e-7}
            for m in (64, 256, 1024)
            for n in (64, 256, 1024)
            for k in (64, 256, 512, 1024)
        ]
    )
    for name, gpu in (("samples", "V100"), ("measured", "T4"), ("probes", "L4")):
        rows.assign(gpu=gpu).to_parquet(folder / f"{name}.parquet")
    table = {"num_embeddings": 1000, "pooling_factor": 10}
    (folder / "my_tables.json").write_text(json.dumps([table] * 405))
    (folder / "my").mkdir()
    bert = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 2}
    (folder / "my" / "config.json").write_text(json.dumps(bert))
    for page in PAGES:  # modules whose first line is a comment with their name
        for _, block in FENCE.findall(page.read_text(encoding="utf-8")):
            if named := re.match(r"# (my_\w+\.py)\n", block):
                (folder / named[1]).write_text(block)
    return folder


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with the environment of this Python, and a campaign of a GPU of the reader's."""
    folder = tmp_path_factory.mktemp("home") / "checkout"
    left = shutil.ignore_patterns(
        ".git", ".venv", "results", ".snakemake", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, folder, ignore=left)
    (folder / "measurements" / "H100").rename(folder / "measurements" / "MY_GPU")
    gpu = (folder / "config" / "gpu" / "H100.yaml").read_text(encoding="utf-8")
    gpu = re.sub(r"name: H100\naliases:\n(  - .*\n)+", "name: MY_GPU\n", gpu)
    (folder / "config" / "gpu" / "MY_GPU.yaml").write_text(gpu)
    (folder / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        (folder / ".venv" / part.name).symlink_to(part)
    (folder / ".venv" / ".ready").touch()
    return folder


@pytest.mark.parametrize("command", list(runnable(ours=True)))
def test_a_command_of_the_docs_runs_as_printed(
    command: str, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, f"{command}: {done.exception}\n{done.output[-800:]}"
    assert done.output.strip()


@pytest.mark.parametrize("command", list(runnable(ours=False)))
def test_a_command_in_a_checkout_runs_as_printed(command: str, checkout: Path) -> None:
    """One after the other, so that they find what those above them made; with what ships, as after a clone."""
    env = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "PATH": f"{checkout}/.venv/bin:{os.environ['PATH']}",
        "HOME": str(checkout.parent),
        "STEPTIME_DATASETS": "none",
    }
    done = subprocess.run(
        ["bash", "-c", command], cwd=checkout, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-800:]}\n{done.stderr[-1500:]}"
    if "--report" in command:
        text = (checkout / "rules.html").read_text(encoding="utf-8")
        assert (
            "In the dark part of a bar a kernel runs" in text and '"figure": "narrow"' not in text
        )


def blocks() -> Iterator[object]:
    """Python of the pages: each block, and before it the imports of those above it and what its reader has."""
    for page in PAGES:
        imports = ""
        for _, block in (
            each for each in FENCE.findall(page.read_text(encoding="utf-8")) if each[0] == "python"
        ):
            given = "\n".join(text for part, text in GIVEN.items() if part in block)
            if "track(device" not in block:
                marks = [pytest.mark.nightly] if NIGHTLY.search(block) else []
                yield pytest.param(
                    f"{imports}{given}\n{block}", id=f"{page.name}: {block[:40]!r}", marks=marks
                )
            imports += "".join(re.findall(r"^(?:import|from) .*\n", block, re.MULTILINE))


@pytest.mark.parametrize("program", list(blocks()))
def test_python_of_the_docs_runs(
    program: str, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(desk, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "block", "exec"), {"__name__": "block", "Path": Path, "ROOT": ROOT})


def test_every_exception_is_still_shown() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(shown()) > 70 and len(list(blocks())) > 15
    assert all(part in pages.replace("\\\n", " ") for part in (*EXCEPT, *GIVEN))
