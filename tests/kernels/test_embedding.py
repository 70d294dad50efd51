"""The embedding models: distinct rows, hit rates and their limits."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.families.dims import Dims
from pipeline.families.embedding_lookups import Lookup, forward_traffic
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.physics import Physics


def forward(**values):
    base = {"family": "embedding_forward", "op": "fused", "phase": "forward", "dtype": "fp32"}
    return pd.DataFrame([base | {"B": 2048, "E": 1_000_000, "T": 8, "L": 100, "D": 64} | values])


def test_distinct_rows_of_uniform_indices_follow_the_formula():
    lookup = Lookup(batch=10, rows=100, lookups=5, width=64)
    assert lookup.distinct_rows() == pytest.approx(100 * (1 - 0.99**50))


@pytest.mark.parametrize("distribution", ["uniform", "zipf:1.05", "bins:0.1/0.7,0.9/0.3"])
def test_distinct_rows_agree_with_drawn_indices(distribution):
    rows, draws = 2000, 3000
    rng = np.random.default_rng(0)
    if distribution == "uniform":
        shares = np.full(rows, 1 / rows)
    elif distribution.startswith("bins"):
        shares = np.repeat([0.7 / 200, 0.3 / 1800], [200, 1800])
    else:
        shares = np.arange(1, rows + 1) ** -1.05
        shares /= shares.sum()
    drawn = np.mean([len(np.unique(rng.choice(rows, draws, p=shares))) for _ in range(20)])
    assert Lookup(draws, rows, 1, 64, distribution).distinct_rows() == pytest.approx(
        drawn, rel=0.01
    )


def test_a_table_that_fits_the_cache_misses_only_first_touches():
    lookup = Lookup(batch=1000, rows=50, lookups=10, width=64)
    assert lookup.hit_rate(cached_rows=1e6) == pytest.approx(1 - 50 / 10_000, rel=1e-3)


@example(batch=592, rows=20214, lookups=10, cached=2566.0)
@given(
    batch=st.integers(1, 5000),
    rows=st.integers(1, 10**6),
    lookups=st.integers(1, 200),
    cached=st.floats(1, 1e6),
)
def test_hit_rates_are_shares_and_grow_with_the_cache(batch, rows, lookups, cached):
    lookup = Lookup(batch, rows, lookups, 64)
    small, large = lookup.hit_rate(cached), lookup.hit_rate(2 * cached)
    assert 0 <= small <= 1
    assert large >= small - 1e-9


def test_skewed_indices_are_faster_than_uniform_ones(v100):
    physics = Physics.of(v100)
    uniform = physics.kernel_us("embedding_forward", forward())[0]
    skewed = physics.kernel_us(
        "embedding_forward", forward(attributes='{"distribution": "zipf:1.2"}')
    )[0]
    assert skewed < 0.6 * uniform
    half = json.dumps({"distribution": ["uniform"] * 4 + ["zipf:1.2"] * 4})
    mixed = physics.kernel_us("embedding_forward", forward(attributes=half))[0]
    assert skewed < mixed < uniform


def test_narrow_rows_pay_the_published_factor(v100):
    """Beyond what L2 holds, halving the width halves the traffic but not the time."""
    physics = Physics.of(v100)
    wide = physics.kernel_us("embedding_forward", forward(E=40_000_000, D=128))[0]
    narrow = physics.kernel_us("embedding_forward", forward(E=40_000_000, D=32))[0]
    assert narrow > wide / 4 * 1.4


def test_many_tables_of_one_call_add_up(v100):
    physics = Physics.of(v100)
    rows = "[" + ", ".join(["1000000"] * 8) + "]"
    together = physics.kernel_us("embedding_forward", forward())[0]
    listed = physics.kernel_us(
        "embedding_forward", forward(attributes=f'{{"rows": {rows}, "lookups": 100}}')
    )[0]
    assert listed == pytest.approx(together)


def test_a_fused_backward_moves_more_than_the_forward(v100):
    physics = Physics.of(v100)
    back = forward().assign(family="embedding_backward", op="fused_sgd", phase="backward")
    assert (
        physics.kernel_us("embedding_backward", back)[0]
        > physics.kernel_us("embedding_forward", forward())[0]
    )


def test_a_few_samples_of_many_lookups_wait_for_each_row(v100):
    few, many = (
        Physics.of(v100).kernel_us("embedding_forward", forward(B=16, T=1, L=lookups))[0]
        for lookups in (10, 110)
    )
    assert many - few > 40.0


def test_l2_holds_nine_tenths_of_its_bytes_in_rows():
    """By hand: 40 MB hold 90,000 rows of 400 bytes. Of 1,000,000 reads of 100,000 rows, 90,000 are first reads of rows that stay,
    and a tenth of the others reads a row that does not."""
    gpu = replace(load_gpu("A100"), l2_bytes=40_000_000)
    table = pd.DataFrame(
        [{"family": "embedding_forward", "B": 100_000, "T": 1, "L": 10, "E": 100_000, "D": 100}]
    )
    assert forward_traffic(Dims(table), gpu).hits[0] == pytest.approx(
        1 - (90_000 + 0.1 * 910_000) / 1_000_000, rel=1e-6
    )
