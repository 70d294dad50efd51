"""GPUs with more of one figure: no kernel may take longer on them."""

from __future__ import annotations

from dataclasses import replace

from pipeline.hardware.spec import GpuSpec

RATES = ("fp32_gflop_per_s", "fp16_gflop_per_s", "tf32_gflop_per_s", "bf16_gflop_per_s")
FIGURES = {
    "clock": ("boost_clock_mhz", *RATES),
    "fp32": RATES[:1],
    "tensor": RATES[1:],
    "power": ("tdp_w",),
}
"""What is more -> the figures of a GPU that grow with it, beside bandwidths (`dram`, `l2`)."""


def improved(gpu: GpuSpec, what: str, factor: float) -> GpuSpec:
    """The GPU with `factor` times of one figure."""
    if what == "dram":
        sustained = factor * gpu.peak_dram_gb_per_s()
        stated = factor * gpu.dram_gb_per_s
        return replace(gpu, dram_gb_per_s=stated, measured_dram_gb_per_s=sustained)
    if what == "l2":
        return replace(gpu, measured_l2_gb_per_s=factor * gpu.peak_l2_gb_per_s())
    stated = {name: getattr(gpu, name) for name in FIGURES[what]}
    return replace(gpu, **{name: factor * value for name, value in stated.items() if value})
