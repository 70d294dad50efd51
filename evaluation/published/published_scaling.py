"""Reader of published throughputs on one and on several GPUs of a machine; scaling efficiencies are compared with them.

- Lambda Labs' benchmark (`lambda` in `sources.yaml`): NVIDIA's examples on machines of 1 to 8 GPUs.
- NVIDIA's examples (`nvidia-examples`): ResNet-50 and GNMT on DGX-1 and DGX-2H.

Both are read from `multi_gpu/steps.parquet` of the datasets folder. The batch of a GPU is the same in both rows of a pair.
Nothing was fitted to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from evaluation.published.published_pages import full_precision, reading
from evaluation.published.published_steps import CONVERTED, NVIDIA_BATCHES, WORKLOADS


@dataclass(frozen=True)
class Machine:
    """A kind of machine: its card, its cluster, and whether a source states what joins its GPUs."""

    gpu: str
    cluster: str
    stated: str
    """What states the fabric; empty where nothing at hand does, and the usual machine is assumed."""


THROUGH_HOST = "the script: NCCL_P2P_DISABLE=1"
"""Lambda's script lets no GPU reach another directly, so NVLinks are not used either (`pytorch/scripts/benchmark_pytorch.sh`)."""

MACHINES = {
    "LambdaCloud {}xV100 16GB": Machine("V100-SXM2-16GB", "pcie3-no-p2p", THROUGH_HOST),
    "{}x RTX 3090": Machine("RTX3090", "pcie4-no-p2p", THROUGH_HOST),
    "{}x RTX A6000": Machine("RTXA6000", "pcie4-no-p2p", THROUGH_HOST),
    "{}x A100 80GB PCIe": Machine("A100-PCIE-80GB", "pcie4-no-p2p", THROUGH_HOST),
    "{}x RTX 4090": Machine("RTX4090", "pcie4-no-p2p", THROUGH_HOST),
    "{}x RTX 6000 Ada": Machine("RTX6000Ada", "pcie4-no-p2p", THROUGH_HOST),
    "NVLink2 hybrid cube mesh (DGX-1), V100 16": Machine(
        "V100-SXM2-16GB", "dgx1-v100", "the page: DGX-1"
    ),
    "NVLink2 hybrid cube mesh (DGX-1), V100 32": Machine(
        "V100-SXM2-32GB", "dgx1-v100", "the page: DGX-1"
    ),
    "NVLink2/NVSwitch (DGX-2H), V100 32": Machine(
        "V100-SXM2-32GB", "dgx2-v100", "the page: DGX-2H"
    ),
}
"""Machines by their name in the table, with `{}` for the number of GPUs. NVIDIA's were written down before any scaling was
predicted; Lambda's were corrected afterwards, when its script was read. Rates through hosts are those of other machines."""

ALONE = {
    "V100-SXM2-16GB": "LambdaCloud V100 16GB", "RTX3090": "RTX 3090", "RTXA6000": "RTX A6000",
    "RTX4090": "RTX 4090", "A100-PCIE-80GB": "A100 80GB PCIe", "RTX6000Ada": "RTX 6000 Ada",
}  # fmt: skip
"""Lambda's name of the machine with one such card."""

COLUMNS = (
    "source",
    "machine",
    "gpu",
    "cluster",
    "stated",
    "model",
    "dtype",
    "memory_format",
    "batch_size",
    "devices",
    "efficiency",
)


def read_scaling(datasets: str | Path) -> pd.DataFrame:
    """Scaling efficiencies of training steps: throughput of N GPUs over N times that of one, columns `COLUMNS`.

    Raises:
        TableError: the file is missing, or lacks columns.
    """
    file = Path(datasets) / CONVERTED
    with reading(file):
        table = pd.read_parquet(file)
        return pd.DataFrame([*_lambda_rows(table), *_nvidia_rows(table)], columns=list(COLUMNS))


def _lambda_rows(table: pd.DataFrame) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    own = table[(table["table"] == "lambda") & table["model"].isin(WORKLOADS)]
    for row in own[own["gpus"] > 1].to_dict("records"):
        devices, batch, precision = (
            int(row["gpus"]),
            float(row["batch_per_gpu"]),
            str(row["precision"]),
        )
        name = str(row["gpu"]).replace(f"{devices}x V", "{}xV").replace(f"{devices}x", "{}x")
        machine = MACHINES[name]
        alone = own[
            (own["gpu"] == ALONE[machine.gpu])
            & (own["gpus"] == 1)
            & (own["model"] == row["model"])
            & (own["precision"] == precision)
            & (own["global_batch"] == batch)
        ]
        if alone.empty:  # measured alone with another batch
            continue
        dtype = "fp16" if "fp16" in precision else full_precision(machine.gpu)
        efficiency = float(row["value"]) / devices / float(alone["value"].median())
        rows.append(
            (
                "lambda",
                str(row["gpu"]),
                machine.gpu,
                machine.cluster,
                machine.stated,
                WORKLOADS[str(row["model"])],
                dtype,
                "contiguous",
                int(batch),
                devices,
                efficiency,
            )
        )
    return rows


def _nvidia_rows(table: pd.DataFrame) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    own = table[
        (table["table"] == "nvidia_examples") & table["model"].isin(["resnet50v1.5", "GNMT"])
    ]
    for keys, runs in own.groupby(
        ["model", "gpu", "interconnect", "precision", "batch_per_gpu"], dropna=False
    ):
        model, gpu, joined, precision, batch = map(str, keys)
        machine, alone = MACHINES.get(f"{joined}, {gpu}"), runs.loc[runs["gpus"] == 1, "value"]
        if machine is None or len(alone) != 1:
            continue
        half, network = "fp16" in precision, model == "resnet50v1.5"
        size = NVIDIA_BATCHES[machine.gpu][half] if network else int(float(batch))
        layout = (
            "channels_last" if network and half else "contiguous"
        )  # the example uses NHWC in mixed precision
        dtype = "fp16" if half else full_precision(machine.gpu)
        name = f"{joined.rpartition('(')[2].rstrip(')')}, {gpu}"
        for run in runs[runs["gpus"] > 1].to_dict("records"):
            devices = int(run["gpus"])
            efficiency = float(run["value"]) / devices / float(alone.iloc[0])
            rows.append(
                (
                    "nvidia",
                    name,
                    machine.gpu,
                    machine.cluster,
                    machine.stated,
                    "resnet50" if network else "gnmt",
                    dtype,
                    layout,
                    size,
                    devices,
                    efficiency,
                )
            )
    return rows
