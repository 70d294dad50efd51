"""HSTU: jagged attention without a softmax, its gradients, the lengths of sequences, and rows of tables spread over ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.graph.capture import capture
from pipeline.question.embedding_tables import tables
from pipeline.question.question import ask
from pipeline.question.sequence_lengths import distribution, mean_length, typical_lengths
from pipeline.workloads import make_step
from pipeline.workloads.hstu_operators import Jagged, attended
from tests.workloads.small import known_calls, small


def test_a_token_attends_to_earlier_ones_and_candidates_not_to_each_other() -> None:
    q, k, v = torch.randn(3, 3, 4)
    two = Jagged(heads=1, candidates=2, pairs=0, longest=5)
    found = attended(q, k, v, torch.tensor([0, 3]), two)
    weights = torch.nn.functional.silu(q @ k.T / 2.0) / 5
    seen = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]])
    torch.testing.assert_close(found, (weights * seen) @ v)


def test_a_step_learns_on_the_cpu_and_launches_what_the_public_code_does() -> None:
    config = small("hstu", dropout=0.0, optimizer="adam")
    torch.manual_seed(0)
    step = make_step(config, 64, "cpu")
    losses: list[float] = []
    step.read = lambda loss, when: losses.append(float(loss))  # type: ignore[method-assign]
    for _ in range(30):
        step.run(0)
    assert losses[-1] < losses[0] - 0.01
    counts = capture(config, 64).table["name"].value_counts()
    names = ["hstu::attention", "hstu::gate_backward", "hstu::norm"]
    # norms: eight of networks and scores, and in the layer twice
    assert counts[names].tolist() == [1, 1, 10]


def test_work_of_attention_grows_with_the_squares_of_lengths() -> None:
    for length in (9, 99):
        config = small("hstu", lengths="full", candidates=3, seq_len=length)
        calls = known_calls(capture(config, 4))
        own = calls[calls["family"] == "jagged_attention"]
        assert own["phase"].tolist() == ["forward", "backward"]
        # a token of the user, its items, three candidates
        work = 2 * 4 * ((length + 1) ** 2 / 2 + (length + 2) * 3) * 2 * 32
        assert own["flops"].tolist() == [work, 2.5 * work]


def test_lengths_are_drawn_and_the_slowest_rank_has_the_longest() -> None:
    config = {"lengths": "uniform", "seq_len": 100}
    one, few, many = (float((typical_lengths(config, 16, n) ** 2).sum()) for n in (1, 8, 64))
    assert one <= few <= many > 1.3 * one
    assert one / 16 == pytest.approx(100**2 / 3, rel=0.1)
    assert typical_lengths({**config, "lengths": "full"}, 3, 2).tolist() == [100] * 3
    zipf = distribution("zipf:2", 50)
    assert zipf[1][0] / zipf[1][9] == pytest.approx(100)


def test_a_histogram_of_lengths_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text("[[10, 3], [500, 1]]")
    config = {"lengths": str(path), "seq_len": 100, "rows": [9, 9, 9], "candidates": 2}
    assert mean_length(config) == pytest.approx(0.75 * 10 + 0.25 * 100)
    assert tables(config)[1] == [34, 34, 1]
    assert np.isin(typical_lengths(config, 64, 1), [10, 100]).all()


@pytest.mark.parametrize("text", ["longer", "zipf:x", "[[0, 1]]"])
def test_other_lengths_are_refused(text: str, tmp_path: Path) -> None:
    named = tmp_path / "lengths.json"
    named.write_text(text)
    for wrong in (text, str(named)):
        with pytest.raises(ConfigError, match="pairs of a length"):
            distribution(wrong, 10)


def test_rows_of_tokens_travel_between_ranks_and_each_gets_those_of_its_own() -> None:
    config = small("hstu", seq_len=9, layout={"dp": 2})
    plan = [["table_wise", [0], [8]], ["column_wise", [0, 1], [4, 4]], ["replicated", [], []]]
    placed = {"plan": plan, "ranks": 2, "rank": 1}
    calls = known_calls(capture({**config, "placed": placed}, 4))
    tokens = int(typical_lengths(config, 4, 2).sum()) + 4
    rows = calls[(calls["op"] == "all_to_all") & (calls["dtype"] == "fp32")]
    sent, received = 4 * 2 * 4 * tokens, 4 * (8 + 8) * tokens
    moved = rows[["bytes_read", "bytes_written"]].values.tolist()
    assert moved == [[sent, received], [received, sent]]


def test_row_wise_tables_of_sequences_are_refused() -> None:
    words = "gpu=A100 model=hstu devices=2 parallel=hybrid parallel.sharding=row_wise"
    with pytest.raises(ConfigError, match="rows that are not summed"):
        ask(words.split())
