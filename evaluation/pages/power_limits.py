"""Compares steps under power limits with Zeus's epochs on a V100 and a P100: `python -m evaluation.pages.power_limits --write`.

Constants of the power model (`pipeline/hardware/power.py`) were set on these runs, so the table also fits them again without a
network, and without a card, and predicts what was left out. A clock and a time are those of the model; batches of the
same network on one card are one capture each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.pages.kernel_watts import watts_table
from evaluation.pages.markdown import markdown, rewrite
from evaluation.pages.node_watts import node_table
from evaluation.published.published_limits import RUN, read_limits
from pipeline.answers.engine import Engine
from pipeline.answers.model_sources import AvailableModels
from pipeline.answers.step_power import StepPower
from pipeline.arrays import Array
from pipeline.errors import SteptimeError
from pipeline.hardware.power import SHARED, PowerConstants
from pipeline.hardware.spec import GpuSpec
from pipeline.paths import datasets_dir, project_dir
from pipeline.question.question import questions_of

PAGE = Path("docs") / "energy.md"

FIT_START = {
    "busy": 0.22,
    "pj_per_flop": 12.5,
    "pj_per_byte": 80.0,
    "voltage_slope": 1.1,
    "least_voltage": 0.77,
    "held": 0.96,
}
FIT_WIDTH = np.array([0.3, 0.3, 0.3, 0.15, 0.1, 0.03])
"""Constants that are fitted, round, and the relative widths of a prior around them: one card cannot tell them all apart."""
TIED = 0.1

CALL = ["family", "dtype", "kernel_us", "flops", "bytes_read", "bytes_written"]
"""What the power of a device call depends on."""

NAMES = {"bert_base_uncased": "", "deepspeech2": "deepspeech2", "shufflenetv2": "shufflenetv2"}


def overrides_of(network: str, dataset: str, batch_size: int) -> list[str]:
    """The options of a run's step."""
    if network == "resnet50":
        return [f"batch_size={batch_size}", "model.optimizer=adam"]
    return [
        f"batch_size={batch_size}",
        "model.target=evaluation.workloads.energy_steps:make_step",
        f"+model.options.network={NAMES[network] or dataset}",
        "model.optimizer=adamw" if network != "shufflenetv2" else "model.optimizer=adam",
    ]


@dataclass(frozen=True)
class PredictedRun:
    """The predicted step of a run under the default limit."""

    gpu: GpuSpec
    calls: pd.DataFrame
    step_us: float
    active_us: float
    bound: str

    def under(self, limits_w: Array, constants: PowerConstants) -> Array:
        """Time over that under the default limit, and mean watts, shape (limits, 2). Idle time stays as it is."""
        idle_us, counts = self.step_us - self.active_us, self.calls["count"].to_numpy(float)
        us = self.calls["kernel_us"].to_numpy(float)
        usual = StepPower.of(self.gpu, self.calls, us, counts, idle_us, constants)
        usual_us, _ = usual.curve.at(usual.usual)
        found = []
        for limit_w in limits_w:
            power = replace(usual, clock=usual.curve.clock(limit_w))
            active_us = self.active_us * power.curve.at(power.clock)[0] / usual_us
            step_us = active_us + idle_us
            watts = power.answer(step_us, active_us, self.bound).mean_w(step_us)
            found.append((step_us / self.step_us, watts))
        return np.array(found)


def predicted_runs(rows: pd.DataFrame) -> dict[tuple[object, ...], PredictedRun]:
    """The step of each GPU, network, data set and batch size of the rows."""
    engine, found = Engine(AvailableModels(results=None)), {}
    for key in rows[RUN[:4]].drop_duplicates().itertuples(index=False, name=None):
        gpu, network, dataset, batch_size = key
        print(f"{network}, {dataset}, batch {batch_size} on {gpu}", file=sys.stderr)
        model = "resnet50" if network == "resnet50" else "custom"
        options = dict(text.split("=", 1) for text in overrides_of(network, dataset, batch_size))
        (question,) = questions_of(gpu, model, options)
        p = engine.predict_one(question).whole()
        assert p.calls is not None
        kinds = p.calls[p.calls["call"] >= 0].groupby(CALL, observed=True, dropna=False)
        calls = kinds.size().reset_index(name="count")
        found[key] = PredictedRun(question.gpu, calls, p.predicted_us, p.active_us, p.bound)
    return found


def with_answers(
    rows: pd.DataFrame, runs: Mapping[tuple[object, ...], PredictedRun], constants: PowerConstants
) -> pd.DataFrame:
    """The rows with predicted `p_slow` and `p_watts`."""
    found = rows.assign(p_slow=np.nan, p_watts=np.nan)
    for key, own in rows.groupby(RUN[:4]):
        limits_w = own["power_limit_w"].to_numpy(float)
        found.loc[own.index, ["p_slow", "p_watts"]] = runs[key].under(limits_w, constants)
    return found


def errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Relative errors of the rows below the highest limit: slow-down, watts, joules, and of the simplest rules."""
    highest = rows.groupby("gpu")["power_limit_w"].transform("max")
    joules = rows["slow"] * rows["watts"]
    found = rows.assign(
        slow_down=rows["p_slow"] / rows["slow"] - 1,
        mean_w=rows["p_watts"] / rows["watts"] - 1,
        joules=rows["p_slow"] * rows["p_watts"] / joules - 1,
        no_slow_down=1 / rows["slow"] - 1,
        square_root=(highest / rows["power_limit_w"]) ** 0.5 / rows["slow"] - 1,
        limit_as_watts=rows["power_limit_w"] / rows["watts"] - 1,
    )
    return found[~rows["is_top"]]


def fitted(rows: pd.DataFrame, runs: Mapping[tuple[object, ...], PredictedRun]) -> PowerConstants:
    """Constants fitted to rows: each network of a card has the same weight."""
    from scipy.optimize import least_squares

    size = rows.groupby(["gpu", "network", "dataset"])["slow"].transform("size").to_numpy()
    weight = (1 / np.sqrt(size)) / np.mean(1 / np.sqrt(size))
    start = np.array(list(FIT_START.values()))

    def constants(logs: Array) -> PowerConstants:
        return replace(SHARED, **dict(zip(FIT_START, start * np.exp(logs), strict=True)))

    def misses(logs: Array) -> Array:
        p = with_answers(rows, runs, constants(logs))
        parts = [np.log(p["p_slow"] / p["slow"]), np.log(p["p_watts"] / p["watts"])]
        tie = TIED * np.sqrt(len(rows) / 100) * logs / FIT_WIDTH
        return np.concatenate([parts[0] * weight, parts[1] * weight, tie])

    found = least_squares(
        misses, np.zeros(len(start)), diff_step=1e-3, loss="soft_l1", f_scale=0.05, max_nfev=12
    )
    return constants(found.x)


SHOWN = ("slow_down", "mean_w", "joules", "no_slow_down", "square_root", "limit_as_watts")
HEAD = [
    "runs",
    "rows",
    "slow-down %",
    "watts %",
    "joules %",
    "no slow-down",
    "square root",
    "limit as watts",
]


def line(name: str, rows: pd.DataFrame) -> list[str]:
    """Mean absolute errors of some rows, with the mean error of ours."""
    means = [f"{100 * rows[key].abs().mean():.1f}" for key in SHOWN]
    ours = [
        f"{mean} ({100 * rows[key].mean():+.1f})"
        for key, mean in zip(SHOWN[:3], means, strict=False)
    ]
    return [name, str(len(rows)), *ours, *means[3:]]


def least_joules(rows: pd.DataFrame) -> list[str]:
    """Joules above the least of a run, %: at the limit that is predicted to need least, and at the highest."""
    above = []
    for _, run in rows.groupby(RUN):
        joules = (run["slow"] * run["watts"]).to_numpy(float)
        chosen = (run["p_slow"] * run["p_watts"]).to_numpy(float).argmin()
        highest_limit = run["power_limit_w"].to_numpy().argmax()
        above.append(joules[[chosen, highest_limit]] / joules.min())
    ours, highest = 100 * (np.mean(above, axis=0) - 1)
    return [f"{len(above)} runs", f"{ours:.1f}", f"{highest:.1f}"]


def tables(datasets: Path) -> dict[str, str]:
    """The blocks of the page: errors with the shipped constants, with a network or a card left out, and the choice of a limit."""
    rows = read_limits(datasets)
    counts = rows.drop_duplicates(RUN)["reason"].value_counts()
    rows = rows[rows["reason"] == ""].reset_index(drop=True)
    runs = predicted_runs(rows)
    answered = with_answers(rows, runs, SHARED)
    found = errors(answered)
    lines = [line("all", found)]
    for columns in (["gpu"], ["gpu", "network", "dataset"]):
        lines += [line(", ".join(map(str, key)), part) for key, part in found.groupby(columns)]
    left = []
    for column in ("network", "gpu"):
        parts = []
        for name, own in rows.groupby(column):
            constants = fitted(rows.drop(own.index), runs)
            parts.append(errors(with_answers(own, runs, constants)))
            left.append(line(f"{name} left out", parts[-1]))
        left.append(line(f"**each {column} left out**", pd.concat(parts)))
    waits = f"{counts.get('host', 0)} runs wait for the host, {counts.get('loader', 0)} for data"
    return {
        "limits": f"{markdown(HEAD, lines)}\n\n{waits}; {counts['']} count.",
        "left out": markdown(HEAD, left),
        "least joules": markdown(
            ["joules above the least, %", "predicted limit", "highest limit"],
            [least_joules(answered)],
        ),
        "kernel watts": watts_table(datasets),
        "node watts": node_table(datasets),
    }


def main() -> int:
    """Print the tables, and write them where asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="replace the tables of docs/energy.md")
    options = parser.parse_args()
    try:
        datasets = datasets_dir()
        if datasets is None:
            raise SteptimeError("no public data: set STEPTIME_DATASETS")
        blocks = tables(datasets)
        print("\n\n".join(blocks.values()))
        if options.write:
            rewrite(project_dir() / PAGE, blocks)
    except SteptimeError as error:
        print(f"steptime: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
