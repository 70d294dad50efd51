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


@pytest.mark.parametrize(
    ("distribution", "shares"),
    [
        ("uniform", np.ones(2000)),
        ("zipf:1.05", np.arange(1, 2001) ** -1.05),
        ("bins:0.1/0.7,0.9/0.3", np.repeat([0.7 / 200, 0.3 / 1800], [200, 1800])),
    ],
)
def test_distinct_rows_agree_with_drawn_indices(distribution, shares):
    rng, draws = np.random.default_rng(0), 3000
    shares = shares / shares.sum()
    drawn = np.mean([len(np.unique(rng.choice(2000, draws, p=shares))) for _ in range(20)])
    found = Lookup(draws, 2000, 1, 64, distribution).distinct_rows()
    assert found == pytest.approx(drawn, rel=0.01)


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


def time_us(v100, **values):
    return Physics.of(v100).kernel_us("embedding_forward", forward(**values))[0]


def test_skewed_indices_are_faster_than_uniform_ones(v100):
    kinds = ("zipf:1.2", ["uniform"] * 4 + ["zipf:1.2"] * 4, "uniform")
    skewed, mixed, uniform = (
        time_us(v100, attributes=json.dumps({"distribution": kind})) for kind in kinds
    )
    assert skewed < 0.6 * uniform and skewed < mixed < uniform == time_us(v100)


def test_narrow_rows_pay_the_published_factor(v100):
    """Beyond what L2 holds, halving the width halves the traffic but not the time."""
    wide, narrow = (time_us(v100, E=40_000_000, D=width) for width in (128, 32))
    assert narrow > wide / 4 * 1.4


def test_many_tables_of_one_call_add_up(v100):
    listed = json.dumps({"rows": [1_000_000] * 8, "lookups": 100})
    assert time_us(v100, attributes=listed) == pytest.approx(time_us(v100))


def test_a_fused_backward_moves_more_than_the_forward(v100):
    back = forward(family="embedding_backward", op="fused_sgd", phase="backward")
    assert Physics.of(v100).kernel_us("embedding_backward", back)[0] > time_us(v100)


def test_a_few_samples_of_many_lookups_wait_for_each_row(v100):
    few, many = (time_us(v100, B=16, T=1, L=lookups) for lookups in (10, 110))
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
