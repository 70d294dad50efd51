"""Completion of overrides, with the script that `steptime --show-completion` prints, and for each shell's words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.completion import complete_override, keys_of, values
from pipeline.question.compose import choices
from pipeline.question.question import expand
from tests.question.test_options import way_of

MANY = 20
BASH = shutil.which("bash")


class Context:
    """What typer knows of the words before the cursor."""

    def __init__(self, *given: str) -> None:
        self.params = {"overrides": list(given)}


def completed(word: str, *given: str) -> list[str]:
    return complete_override(Context(*given), word)  # type: ignore[arg-type]


def test_every_value_that_is_offered_is_accepted() -> None:
    keys = dict.fromkeys(key for way in choices("parallel") for key in keys_of("dlrm_default", way))
    for key in keys:
        offered = values(key, "dlrm_default")
        if len(offered) > MANY:  # names of files, which are all composed elsewhere
            offered = (*offered[:3], *offered[-3:])
        for value in offered if not key.startswith(("edit.", "experiment")) else ():
            # options that a value needs beside it
            more = {
                "model.precision": ["model.dtype=bf16"],
                "custom": ["model.target=my_module:make_step", "batch_size=8"],
                "timm": ["model.name=resnet50"],
                "torchvision": ["model.name=resnet50"],
                "transformers": ["model.config=GPT2Config"],
            }
            needed = more.get(value, more.get(key, []) if value == "pure" else [])
            assert expand([f"{key}={value}", *needed, *way_of(key)]), f"{key}={value}"


def test_the_last_value_of_a_list_is_completed_and_none_is_offered_twice() -> None:
    assert completed("gpu=V100,T") == ["gpu=V100,T4", "gpu=V100,TITANRTX", "gpu=V100,TITANV"]
    assert "gpu=T4,T4" not in completed("gpu=T4,")
    assert completed("model.dtype=fp") == ["model.dtype=fp32", "model.dtype=fp16"]
    assert completed("batch_size=10") == ["batch_size=1024"]


def test_options_are_those_of_the_workload_and_of_the_way_that_are_named() -> None:
    assert "model.embedding=" in completed("model.") and "model.embedding=" not in completed(
        "model.", "model=resnet50"
    )
    assert completed("model.emb", "model=no_such") == completed("model.emb")
    usual, sharded = completed("parallel."), completed("parallel.", "parallel=fsdp")
    assert "parallel.tp=" in usual and "parallel.shard_size=" not in usual
    assert "parallel.shard_size=" in sharded and "parallel.bucket_cap_mb=" not in sharded


def test_a_single_option_brings_its_values_so_that_the_shell_adds_no_blank() -> None:
    assert completed("gp") == [f"gpu={name}" for name in [*choices("gpu"), "local"]]
    assert completed("predict.dr") == ["predict.draws="]
    assert "cluster=dgx-a100" in completed("cluster=")
    assert completed("no_such") == [] == completed("no_such=")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A search path with `steptime` of this checkout."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "steptime"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m pipeline \"$@\"\n")
    command.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
def test_bash_completes_with_the_installed_script(path: str, tmp_path: Path) -> None:
    asked = [
        "kernels predict --gpu H2",
        "run gpu = V100,T",
    ]
    tries = "\n".join(
        f"COMP_WORDS=(steptime {each}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); "
        '_steptime_completion steptime; echo "${COMPREPLY[*]}"'
        for each in asked
    )
    script = f'eval "$(_STEPTIME_COMPLETE=source_bash steptime)"\n{tries}\n'
    done = subprocess.run(
        [str(BASH), "--norc", "-c", script],
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "H20 H200",
        "V100,T4 V100,TITANRTX V100,TITANV",
    ]


@pytest.mark.parametrize(("shell", "form"), [("zsh", '"{}"'), ("fish", "{}")])
def test_zsh_and_fish_get_whole_overrides(shell: str, form: str, path: str) -> None:
    asked = {
        "_STEPTIME_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "steptime predict gpu=V100-",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        ["steptime"],
        env={**os.environ, "PATH": path, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    for name in ("V100-SXM2-16GB", "V100-SXM2-32GB"):
        assert form.format(f"gpu={name}") in done.stdout
    assert "T4" not in done.stdout
