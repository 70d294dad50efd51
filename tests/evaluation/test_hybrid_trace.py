"""A real step of eight ranks with spread tables: TorchRec's, in the public trace `v100x8_dlrm`."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.answers.engine import engine
from pipeline.question.question import ask
from pipeline.question.settings import FrozenDict

HELD = (
    (0, 1, 7), (9, 4, 17), (19, 2, 15), (20, 23, 24), (21, 14, 8), (3, 6, 10), (11, 12, 13),
    (18, 22, 25),
)  # fmt: skip
"""Tables of each rank: those of the first five follow from rows and lookups in their traces; the others have the rest."""

BATCH, DIM = 16, 16


def numbers_exchanged(trace: Path) -> list[tuple[str, int, int]]:
    """Collectives of an execution trace in order: name, numbers sent and received."""
    nodes: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()))["nodes"]
    found = []
    for node in nodes:
        if node["name"] == "c10d::alltoall_base_":
            received, sent, *_ = node["input_shapes"]
            found.append(("all_to_all", sent[0], received[0]))
        elif node["name"] == "c10d::allreduce_":
            ((size,),) = node["input_shapes"][0]
            found.append(("all_reduce", size, size))
    return found


@pytest.mark.parametrize("rank", [0, 3, 4])
def test_collectives_are_those_of_the_trace(rank: int, datasets: Path, tmp_path: Path) -> None:
    lines = []
    for table in range(26):
        owner = [number for number, tables in enumerate(HELD) if table in tables]
        where = f"table_wise, ranks: {owner}, columns: [{DIM}]" if owner else "replicated"
        lines.append(f"- {{table: {table}, kind: {where}}}")
    plan = tmp_path / "plan.yaml"
    plan.write_text("\n".join(lines))
    question = ask(
        [
            "gpu=V100-SXM2-32GB",
            "model=dlrm_dcnv2",
            "devices=8",
            "parallel=hybrid",
            f"batch_size={BATCH}",
            f"parallel.sharding={plan}",
            f"model.dim={DIM}",
            f"model.bottom_mlp=[13,256,128,{DIM}]",
            "model.top_mlp=[512,512,256,1]",
            "model.interaction=by_parts",
            "model.foreach=false",
        ]
    )
    placed = {**question.workload["placed"], "rank": rank}
    of_rank = replace(question, workload=FrozenDict({**question.workload, "placed": placed}))
    calls = engine().steps.calls(of_rank)
    own = calls[calls["family"] == "collective"]
    width = own["dtype"].map({"fp32": 4, "int64": 8, "int32": 4})
    sent, received = (own[column] / width for column in ("bytes_read", "bytes_written"))
    found = [*zip(own["op"], sent.astype(int), received.astype(int), strict=True)]
    trace = datasets / "traces" / "v100x8_dlrm" / f"rank{rank}_execution_trace.json.gz"
    assert found == numbers_exchanged(trace)
