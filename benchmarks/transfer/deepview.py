"""Compare `auto` with the maintained Surfer/Habitat (`deepview-predict`) on the same measured samples.

    python benchmarks/transfer/deepview.py --folder FOLDER --out deepview.csv

The script installs the pinned package without its dependencies into FOLDER (about 300 MB). It reads the published 8 x 1024
networks with `weights_only=True` and never imports the package's code. Our models leave the destination out of training.
The package was trained on V100, P100, T4 and A100, so these are not held out for it. P4 is not in its table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from evaluation.training.left_out_gpu import folds
from pipeline.datasets.neusight import read_samples
from pipeline.errors import InputError
from pipeline.families import FAMILIES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import datasets_dir
from pipeline.transfer.methods import by_auto

PACKAGE = "deepview-predict==0.1.6.5"
DEVICES = {
    "V100": "V100",
    "P100": "P100",
    "T4": "T4",
    "A100-PCIE-40GB": "A100",
    "A100-PCIE-80GB": "A100",
}
NETWORKS = {
    "gemm": ("linear", lambda r: [np.ones(len(r)), r["M"], r["N"], r["K"]]),
    "bmm": ("bmm", lambda r: [r["B"], r["M"], r["N"], r["K"]]),
    "conv2d_forward": (
        "conv2d",
        lambda r: [
            np.zeros(len(r)),
            r["B"],
            r["input_size"],
            r["in_channels"],
            r["out_channels"],
            r["kernel_size"],
            r["stride"],
            r["padding"],
        ],
    ),
}
"""For each family: the network and the order of its inputs (the package's `features` lists)."""


def install(folder: Path) -> Path:
    """Install the package into its own folder, and return the folder of its data."""
    data = folder / "habitat"
    if not data.is_dir():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(folder),
            PACKAGE,
        ]
        subprocess.run(command, check=True)
    return data


def load_network(path: Path) -> dict[str, object]:
    """Load a checkpoint without executing code: tensors, and two NumPy arrays for the scaling."""
    multiarray = sys.modules["numpy._core.multiarray"]
    allowed = [
        (multiarray._reconstruct, "numpy.core.multiarray._reconstruct"),
        np.ndarray,
        np.dtype,
        type(np.dtype("f8")),
        multiarray._reconstruct,
    ]
    with torch.serialization.safe_globals(allowed):
        return torch.load(path, weights_only=True, map_location="cpu")


def predict(network: dict[str, object], inputs: np.ndarray) -> np.ndarray:
    """Forward pass of the published network, milliseconds."""
    weights = network["model"]
    x = torch.from_numpy((inputs - network["mu"]) / network["sigma"]).float()
    x = torch.relu(x @ weights["fc1.weight"].T + weights["fc1.bias"])
    layers = sorted({int(key.split(".")[2]) for key in weights if key.startswith("mlp.layers.")})
    for layer in layers:
        x = torch.relu(
            x @ weights[f"mlp.layers.{layer}.weight"].T + weights[f"mlp.layers.{layer}.bias"]
        )
    return (x @ weights["fc2.weight"].T + weights["fc2.bias"])[:, 0].numpy()


def compare(
    samples: pd.DataFrame,
    data: Path,
    rows: int,
    cache: Path | None = None,
    families: Sequence[str] = (),
) -> pd.DataFrame:
    """MAPE above twice the floor, over the GPU pairs that both methods cover."""
    table = pd.read_csv(data / "analysis" / "mlp" / "devices.csv").set_index("device")
    found = []
    for family in families or NETWORKS:
        name, inputs_of = NETWORKS[family]
        network = load_network(data / "data" / name / "model.pth")

        def theirs(
            part: pd.DataFrame, gpu: str, network: dict = network, inputs_of=inputs_of
        ) -> np.ndarray:
            device = table.loc[DEVICES[gpu], ["mem", "mem_bw", "num_sm", "single"]].to_numpy(
                dtype=np.float64
            )
            sizes = np.column_stack([np.asarray(c, dtype=np.float64) for c in inputs_of(part)])
            return predict(network, np.hstack([sizes, np.broadcast_to(device, (len(part), 4))]))

        for fold in folds(samples, family, mlp_steps=0, cache=cache, probes=False):
            destination = fold.destination.name
            if destination not in DEVICES:
                continue
            keys = ["op", *FAMILIES[family].required]
            own = samples[samples["family"] == family]
            target = own[own["gpu"] == destination].drop_duplicates(keys)
            target = target[target["latency_us"] > 2 * target["latency_us"].min()]
            target = target.sample(min(rows, len(target)), random_state=0)
            for origin in sorted((set(own["gpu"]) & set(DEVICES)) - {destination}):
                joined = own[own["gpu"] == origin].drop_duplicates(keys)
                joined = joined.merge(
                    target[[*keys, "latency_us"]], on=keys, suffixes=("", "_truth")
                )
                truth = joined["latency_us_truth"].to_numpy()
                ratio = theirs(joined, destination) / theirs(joined, origin)
                auto = by_auto(
                    joined, load_gpu(origin), fold.destination, {family: fold.utilisation}
                )["predicted_us"]
                predictions = {
                    "auto (destination unseen)": auto.to_numpy(),
                    "deepview-predict, ratio": joined["latency_us"].to_numpy() * ratio,
                    "deepview-predict, unscaled": 1e3 * theirs(joined, destination),
                }
                for method, values in predictions.items():
                    mape = 100 * float(np.mean(np.abs(values - truth) / truth))
                    found.append(
                        {
                            "family": family,
                            "origin": origin,
                            "destination": destination,
                            "method": method,
                            "mape": mape,
                            "rows": len(joined),
                        }
                    )
    return pd.DataFrame(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where to install the package")
    parser.add_argument("--out", type=Path, required=True, help="CSV to write")
    parser.add_argument("--rows", type=int, default=2000, help="samples per pair")
    parser.add_argument(
        "--family",
        action="append",
        choices=list(NETWORKS),
        help="only this family; may be repeated",
    )
    parser.add_argument(
        "--folds", type=Path, help="folder that `evaluation.training.build_models --folds` wrote"
    )
    options = parser.parse_args()
    data = datasets_dir()
    if data is None:
        raise InputError("no public data: set STEPTIME_DATASETS to the folder that holds neusight/")
    errors = compare(
        read_samples(data),
        install(options.folder),
        options.rows,
        options.folds,
        options.family or (),
    )
    errors.to_csv(options.out, index=False)
    print(errors.groupby(["family", "method"])["mape"].mean().unstack().round(1).to_string())


if __name__ == "__main__":
    main()
