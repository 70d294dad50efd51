"""Print which predictions a change moves: `python -m evaluation.golden`, and with `--write` keep the new ones.

The tables beside this file hold what the last commit predicts from what ships: steps of all workloads on several GPUs, and
drawn kernels. Rows that moved by more than `SHOWN` are printed. Without `--write`, a row that moved by more than
`EQUAL` ends the command with exit code 1: the tables belong into the same commit as the change that moves them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.answers.engine import engine, in_order
from pipeline.answers.who_answers import kernel_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.question.compose import choices
from pipeline.question.question import expand
from pipeline.schemas import atomic_path

FOLDER = Path(__file__).parent
STEPS, KERNELS = FOLDER / "steps.csv", FOLDER / "kernels.csv"

GPUS = "V100,P100,P4,T4,A100-PCIE-40GB,H100,RTX3090,L4,B200"
NEWER_GPUS = "A100-SXM4-80GB,H100,RTX4090"

TIMES = ("predicted_us", "p10_us", "p90_us", "active_us", "host_us", "memory_bytes")
"""Columns of a step that are compared."""

EQUAL = 1e-6
"""Largest relative difference of equal predictions: processors differ in the last digits of `exp`."""

SHOWN = 0.005
"""Relative difference from which a moved row is printed."""

ROWS_SHOWN = 30


def sweeps() -> list[list[str]]:
    """Overrides of the steps: every workload that needs no file of the user, then options that run other kernels."""
    models = ",".join(
        name
        for name in choices("model")
        if name not in ("custom", "timm", "torchvision", "transformers", "gpt", "llama")
    )
    return [
        [f"gpu={GPUS}", f"model={models}"],
        [
            "gpu=V100,A100-PCIE-40GB",
            "model=dlrm_default",
            "batch_size=512,4096",
            "model.embedding=fused,sparse,dense",
        ],
        [f"gpu={NEWER_GPUS}", "model=resnet50,bert_large", "model.dtype=tf32,bf16"],
        [
            "gpu=V100,H100",
            "model=bert_large",
            "model.mode=inference",
            "model.attention=eager,fused",
        ],
        ["gpu=V100,A100-SXM4-80GB,H100", "model=resnet50,bert_large", "devices=2,8,16"],
        ["gpu=A100-SXM4-80GB,H100", "model=gpt,llama", "devices=1,16", "model.attention=fused"],
        [
            "gpu=A100-SXM4-80GB,H100",
            "model=dlrm_dcnv2",
            "devices=8,16",
            "parallel=hybrid",
            "parallel.sharding=auto,row_wise",
        ],
        [
            "gpu=A100-SXM4-80GB,H100",
            "model=gpt",
            "devices=64",
            "parallel.tp=1,8",
            "parallel.pp=1,4",
            "parallel.micro_batches=8",
            "parallel.overlap=true,false",
        ],
        ["gpu=V100,H100", "model=dlrm_ddp,resnet50", "predict.cuda_graph=true"],
        ["gpu=V100,H100", "model=dlrm_ddp,resnet50", "predict.wait_each_step=true"],
        ["gpu=V100", "model=dlrm_default", "gpu.dram_gb_per_s=1200", "gpu.l2_mib=12"],
    ]


def predicted_steps() -> pd.DataFrame:
    """What ships predicts for `sweeps`, a row each, by the overrides of the point."""
    questions = [question for sweep in sweeps() for question in expand(sweep)]
    rows = {}
    for answer in in_order(questions, engine(None).predict(questions)):
        question, values = answer.question, answer.whole().as_dict()
        asked = f"gpu={question.gpu.name} model={question.model} batch_size={question.batch_size}"
        rows[" ".join([asked, *question.overrides])] = [float(values[name]) for name in TIMES]
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(TIMES)).rename_axis("step")


def predicted_kernels(calls: pd.DataFrame) -> pd.DataFrame:
    """Times of the drawn calls on each GPU, by columns such as `V100 kernel_us`, with the calls' own index."""
    columns = {}
    for name in GPUS.split(","):
        predicted = kernel_predictor(load_gpu(name), "auto").predict(calls)
        for column in ("kernel_us", "p10_us", "p90_us"):
            columns[f"{name} {column}"] = predicted[column]
    return pd.DataFrame(columns)


def moved(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Relative difference of each value; rows that only one table has are infinitely far."""
    both = before.index.intersection(after.index)
    apart = after.loc[both, before.columns] / before.loc[both] - 1
    alone = before.index.symmetric_difference(after.index)
    return pd.concat([apart, pd.DataFrame(np.inf, alone, before.columns)])


def print_moved(name: str, before: pd.DataFrame, after: pd.DataFrame) -> float:
    """Print the rows that moved, and return the largest relative difference."""
    apart = moved(before, after)
    largest = apart.abs().max(axis=1).sort_values(ascending=False)
    far = largest[largest > SHOWN]
    print(f"{name}: {len(far)} of {len(apart)} rows moved by more than {SHOWN:.1%}")
    for row in far.index[:ROWS_SHOWN]:
        changes = apart.loc[row]
        shown = changes[changes.abs() > SHOWN]
        print(
            f"  {row}: {', '.join(f'{column} {change:+.1%}' for column, change in shown.items())}"
        )
    if len(far) > ROWS_SHOWN:
        print(f"  and {len(far) - ROWS_SHOWN} more")
    return float(largest.iloc[0])


def main() -> int:
    """Compare, print, and with `--write` store."""
    kernels = pd.read_csv(KERNELS)
    inputs = [name for name in kernels.columns.astype(str) if " " not in name]
    steps, times = predicted_steps(), predicted_kernels(kernels[inputs])
    largest = 0.0
    if STEPS.is_file():
        largest = print_moved("steps", pd.read_csv(STEPS, index_col="step"), steps)
        labels = pd.Index(
            [" ".join(map(str, row[row.notna()])) for _, row in kernels[inputs].iterrows()]
        )
        before = kernels.drop(columns=inputs).set_axis(labels, axis=0)
        largest = max(largest, print_moved("kernels", before, times.set_axis(labels, axis=0)))
    if "--write" in sys.argv:
        for path, table in ((STEPS, steps.reset_index()), (KERNELS, kernels[inputs].join(times))):
            with atomic_path(path) as part:
                table.to_csv(part, index=False, float_format="%.10g")
        return 0
    if largest > EQUAL:
        print(f"the largest difference is {largest:.2g}. Where rows are meant to move: run")
        print("python -m evaluation.golden --write, and commit the tables with the change")
    return int(largest > EQUAL)


if __name__ == "__main__":
    sys.exit(main())
