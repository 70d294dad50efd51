"""Hosts: which one a GPU usually sits in, what a file may say, and what another host changes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pipeline import compare, predict
from pipeline.answers.host_share import shared_host
from pipeline.answers.step_errors import host_sigma
from pipeline.answers.ties import THROUGHPUT
from pipeline.cli import app
from pipeline.errors import ConfigError, InputError, UnknownNameError
from pipeline.hardware.find_gpu import list_gpus
from pipeline.hardware.hosts import list_hosts, load_host, usual_host
from pipeline.paths import config_files
from pipeline.question.question import ask, expand
from pipeline.show.catalogue import host_rows

ORDER = (
    *("maxwell", "pascal", "volta", "turing", "ampere"),
    *("cdna2", "ada", "hopper", "cdna3", "blackwell"),
)
"""Architectures by year."""

DDP = {"model": "dlrm_ddp", "batch_size": 512}
"""A step that waits for its host."""


def test_a_newer_gpu_never_has_an_older_usual_host() -> None:
    assert {gpu.architecture for gpu in list_gpus()} <= set(ORDER)
    names = [
        usual_host(gpu).name
        for gpu in sorted(list_gpus(), key=lambda gpu: ORDER.index(gpu.architecture))
    ]
    assert names == sorted(names) and len(set(names)) == 3


def test_each_architecture_has_one_usual_host() -> None:
    named = [architecture for host in list_hosts() for architecture in host.usual_for]
    assert sorted(named) == sorted(ORDER), "no card is left to the newest host by chance"


def test_measured_hosts_of_an_h100_are_slower_than_those_of_an_a100() -> None:
    v100, a100, h100 = (predict(gpu, **DDP).predicted_us for gpu in ("V100", "A100", "H100"))
    assert v100 >= h100 > a100


def test_the_usual_host_by_its_name_is_the_same_point() -> None:
    usual, named, other = (
        ask(["gpu=A100", f"host={name}"]) for name in ("usual", "typical-2020", "typical-2017")
    )
    assert usual.variant == named.variant == "default" and usual.host == named.host
    assert other.variant == "host-typical-2017" and "host=typical-2017" in other.overrides
    assert len(expand(["gpu=A100", "host=usual,typical-2020,typical-2017"])) == 2
    assert len(expand(["gpu=A100", "host=glob(*)"])) == len(config_files("host"))


def test_the_factor_of_a_host_multiplies_host_times_alone(tmp_path: Path) -> None:
    file = tmp_path / "fast.yaml"
    file.write_text("name: fast\nwhat: a fast host\nobservations: V100\nscale: 0.5\nlog_sd: 0.1\n")
    slow, fast = (predict("V100", host=name, **DDP) for name in ("v100-traces", str(file)))
    halved = predict("V100", host="v100-traces", overheads__host_scale=0.5, **DDP)
    assert (
        fast.host == "fast"
        and fast.host_us == pytest.approx(halved.host_us)
        and fast.host_us < 0.6 * slow.host_us
    )
    assert fast.active_us == pytest.approx(slow.active_us, rel=0.02)
    assert list(fast.host_evidence) == ["transferred"] and list(slow.host_evidence) == ["shared"]


def test_what_is_not_known_of_a_host_widens_the_interval() -> None:
    known, usual = (predict("V100", host=name, **DDP) for name in ("v100-traces", "typical-2017"))
    assert usual.predicted_us == pytest.approx(known.predicted_us)
    assert usual.p90_us / usual.p10_us > 1.3 * known.p90_us / known.p10_us
    assert host_sigma({"shared": 1.0}, 0.2) == pytest.approx(0.25)
    assert host_sigma({"shared": 1.0}) == 0.15


def test_a_comparison_says_what_the_host_changes() -> None:
    found = compare("V100,A100", **DDP)
    assert found.one_host.note == (
        "hosts differ: typical-2017 (V100); typical-2020 (A100-PCIE-40GB); one host for all:"
        " host=typical-2017"
    )
    a100 = predict("A100", host="typical-2017", **DDP)
    assert found.one_host.of(found.predictions[1]).predicted_us == pytest.approx(a100.predicted_us)
    both = compare("A100,V100", **DDP)
    one = [both.one_host.of(p) for p in both.predictions]
    assert {p.host for p in one} == {"typical-2017"} and "ms on typical-2017" in str(both)
    # the A100's gain is that of its host: on one host the two tie, and draws of the host are pairs
    assert list(both.ties) == [("dlrm_ddp", THROUGHPUT)] and "★" not in str(both)
    assert np.corrcoef(one[0].draws_us, one[1].draws_us)[0, 1] > 0.99
    assert compare("V100,P100", **DDP).one_host.note is None
    assert shared_host(expand(["gpu=V100,A100,A30"])).name == "typical-2020"


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "gpu=V100"],
        ["compare", "gpu=V100"],
        ["plan", "samples_per_s", "gpu=V100"],
        ["advise", "gpu=V100", "--same-results"],
        ["diff", "gpu=V100", "gpu=P100"],
    ],
)
def test_every_answer_names_the_host_the_dtype_and_the_optimizer(command: list[str]) -> None:
    words = [*command, "model=dlrm_small", "batch_size=64", "predict.draws=64"]
    shown = " ".join(
        CliRunner().invoke(app, words).output.split()
    )  # lines are broken at the width of a terminal
    for name in ("typical-2017", "dtype default", "optimizer sgd"):
        assert name in shown, f"{command[0]}: {name}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\nwhat: y\n", "observations is missing"),
        ("name: x\nwhat: y\nobservations: V100\nscale: fast\n", "scale is 'fast'"),
        (
            "name: x\nwhat: y\nobservations: V100\nspeed: 2\ncores: 4\n",
            "unknown key 'speed', 'cores'",
        ),
        ("name: x\nwhat: y\nobservations: V100\n", "expected 'host'"),
        ("a: [", "not readable as YAML"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "host.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_host(str(file))


def test_a_host_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'typical-2020'"):
        ask(["gpu=V100", "host=typical2020"])
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        ask(["gpu=V100", "host=nowhere.yaml"])
    with pytest.raises(ConfigError, match="gpu=local is measured with the host of this machine"):
        ask(["gpu=local", "host=typical-2020"])


def test_observations_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("name: x\nwhat: y\nobservations: L4\n")
    with pytest.raises(
        Exception, match="observations: L4, which has none; take one of A100-PCIE-40GB, V100"
    ):
        predict("V100", host=str(file), **DDP)


def test_a_campaigns_host_is_ready_after_the_command_of_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no run was made
    assert "the host of the measured H100 (needs a run first)" in {
        row["what"] for row in host_rows()
    }
    with pytest.raises(
        InputError, match="host=H100: a run reads its traces first: `steptime run gpu=H100 "
    ) as refused:
        predict("H100", host="H100", **DDP)
    _, *words = shlex.split(str(refused.value).split("`")[1])
    subprocess.run([sys.executable, "-m", "steptime", *words], check=True, capture_output=True)
    for estimator in ("clipped_mean", "median"):  # any statistics of what was read
        assert predict("H100", host="H100", overheads__estimator=estimator, **DDP).host == "H100"
    assert "the host of the measured H100 (ready)" in {row["what"] for row in host_rows()}


def test_a_users_host_is_usual_for_the_cards_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "host").mkdir()
    file = tmp_path / "host" / "lab.yaml"
    file.write_text(
        "name: lab\nwhat: our host\nobservations: V100\nscale: 0.4\nusual_for: [hopper]\n"
    )
    monkeypatch.setenv("STEPTIME_CONFIG", str(tmp_path))
    assert ask(["gpu=H100"]).host.name == "lab" and ask(["gpu=A100"]).host.name == "typical-2020"
    assert ask(["gpu=A100", "host=lab"]).host.scale == 0.4
