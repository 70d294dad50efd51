"""Infers the factor of the usual host of 2020 to 2022 on the host times of the public V100 traces.

    python benchmarks/steps/hosts.py [DATASETS_DIR]

Two hosts of A100s were traced: the factor of their traces (`calibrate`). Four other hosts ran a BERT training loop that waits
for the host (Lambda's benchmark, fp32 or TF32; rows of GPUs that were used for tuning): the factor at which the predicted step
equals the measured one. A host counts once, with the geometric mean of its rows. Rows of other GPUs are not read.

It also compares what `steptime host` would say of traced hosts (`probe_factor` on their traces) with the factor of all other
host times in these traces. For the hosts of this project's campaigns, it compares the probe, less the profiler's cost there, with
measured steps that wait for the host and were not profiled: with the factor at which each takes as long as predicted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.published.published_steps import CARDS, COUNTED_SHARE, WORKLOADS
from pipeline import predict
from pipeline.answers.who_answers import observations_in, shipped_overheads
from pipeline.collect.host_probe import DONOR, known_host, probe_factor, probe_samples
from pipeline.errors import InputError
from pipeline.measured.campaign_reader import profiler_event_us, read_step_times
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.overheads.statistics import ProfilerCost, calibrate, corrected, merged
from pipeline.overheads.trace_overheads import extract_campaign, extract_traces
from pipeline.paths import campaign_gpus, datasets_dir, measurements_dir

TRACED = ("a100x8_dlrm", "a100_unrecorded_work")
"""Folders of traces of hosts of 2020 to 2022."""

TRAINED = {
    "A100-PCIE-40GB": "tf32",
    "A100-PCIE-80GB": "tf32",
    "A100-SXM4-80GB": "tf32",
    "RTX3090": "tf32",
}
"""GPUs whose BERT steps are read, and what `fp32` means there."""

PROBED = {
    "a100x8_dlrm": "kineto", "a100_unrecorded_work": "kineto", "rtx2080ti_linear": "kineto",
    "rtx2080ti_resnet": "kineto", "v100dgx_resnet50": "kineto",
    "mi300": "resnet50_checkpointing_ddp bert_small", "h100_inference": "vit bert_small",
}  # fmt: skip
"""Folders and files of traces of other hosts than the donor's."""

CAMPAIGN_SCALES = np.geomspace(0.5, 2.5, 6)
"""Factors at which the steps of campaigns are predicted."""

SCALES = np.geomspace(0.25, 1.4, 8)
"""Factors at which each step is predicted; between them the logarithm is interpolated."""


def donor() -> OverheadModel:
    """The host of the V100 traces; its times contain the profiler's cost, as those of the traces here."""
    return OverheadModel(merged(observations_in(shipped_overheads(DONOR))))


def traced_factor(folder: Path) -> float:
    """The factor of a traced host."""
    return calibrate(donor(), extract_traces([(folder.name, folder / "kineto.json.gz")])).scale


def probe_errors(datasets: Path) -> pd.DataFrame:
    """For each trace of another host: the factor of the probe, and that of all other host times."""
    rows = []
    for folder, names in PROBED.items():
        for name in names.split():
            samples = extract_traces([(folder, datasets / "traces" / folder / f"{name}.json.gz")])
            probed = probe_samples(samples)
            rest = calibrate(donor(), samples.drop(probed.index)).scale
            rows.append((f"{folder}/{name}", probe_factor(samples, donor()), rest))
    return pd.DataFrame(rows, columns=["trace", "probe", "others"])


def trained_factor(gpu: str, model: str, batch_size: int, measured_us: float) -> float:
    """The factor at which the predicted step of BERT takes the measured time; NaN if none does."""
    options = {
        "model.target": "evaluation.workloads.squad_step:make_step",
        "+model.options.size": model,
        "+model.options.zero": True,
        "model.optimizer": "none",
        "model.dtype": TRAINED[gpu],
        "predict.draws": 10,
    }
    ratios = [
        predict(
            gpu,
            "custom",
            batch_size=batch_size,
            host="v100-traces",
            **options,
            **{"overheads.host_scale": scale},
        ).predicted_us
        / measured_us
        for scale in SCALES.tolist()
    ]
    log_scale = np.interp(0.0, np.log(ratios), np.log(SCALES), left=np.nan, right=np.nan)
    return float(np.exp(log_scale))


