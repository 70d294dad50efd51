"""Peak memory of small GPT models by way of being parallel, beside what Megatron-LM's own tests record on A100.

    python -m evaluation.pages.decoder_memory

Writes the table of docs/accuracy/many_gpus.md. The tests log the last rank, which holds the last stage of the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluation.pages.markdown import markdown, rewrite
from pipeline.answers.engine import STEPS
from pipeline.graph.gpu_memory import BLOCK_BYTES, stage_memories
from pipeline.paths import datasets_dir
from pipeline.question.question import Question, ask
from pipeline.schemas import read_frame

PAGE, BLOCK = Path("docs") / "accuracy" / "many_gpus.md", "many_gpus memory"

LEFT_OUT = "uneven|account_for|resume|frozen|modelopt|fsdp|defer_embedding|loss_fusion|vp1_tunable"
"""Cases whose stages, loss or update are other than predicted, or that do not state their attention."""

OPTIONS = {
    "model.layers": "num_layers", "model.width": "hidden_size",
    "model.heads": "num_attention_heads", "model.seq_len": "seq_length",
    "batch_size": "micro_batch_size", "parallel.tp": "tensor_model_parallel_size",
    "parallel.pp": "pipeline_model_parallel_size", "parallel.cp": "context_parallel_size",
}  # fmt: skip
"""Options, and the columns that state them; 1 where a column is empty."""

SWITCHES = {
    "parallel.zero": "use_distributed_optimizer", "parallel.sequence": "sequence_parallel",
    "parallel.overlap": "overlap_grad_reduce",
}  # fmt: skip

WORKSPACE_BYTES = {True: 32 << 20, False: 8 << 20}
"""cuBLAS's workspace of a thread: with `CUBLAS_WORKSPACE_CONFIG=:4096:8`, and PyTorch's usual."""


def read_cases() -> pd.DataFrame:
    """Dense GPT models with plain data, tensor, context and pipeline parallelism.

    Raises:
        TableError: the table is missing.
    """
    folder = datasets_dir() or Path()
    file = folder / "multi_gpu" / "megatron_golden.parquet"
    rows = read_frame(file, "set $STEPTIME_DATASETS to the public data", "download it again", ())
    stated = rows["global_batch_size"].notna() & rows["mem_max_allocated_bytes"].notna()
    others = rows["num_experts"].notna() | rows["multi_latent_attention"].notna()
    others |= rows["use_megatron_fsdp"].notna() | rows["case"].str.contains(LEFT_OUT)
    found: pd.DataFrame = rows[(rows["model"] == "gpt") & stated & ~others]
    sizes = found[[OPTIONS[f"parallel.{axis}"] for axis in ("tp", "pp", "cp")]].fillna(1)
    return found[sizes.prod(axis=1) <= found["gpus"].fillna(8)]


def asked(row: Mapping[Any, Any]) -> Question:
    """The question of a row."""
    of = {key: 1 if pd.isna(row[name]) else int(row[name]) for key, name in OPTIONS.items()}
    values: dict[str, object] = {**of, "devices": 8 if pd.isna(row["gpus"]) else int(row["gpus"])}
    replicas = int(str(values["devices"])) // (
        of["parallel.tp"] * of["parallel.pp"] * of["parallel.cp"]
    )
    values["parallel.micro_batches"] = int(row["global_batch_size"]) // (
        of["batch_size"] * replicas
    )
    if not pd.isna(layers := row["num_layers_per_virtual_pipeline_stage"]):
        values["parallel.virtual_stages"] = of["model.layers"] // int(of["parallel.pp"] * layers)
    values |= {key: str(row[name] == "True").lower() for key, name in SWITCHES.items()}
    fused = row["transformer_impl"] != "local" and row["attention_backend"] != "unfused"
    values |= {"model.attention": "fused" if fused else "eager"}
    values |= {"model.dtype": "fp16" if row["fp16"] == "True" else "bf16"}
    values |= {"model.tied": str(row["untie_embeddings_and_output_weights"] != "True").lower()}
    values |= {"model.vocabulary": 50257 if pd.isna(row["vocab_size"]) else int(row["vocab_size"])}
    if not pd.isna(kept := row["recompute_granularity"]):
        values["model.checkpointing"] = kept
    if row["swiglu"] == "True":
        values["model.activation"] = "swiglu"
    if not pd.isna(groups := row["num_query_groups"]):
        values["model.kv_heads"] = int(groups)
    texts = [f"{key}={value}" for key, value in values.items()]
    return ask(["gpu=A100-SXM4-80GB", "model=gpt", *texts])


def ratios() -> pd.DataFrame:
    """Predicted over recorded peak of each row: tp, pp, cp, vp, zero, ratio."""
    found, known = [], dict[Question, float]()
    for row in read_cases().to_dict("records"):
        question = asked(row)
        assert question.ranks is not None
        of = question.ranks.parallel
        if question not in known:
            pieces = [STEPS.graph(chunk).memory for chunk in question.chunks]
            last = stage_memories(pieces, question.ranks, question.workload)[-1]
            known[question] = last.peak + BLOCK_BYTES * last.blocks
        threads = 2 * WORKSPACE_BYTES[":4096:8" in str(row["env"])]
        ratio = (known[question] + threads) / row["mem_max_allocated_bytes"]
        found.append((of.tp, of.pp, of.cp, of.virtual_stages, of.zero, ratio))
    return pd.DataFrame(found, columns=["tp", "pp", "cp", "vp", "zero", "ratio"])


def table(rows: pd.DataFrame) -> str:
    """Least, median and largest ratio of each layout, and of the rows that the rules were found on and the others."""
    head = ["layout", "rows", "least", "median", "largest", "0.9 to 1.2"]
    groups = {
        f"tp {tp}, pp {pp}, cp {cp}, vp {vp}{', ZeRO-1' if zero else ''}": part["ratio"]
        for (tp, pp, cp, vp, zero), part in rows.groupby(["tp", "pp", "cp", "vp", "zero"])
    }
    groups |= {
        "all with tp 1 (the rules were found on them)": rows.loc[rows["tp"] == 1, "ratio"],
        "all with tp above 1": rows.loc[rows["tp"] > 1, "ratio"],
    }
    lines = []
    for name, ratio in groups.items():
        numbers = [f"{value:.2f}" for value in np.quantile(ratio, [0, 0.5, 1])]
        inside = f"{int(ratio.between(0.9, 1.2).sum())} of {len(ratio)}"
        lines.append([name, str(len(ratio)), *numbers, inside])
    return markdown(head, lines)


if __name__ == "__main__":
    rewrite(PAGE, {BLOCK: table(ratios())})
