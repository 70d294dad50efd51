"""Every command of the README and the docs runs as it is printed; long ones with `make nightly`."""

from __future__ import annotations

import gzip
import json
import re
import shlex
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
from pipeline.question.sections import NAMED_BY
from tests.show.test_docs import FENCE, prose

ROOT = project_dir()
PAGES = [ROOT / "README.md", ROOT / "config" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

NOT_RUN = {
    "steptime ui": "starts a server",
    "steptime host": "tests/overheads/test_host_probe.py runs it with fewer rounds",
}
"""Commands of steptime that are not run here, each with its reason."""

NIGHTLY = re.compile(
    r"^steptime (plan|kernels fit|advise gpu=A100)|glob\(|--models models|--probes|model=gpt2_large|edit\."
    r"|=resnet50,convnext|GPT2Config|devices=(64|1,2,4,8)|fp32,fp16 --page|gpu.dram_gb_per_s=|bert_large model.dtype=default|regnet"
)
"""Commands that take more than a few seconds, or use what such a command made."""

NEED_MORE = {
    "--profile profiles/slurm": "needs a cluster",
    "s3://": "needs an object store",
    "MY_GPU": "needs a campaign; tests/workflow and tests/collect run them on a small one",
    "--report rules.html": "tests/show/test_page.py makes Snakemake's own report",
    "gpu=local": "`make run` measures this machine",
    "experiment=paper_dlrm": "takes minutes; `make paper` runs it",
}
"""Parts of Snakemake's commands that are not run here, each with the reason."""


def shown(first: str) -> list[str]:
    """Command lines in fences and indented blocks that begin with a word, in the order of the pages; each once."""
    lines: list[str] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines += [line for _, block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"^    (\S.*)$", prose(text), re.MULTILINE)
    parts = [line.removeprefix("$ ").split("  #")[0].strip() for line in lines]
    return list(dict.fromkeys(part for part in parts if part.partition(" ")[0] == first))


def runnable() -> Iterator[object]:
    for command in shown("steptime"):
        marks = [pytest.mark.nightly] if NIGHTLY.search(command) else []
        for library in NAMED_BY:
            if re.search(rf"(model=|models ){library}", command):
                marks.append(pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed"))
        if not any(command.startswith(name) for name in NOT_RUN):
            yield pytest.param(command, marks=marks)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages speak of."""
    folder = tmp_path_factory.mktemp("desk")
    drawn = gzip.decompress((ROOT / "tests/trace/golden/drawn_gpu/input/kineto.json.gz").read_bytes())
    for name in ("trace.json.gz", "TRACE"):
        (folder / name).write_bytes(gzip.compress(drawn.replace(b"Test GPU", b"Tesla V100-SXM2-16GB")))
    sizes = [256, 512, 768, 1024, 1536, 2048]
    calls = pd.DataFrame({"op": "linear", "B": 1, "M": sizes, "N": 1024, "K": 1024})
    calls.to_parquet(folder / "calls.parquet")
    rows = pd.DataFrame([{"op": "linear", "B": 1, "M": m, "N": n, "K": k, "latency_us": 30 + m * n * k * 2e-7}
                         for m in (64, 256, 1024) for n in (64, 256, 1024) for k in (64, 256, 512, 1024)])  # fmt: skip
    for name in ("samples", "measured", "probes"):
        rows.assign(gpu="V100" if name == "samples" else "T4" if name == "measured" else "L4").to_parquet(
            folder / f"{name}.parquet"
        )
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


@pytest.mark.parametrize("command", list(runnable()))
def test_a_command_of_the_docs_runs_as_printed(command: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, f"{command}: {done.exception}\n{done.output[-800:]}"
    assert done.output.strip()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "command", [command for command in shown("snakemake") if not any(part in command for part in NEED_MORE)]
)
def test_a_run_of_the_pipeline_in_the_docs_runs_as_printed(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    words = [sys.executable, "-m", "snakemake", "--cores", "1", "--directory", str(tmp_path), *words[1:]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{command}: {done.stderr[-1500:]}"


def test_every_exception_is_still_shown() -> None:
    steptime, snakemake = shown("steptime"), shown("snakemake")
    assert len(steptime) > 25 and len(snakemake) > 5
    assert all(any(part in command for command in snakemake) for part in NEED_MORE)