def campaign_factors(gpu: str) -> pd.DataFrame:
    """The probe's factor of a campaign's host, from each trace, and the factor of each step that waits for the host."""
    folder = measurements_dir() / gpu
    cost = ProfilerCost(profiler_event_us(folder) or 0.0, launch_us=0.0)
    observations = corrected(extract_campaign(folder), cost)
    known = known_host(observations_in(shipped_overheads(DONOR)))
    rows = [
        (name, "probe", probe_factor(part, known))
        for name, part in observations.groupby("workload")
    ]
    for step in read_step_times(folder).itertuples():
        if step.variant not in ("default", "embedding-joint_sparse", "optimizer-none"):
            continue
        key, _, value = step.variant.partition("-")
        options = {f"model.{key}": value} if value else {}
        ratios = []
        for scale in CAMPAIGN_SCALES.tolist():
            found = predict(
                gpu,
                step.model,
                batch_size=step.batch_size,
                host="v100-traces",
                **options,
                **{"overheads.host_scale": scale, "predict.draws": 10},
            )
            ratios.append(found.predicted_us / step.step_us)
            if found.active_us > 0.5 * step.step_us:
                break  # the device takes most of it
        else:
            factor = np.interp(
                0.0, np.log(ratios), np.log(CAMPAIGN_SCALES), left=np.nan, right=np.nan
            )
            rows.append(
                (f"{step.model}/{step.variant}/b{step.batch_size}", "step", float(np.exp(factor)))
            )
    return pd.DataFrame(rows, columns=["workload", "from", "factor"])


def main() -> None:
    """Print the factor of each host, their geometric mean, and how much they differ."""
    datasets = Path(sys.argv[1]) if len(sys.argv) > 1 else datasets_dir()
    if datasets is None:
        raise InputError("public data is not available: give its folder")
    rows = [(name, "trace", traced_factor(datasets / "traces" / name)) for name in TRACED]
    steps = pd.read_parquet(datasets / "multi_gpu" / "steps.parquet")
    steps = steps[
        (steps["table"] == "lambda")
        & (steps["gpus"] == 1)
        & steps["precision"].str.startswith("fp32")
    ]
    for name, gpu in CARDS.items():
        for column, model in WORKLOADS.items():
            of_gpu = steps[(steps["gpu"] == name) & (steps["model"] == column)]
            if gpu in TRAINED and model != "resnet50" and len(of_gpu):
                size, rate = (
                    int(float(of_gpu["batch_per_gpu"].iloc[0])),
                    float(of_gpu["value"].iloc[0]),
                )
                measured_us = 1e6 * size / rate * COUNTED_SHARE[model]
                rows.append(
                    (gpu, f"{model} b{size}", trained_factor(gpu, model, size, measured_us))
                )
    table = pd.DataFrame(rows, columns=["host of", "from", "factor"]).dropna()
    print(table.to_string(index=False, float_format="{:.2f}".format))
    probes = probe_errors(datasets)
    print(probes.to_string(index=False, float_format="{:.2f}".format))
    print(
        "error of the probe: standard deviation of logs"
        f" {np.log(probes['others'] / probes['probe']).std():.2f}"
    )
    for gpu in campaign_gpus():
        factors = np.log(campaign_factors(gpu).set_index(["from", "workload"])["factor"])
        print(f"host of the measured {gpu}, mean and standard deviation of logs:")
        print(
            factors.groupby("from")
            .agg(["count", lambda logs: np.exp(logs.mean()), "std"])
            .to_string()
        )
    hosts = np.log(table["factor"]).groupby(table["host of"]).mean()
    print(
        f"{len(hosts)} hosts: geometric mean {np.exp(hosts.mean()):.2f}, standard deviation of logs"
        f" {hosts.std():.2f}"
    )


if __name__ == "__main__":
    main()
