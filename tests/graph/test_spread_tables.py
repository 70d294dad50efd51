"""Captured steps of embedding tables that are spread over ranks."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.graph.table import Graph
from pipeline.hardware.find_gpu import load_gpu
from tests.graph import gloo_sequences, gloo_tables
from tests.graph.gloo_tables import BATCH, DDP, DIM, LOOKUPS, PLANS, ROWS, config_of
from tests.graph.real_processes import run_real

OPS = {
    "all_to_all": "all_to_all_single",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_gather": "all_gather_into_tensor",
}
"""Collective -> the function of PyTorch that starts it."""


def captured(name: str, rank: int = 0, **changed: object) -> tuple[Graph, pd.DataFrame]:
    """The graph and device calls of one rank."""
    ranks = {"layout": {"dp": 2}, "ddp": DDP, "dtype": "default"}
    graph = capture({**config_of(name, rank), **ranks, **changed}, BATCH)
    return graph, map_calls(graph, load_gpu("A100"))


def exchanged(calls: pd.DataFrame) -> list[tuple[str, int, int]]:
    """Collectives besides those of dense gradients: function, bytes sent and received."""
    own = calls[(calls["family"] == "collective") & (calls["op"] != "all_reduce")]
    sizes = (own[name].astype(int) for name in ("bytes_read", "bytes_written"))
    return list(zip(own["op"].map(OPS), *sizes, strict=True))


@pytest.fixture(scope="module")
def real() -> Any:
    """What the first of two real processes exchanges; they check that their step is that of one process."""
    return run_real(gloo_tables.main)


@pytest.mark.parametrize("name", PLANS)
def test_exchanges_are_those_of_two_real_processes(
    name: str, real: dict[str, list[tuple[str, int, int]]]
) -> None:
    graph, calls = captured(name)
    assert not unknown_operators(graph, calls)
    rows_by_value = any(placed.kind == "row_wise" for placed in PLANS[name])
    for ours, theirs in zip(exchanged(calls), real[name], strict=True):
        assert ours[0] == theirs[0]
        if rows_by_value and ours[0] == "all_to_all_single":  # indices fall on rows by chance
            assert ours[1:] == pytest.approx(theirs[1:], rel=0.35)
        else:
            assert ours == theirs


def test_a_rank_holds_and_looks_up_its_parts_for_the_samples_of_all() -> None:
    for rank, columns in enumerate(([2, 4], [4, 6, 8])):
        _, calls = captured("columns, uneven", rank)
        own = calls[calls["family"] == "embedding_forward"]
        assert set(own["B"]) == {2 * BATCH} and sorted(own["D"]) == columns
    memory = captured("whole tables, uneven", optimizer="adagrad")[0].memory
    held = 4 * DIM * sum(ROWS[table] for table in (0, 2, 3))
    assert memory.optimizer == memory.parameters
    assert memory.gradients == memory.parameters - held


def test_indices_travel_beside_the_step_and_the_host_waits_for_their_sizes_alone() -> None:
    _, calls = captured("whole tables, uneven")
    beside = calls[calls["stream"] >= 20]
    assert {"index", "sort"} <= {*beside["family"]}
    reads = calls[calls["family"] == "memcpy_d2h"]
    assert reads["stream"].tolist() == beside["stream"].tolist()[:1]
    indices = calls[(calls["op"] == "all_to_all") & (calls["dtype"] == "int32")]
    lookups = BATCH * sum(LOOKUPS)
    assert indices["bytes_read"].tolist() == [4 * BATCH * 4, 4 * lookups]


def test_rows_of_sequences_travel_by_their_lengths() -> None:
    """Two processes with 7 and 5 tokens: the first holds half of the columns of the second table, 4 of 8."""
    seen = run_real(gloo_sequences.main)
    sizes, lengths, indices, rows, gradients = seen
    assert sizes[0] == sizes[1]
    assert lengths == (4 * 3 * (1 + 3), 4 * 3 * 2)  # one table is its own, three are the other's
    assert indices == (4 * (7 + 7 + 7 + 3), 4 * (7 + 5))
    assert rows == (4 * 4 * (7 + 5), 4 * (4 * 7 + (8 + 4) * 7 + 8 * 3))
    assert gradients == rows[::-1]
