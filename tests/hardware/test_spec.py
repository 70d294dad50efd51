"""GPU files load into one set of units, are sourced, plausible, and found by name or alias."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.hardware import spec as spec_module
from pipeline.hardware.find_gpu import (
    cpu_spec,
    cuda_spec,
    differing_figures,
    list_gpus,
    load_gpu,
    same_chip,
)
from pipeline.hardware.spec import GpuSpec, has_bf16, has_tf32, refuses_bf16
from pipeline.paths import config_dir

WANTED = {
    "V100", "P100", "P4", "T4", "A100-PCIE-40GB", "A100-PCIE-80GB", "A100-SXM4-40GB",
    "A100-SXM4-80GB", "L4", "H100", "H100-PCIe", "H200", "RTX2080Ti", "RTX3090", "A10", "A40",
    "L40S", "B200", "B300", "GB200", "GB300", "RTXPRO6000", "Xp", "P4000", "RTX2070", "MI250",
    "GV100", "MI300X", "MI250X", "A10G", "L40", "H20", "H800", "H100-NVL", "GH200", "TITANRTX",
    "RTX6000", "A800-SXM4-80GB", "V100-PCIE-16GB", "P100-SXM2-16GB", "GTX1080Ti", "RTX2060",
    "RTX2080", "RTX3060", "RTX3060Ti", "RTX3070", "RTX3080Ti", "RTX4060", "RTX4060Ti", "RTX4070",
    "RTX4080", "RTX5080", "RTXA2000", "RTXA4000", "RTXA5000", "RTX4000Ada", "RTX5000Ada", "TITANV",
    "MI325X",
}  # fmt: skip


def test_every_promised_gpu_has_a_file_and_names_of_its_own() -> None:
    assert {spec.name for spec in list_gpus()} >= WANTED
    for spec in list_gpus():
        assert all(load_gpu(name) == spec for name in (spec.name, *spec.aliases))


def test_every_figure_has_a_source() -> None:
    for path in (config_dir() / "gpu").glob("*.yaml"):
        values = yaml.safe_load(path.read_text())
        figures = set(values) - {"name", "aliases", "sources"}
        assert figures == set(values["sources"]), path
        assert all(len(text) > 5 for text in values["sources"].values()), path


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("A100", "A100-PCIE-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("titan xp", "Xp"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX2080Ti"),
        ("Tesla V100-DGXS-32GB", "V100-SXM2-32GB"),
        ("AMD Instinct MI250X/MI250", "MI250X"),
        ("NVIDIA GeForce RTX 3060 Ti", "RTX3060Ti"),
    ],
)
def test_aliases_and_driver_names_find_their_gpu(alias: str, name: str) -> None:
    assert load_gpu(alias).name == name


def test_an_unknown_gpu_lists_the_choices() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'K80': choose one of A10, .*V100"):
        load_gpu("K80")


def test_units_are_converted_once_on_load() -> None:
    v100 = load_gpu("V100")
    assert v100.l2_bytes == 6 * 1024**2 and v100.memory_bytes == 32 * 1024**3
    assert v100.fp32_gflop_per_s == 14000 and v100.measured_fp32_gflop_per_s == 15442
    assert 11 < v100.pcie_gb_per_s < 13 and v100.nvlink_gb_per_s is None
    assert load_gpu("H100").nvlink_gb_per_s == 450
    assert load_gpu("P4").sms == 20


def test_derating_ratios_are_the_medians_of_the_measured_gpus() -> None:
    """Of the five that Lin et al. measured. The H100 came later: 0.77 of its fp32 peak, 0.91 of its bandwidth."""
    both = [spec for spec in list_gpus() if spec.measured_l2_gb_per_s and spec.name != "H100"]
    assert len(both) == 5
    clocked = np.array([spec.sms * spec.boost_clock_mhz / 1e3 for spec in both])

    def median(values: list[float | None]) -> float:
        return float(np.median(np.array(values, dtype=float)))

    fp32 = [spec.measured_fp32_gflop_per_s / spec.fp32_gflop_per_s for spec in both]  # type: ignore[operator]
    dram = [spec.measured_dram_gb_per_s / spec.dram_gb_per_s for spec in both]  # type: ignore[operator]
    l2 = [s.measured_l2_gb_per_s / c for s, c in zip(both, clocked, strict=True)]  # type: ignore[operator]
    assert median(fp32) == pytest.approx(spec_module.FP32_DERATE, abs=0.01)
    assert median(dram) == pytest.approx(spec_module.DRAM_DERATE, abs=0.01)
    assert median(l2) == pytest.approx(spec_module.L2_BYTES_PER_SM_CLOCK, abs=0.1)


def test_a_card_with_the_chip_of_another_has_its_figures() -> None:
    """H800 and A800 are H100 and A100 with slower NVLink, the H800 also in fp64; V100s with 16 and 32 GB differ in memory."""
    slow, full = load_gpu("A800-SXM4-80GB"), load_gpu("A100-SXM4-80GB")
    assert differing_figures(slow, full) == {"nvlink_gb_per_s"} and slow.nvlink_gb_per_s == 200
    assert load_gpu("H800").nvlink_gb_per_s == 200
    small = load_gpu("V100-PCIE-16GB")
    assert small.memory_bytes == 16 << 30 and same_chip(small, load_gpu("V100"))
    assert load_gpu("A10G").sms == 80  # as deviceProperties of traces say


def test_measured_peaks_win_over_the_datasheet() -> None:
    assert load_gpu("A100").peak_dram_gb_per_s() == 1391
    assert load_gpu("H200").peak_dram_gb_per_s() == pytest.approx(spec_module.DRAM_DERATE * 4800)
    assert load_gpu("V100").peak_gflop_per_s("bf16") == load_gpu("V100").peak_gflop_per_s("fp32")


def _figures(**changes: object) -> dict[str, object]:
    return {**yaml.safe_load((config_dir() / "gpu" / "T4.yaml").read_text()), **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dram_gb_per_s": 320e9}, "dram_gb_per_s"),
        ({"sms": None}, "sms is missing"),
        ({"watt": 3, "k": 2}, "unknown key 'watt', 'k'"),
        ({"architecture": "kepler"}, "kepler"),
        ({"measured_dram_gb_per_s": 900}, "measured_dram_gb_per_s"),
        ({"sources": 2147483648}, "sources"),
        ({"power_limit_w": "300W"}, "power_limit_w='300W' is no number"),
        ({"clock_mhz": ""}, "clock_mhz='' is no number"),
    ],
)
def test_implausible_or_incomplete_files_are_refused_by_name(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        GpuSpec.from_mapping(_figures(**changes), "T4.yaml")


def test_a_file_without_sources_says_so_in_every_answer() -> None:
    without = GpuSpec.from_mapping(
        {key: value for key, value in _figures().items() if key != "sources"}
    )
    assert without.notes == ("the figures of T4 have no source: its file has no `sources`",)
    assert load_gpu("T4").notes == cpu_spec().notes == ()


def test_the_cpu_is_a_device_too() -> None:
    cpu = cpu_spec()
    assert (
        cpu.name == "local" and cpu.architecture == "cpu" and cpu.sms >= 1 and cpu.memory_bytes > 0
    )


def test_a_known_cuda_device_takes_its_file_and_an_unknown_one_its_properties() -> None:
    known = cuda_spec(SimpleNamespace(name="Tesla T4", total_memory=15 << 30, major=7, minor=5))
    assert known.name == "local" and known.sms == 40 and known.memory_bytes == 15 << 30
    card = SimpleNamespace(
        name="NVIDIA RTX A1000",
        total_memory=12 << 30,
        major=8,
        minor=6,
        multi_processor_count=26,
        clock_rate=1200000,
    )
    unknown = cuda_spec(card)
    assert unknown.sms == 26 and unknown.architecture == "ampere"
    assert unknown.fp32_gflop_per_s == pytest.approx(2 * 26 * 128 * 1.2)


@pytest.mark.parametrize(
    ("key", "factor"),
    [
        ("fp32_tflop_per_s", 0.001),
        ("tf32_tflop_per_s", 1000),
        ("measured_l2_gb_per_s", 1000),
        ("nvlink_bidirectional_gb_per_s", 0.001),
    ],
)
def test_a_wrong_unit_of_any_rate_is_refused(key: str, factor: float) -> None:
    values = yaml.safe_load((config_dir() / "gpu" / "A100-PCIE-40GB.yaml").read_text())
    with pytest.raises(ConfigError, match=f"{key} = .* is implausible"):
        GpuSpec.from_mapping({**values, key: factor * values[key]})


def test_the_files_state_a_rate_where_the_gpu_has_the_dtype_and_none_where_it_has_not() -> None:
    for spec in list_gpus():
        assert has_tf32(spec) == (spec.tf32_gflop_per_s is not None), spec.name
        assert has_bf16(spec) == (spec.bf16_gflop_per_s is not None), spec.name


@pytest.mark.parametrize(
    "gpu, refused",
    [
        ("P4", True),
        ("V100", False),
    ],
)
def test_pytorch_refuses_bf16_before_volta(gpu: str, refused: bool) -> None:
    assert refuses_bf16(load_gpu(gpu)) == refused
    assert has_bf16(cpu_spec()) and not refuses_bf16(
        cpu_spec()
    )  # a CPU takes other paths than CUDA


@pytest.mark.parametrize(
    ("gpu", "plain", "tensor"),
    [
        ("T4", 8.1 / 32, None),
        ("V100", 7.0, None),
        ("A100", 9.7, 19.5),
        ("H100", 33.45, 66.9),
        ("H20", 1.0, 1.0),
        ("MI250", 22.6, 45.25),
    ],
)
def test_fp64_has_the_rate_of_the_whitepapers(gpu: str, plain: float, tensor: float | None) -> None:
    spec = load_gpu(gpu)
    assert spec.fp64_gflop_per_s == pytest.approx(1e3 * plain, rel=2e-3)
    assert spec.fp64_tensor_gflop_per_s == (None if tensor is None else pytest.approx(1e3 * tensor))
    products = spec.peak_gflop_per_s("fp64_tensor") / spec.peak_gflop_per_s("fp64")
    assert products == pytest.approx((tensor or plain) / plain, rel=2e-3)


def test_a_file_without_fp64_takes_the_share_of_its_architecture() -> None:
    for spec in list_gpus():
        assert spec.fp64_gflop_per_s is not None, spec.name
        limited = spec.name in ("H20", "H800")  # for export
        derived = replace(spec, fp64_gflop_per_s=None, fp64_tensor_gflop_per_s=None)
        assert limited or derived.peak_gflop_per_s("fp64") == pytest.approx(
            spec.peak_gflop_per_s("fp64"), rel=0.2
        ), spec.name
    assert cpu_spec().peak_gflop_per_s("fp64") == pytest.approx(0.5 * cpu_spec().peak_gflop_per_s())
