"""Times of lookups and of their gradients: bytes moved, latency of dependent rows, and rows in flight."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from pipeline.families.lookup_times import ROW_LATENCY_US
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.physics import Physics


def calls(op, **values):
    phase = "forward" if op in ("fused", "bag", "gather") else "backward"
    base = {"family": f"embedding_{phase}", "op": op, "phase": phase, "dtype": "fp32"}
    return pd.DataFrame([{**base, "T": 1, "L": 1, **values}])


def time_us(gpu, op, **values):
    """Kernel time beyond its start."""
    table, physics = calls(op, **values), Physics.of(gpu)
    family = table["family"][0]
    start_us = physics.start_us("other" if op in ("gather", "sparse") else family)
    return float(physics.kernel_us(family, table)[0] - start_us)


@pytest.fixture
def a100():
    return load_gpu("A100-SXM4-80GB")


def test_rows_that_l2_holds_do_not_hide_behind_those_that_come_from_memory(a100):
    """Half of the bytes of a small table's gather are written: reading the other half from L2 adds to that."""
    small = time_us(a100, "gather", B=16384, E=1024, D=4096)
    written = 1e-3 * 16384 * 4096 * 4 / a100.peak_dram_gb_per_s()
    assert 1.2 * written < small < 0.95 * time_us(a100, "gather", B=16384, E=131072, D=4096)


def test_a_block_for_each_row_takes_them_in_turn(a100):
    """1,000 rows of 64 uses: 63 blocks of 1,024 lookups, 16 rows each, 7 loads and 2 gradients in a row."""
    found = time_us(a100, "fused_sgd", B=64_000, E=1000, D=128)
    assert found == pytest.approx(ROW_LATENCY_US * (7 + 2) * 1000 / 63, rel=0.01)


def test_updates_of_rows_used_once_are_bound_by_what_they_move(a100):
    found = time_us(a100, "fused_sgd", B=1_000_000, E=1_000_000_000, D=128)
    moved = 1e-3 * 1_000_000 * (3 * 512 + 32 + 64 + 32) / a100.peak_dram_gb_per_s()
    assert found == pytest.approx(moved, rel=0.05)


def test_a_gradient_beyond_l2_is_read_from_memory_for_every_lookup(a100):
    """The same lookups of fewer samples: their output gradient fits L2."""
    many, few = (
        time_us(a100, "fused_sgd", B=b, L=1_000_000 // b, E=10_000_000, D=256)
        for b in (250_000, 1000)
    )
    assert many > 1.15 * few


def test_a_dense_gradient_waits_for_its_partial_sums(a100):
    """It takes longer than its bytes: each thread reads an offset, then an index, then a row."""
    found = time_us(a100, "dense", B=16384, E=131072, D=4096)
    distinct = 131072 * (1 - (1 - 1 / 131072) ** 16384)
    moved = 1e-3 * 4 * 4096 * (16384 + 3 * distinct) / a100.peak_dram_gb_per_s()
    waits = ROW_LATENCY_US * 4096 * (2 * distinct + 2 * 16384 + 3 * distinct) / (108 * 2048)
    assert found == pytest.approx(moved + waits, rel=0.02)


def test_few_indices_are_handled_sixteen_at_a_time(a100):
    few = {"E": 30_000, "D": 64, "attributes": '{"sorted": false}'}
    short, long = (time_us(a100, "dense", B=tokens, **few) for tokens in (512, 1024))
    assert long - short == pytest.approx(2 * ROW_LATENCY_US * 512 / 16)


def test_a_sparse_gradient_writes_a_row_for_each_lookup(a100):
    one, two = (
        time_us(a100, "sparse", B=100_000, L=lookups, E=1_000_000, D=128) for lookups in (10, 20)
    )
    assert 1.8 * one < two < 2.1 * one


@pytest.mark.parametrize("better", ["dram_gb_per_s", "l2_bytes", "boost_clock_mhz"])
def test_a_better_gpu_is_never_slower(a100, better):
    faster = replace(a100, **{better: 2 * getattr(a100, better)})
    forms = [(op, "{}") for op in ("fused", "gather", "fused_sgd", "dense", "sparse")]
    for op, form in (*forms, ("dense", '{"sorted": false}')):
        for sizes in ({"B": 2048, "L": 30, "E": 50_000, "D": 64}, {"B": 30_000, "E": 900, "D": 96}):
            old, new = (time_us(gpu, op, attributes=form, **sizes) for gpu in (a100, faster))
            assert new <= old + 1e-9, (op, form)
