"""Clusters: which one a GPU usually sits in, what a file may say, and one-line errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.hardware.clusters import (
    FABRICS,
    check_fabric,
    list_clusters,
    load_cluster,
    usual_cluster,
)
from pipeline.hardware.find_gpu import list_gpus, load_gpu
from pipeline.hardware.hosts import list_hosts

FILE = """name: lab
what: four cards of the lab
gpus_per_node: 4
fabric: nvswitch
nvlink_bidirectional_gb_per_s: 600
pcie_gb_per_s: 20
latency_us: 1
nics_per_node: 2
nic_gbit_per_s: 100
nic_latency_us: 5
host: typical-2020
"""


def write(folder: Path, text: str = FILE, name: str = "lab") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def test_shipped_files_are_complete_and_every_figure_has_a_source() -> None:
    clusters = list_clusters()
    gpus, hosts = {gpu.name for gpu in list_gpus()}, {host.name for host in list_hosts()}
    named = [name for cluster in clusters for name in cluster.usual_for]
    assert len(named) == len(set(named)) and set(named) <= gpus
    assert {cluster.fabric for cluster in clusters} == set(FABRICS)
    stated = {
        "gpus_per_node",
        "pcie_gb_per_s",
        "latency_us",
        "nics_per_node",
        "nic_gbit_per_s",
        "nic_latency_us",
    }
    for cluster in clusters:
        assert stated <= set(cluster.sources), cluster.name
        assert cluster.host is None or cluster.host in hosts


@pytest.mark.parametrize(
    ("gpu", "cluster"),
    [
        ("V100-SXM2-32GB", "dgx1-v100"),
        ("A100-SXM4-40GB", "dgx-a100"),
        ("H100", "dgx-h100"),
        ("V100", "pcie3"),
        ("A100-PCIE-40GB", "pcie4"),
        ("RTX3090", "pcie4-no-p2p"),
        ("H100-PCIe", "pcie5"),
    ],
)
def test_an_sxm_card_sits_in_its_dgx_and_a_pcie_card_in_a_host_of_its_generation(
    gpu: str, cluster: str
) -> None:
    assert usual_cluster(load_gpu(gpu)).name == cluster


def test_every_gpu_fits_into_its_usual_cluster() -> None:
    for gpu in list_gpus():
        check_fabric(usual_cluster(gpu), gpu)


def test_figures_are_converted_once(tmp_path: Path) -> None:
    cluster = load_cluster(str(write(tmp_path)))
    assert (cluster.nvlink_gb_per_s, cluster.nic_gb_per_s) == (300.0, 12.5)
    assert (
        cluster.link_gb_per_s(load_gpu("H100")) == 300.0
    )  # the cluster's figure counts before the card's
    assert load_cluster("dgx-h100").link_gb_per_s(load_gpu("H100")) == 450.0
    assert (
        load_cluster("pcie4").link_gb_per_s(load_gpu("A100-PCIE-40GB"))
        == load_cluster("pcie4").pcie_gb_per_s
    )


def test_a_users_folder_counts_before_shipped_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster").mkdir()
    write(
        tmp_path / "cluster",
        FILE.replace("name: lab", "name: ours") + "usual_for: [H100]\n",
        "ours",
    )
    monkeypatch.setenv("STEPTIME_CONFIG", str(tmp_path))
    assert load_cluster("ours").host == "typical-2020"
    assert usual_cluster(load_gpu("H100")).name == "ours"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("fabric: nvswitch", "fabric: torus", "fabric is 'torus': choose one of nvswitch"),
        ("gpus_per_node: 4", "gpus_per_node: 0", "gpus_per_node is 0: give a whole number from 1"),
        (
            "nic_gbit_per_s: 100",
            "nic_gbit_per_s: fast",
            "nic_gbit_per_s is 'fast': give a number above 0",
        ),
        ("latency_us: 1\n", "", "latency_us is missing"),
        ("what:", "whatever:", "unknown key 'whatever'"),
        ("name: lab", "name: other", "expected 'lab', the name of the file"),
        ("host: typical-2020", "usual_for: H100", "usual_for is 'H100': give a list"),
    ],
)
def test_a_damaged_file_is_one_line_that_says_where(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in FILE
    path = write(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        load_cluster(str(path))
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'dgx-h100'"):
        load_cluster("dgx-h10")
    with pytest.raises(ConfigError, match="no such file"):
        load_cluster("lab/none.yaml")


def test_a_card_without_nvlink_does_not_fit_behind_switches() -> None:
    with pytest.raises(ConfigError, match=r"join A100-SXM4-40GB, .*, not T4; take cluster=pcie3"):
        check_fabric(load_cluster("dgx-a100"), load_gpu("T4"))
    with pytest.raises(ConfigError, match="T4 has not; take a PCIe host, such as cluster=pcie3"):
        check_fabric(load_cluster("hgx-a100-100gbe"), load_gpu("T4"))
    with pytest.raises(ConfigError, match="not A100-SXM4-80GB; take cluster=dgx-a100"):
        check_fabric(load_cluster("dgx-h100"), load_gpu("A100-SXM"))
