"""What each learned component of a kernel model is worth: its error with all components, and with one left out.

A fifth of the shapes is held out. On the rest, members are trained once per GPU and family; every row of the table then
averages a subset of the same members, so that the rows differ by the component alone. Judged is the average of the
members (not the student that ships, except in the row `distillation`). Reduced, to end in minutes: products train
`FOLDS` of the eight folds that ship, and one seed is used.

Rows are appended to the table as they are done, and those in it are not computed again:

    python benchmarks/kernels/leave_one_out.py --out table.csv
    python benchmarks/kernels/leave_one_out.py --show table.csv
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.datasets.neusight import read_samples
from pipeline.flow import PUBLIC_FAMILIES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import cublas_choice_fit as choice_fit
from pipeline.kernels import cublas_choice_teachers as choice_teachers
from pipeline.kernels import distillation as distil
from pipeline.kernels import learned_variants as learned
from pipeline.kernels.effort import LONG
from pipeline.kernels.error_metrics import gmae
from pipeline.kernels.fit_family import AUTO_CHOICE_FAMILIES, Fitter, with_predictions
from pipeline.kernels.fit_gpu import calibrate_physics
from pipeline.kernels.fit_workers import TrainingPool
from pipeline.kernels.network_training import train_network
from pipeline.kernels.samples import assign_folds, clean_samples, split_by_shape
from pipeline.kernels.session_drift import Drift
from pipeline.kernels.trees import train_trees
from pipeline.kernels.work import Array
from pipeline.paths import datasets_dir

FOLDS = 4
"""Folds of products that are trained, of the eight that ship: half of the time."""

GPUS = ("V100", "A100", "P100", "P4", "T4")
NOTHING_LEFT_OUT = "nothing"
COLUMNS = ["gpu", "family", "left_out", "gmae", "seconds"]

Predictions = tuple[Array, Array]
"""Out-of-fold predictions of the training rows (NaN where there is none), and predictions of the held-out rows."""


@dataclass(frozen=True)
class KnownMember:
    """A member whose predictions of the held-out rows are known."""

    values: Array

    def predict(self, features: Array) -> Array:
        """The known predictions."""
        assert len(features) == len(self.values)
        return self.values


class Trial:
    """One family of one GPU: training rows, held-out rows, and the error of a subset of components."""

    def __init__(self, samples: pd.DataFrame, gpu_name: str, name: str, seed: int) -> None:
        gpu = load_gpu(gpu_name)
        held = split_by_shape(samples, 0.2, seed)
        memory, offset_us, _ = calibrate_physics(samples[~held], gpu)
        own = (samples["family"] == name).to_numpy()
        table = clean_samples(samples[own].assign(held_out=held[own]).reset_index(drop=True))
        marked = table.pop("held_out").to_numpy(dtype=bool)
        self.test = table[marked].reset_index(drop=True)
        self.seed = seed
        self.steps = Fitter(table[~marked].reset_index(drop=True), gpu, name, seed, memory, offset_us, TrainingPool())
        self.base = self.steps.base
        self.baseline = self.base.baseline(self.steps.clamped)
        self.drift, self.clean = self.steps.without_drift(self.baseline)
        self.problem = self.steps.problem(self.base, self.clean, self.baseline)
        self.test_calls = self.base.scope.clamp(self.test, gpu.l2_bytes)[0]
        self.asked = self.base.features(self.test_calls)

    def error(
        self, answers: Predictions, drift: Drift | None = None, clean: Array | None = None, trust: bool = True
    ) -> float:
        """GMAE in percent of the held-out latencies, calibrated on the out-of-fold predictions as a fit does."""
        unseen, asked = answers
        model = replace(self.base, variant="average", members=(KnownMember(asked),), weights=(1.0,))
        model, _ = self.steps.calibrate(
            model, self.baseline, unseen, self.clean if clean is None else clean, drift or self.drift, 1.0
        )
        table = with_predictions(model if trust else replace(model, floor_trust=1.0), self.test)
        return 100.0 * gmae(table["predicted_us"].to_numpy(float), table["latency_us"].to_numpy(float))

    def mix(self, trees: Predictions, networks: Predictions) -> Predictions:
        """Both kinds of members, in the proportion that out-of-fold errors favour."""
        shares, unseen = distil.Shares.best(self.problem, trees[0], networks[0])
        at_floor = self.problem.at_floor(self.test_calls, (trees[1] + networks[1]) / 2.0)
        return unseen, shares.mix(at_floor, trees[1], networks[1])

    def folds(
        self, train: learned.Trainer, folds: int, target: Array | None = None
    ) -> tuple[Predictions, list[Any]]:  # fmt: skip
        """Members trained on folds of the problem, and their answers."""
        problem = self.problem if target is None else replace(self.problem, target=target)
        unseen, members = learned.cross_validate(problem, train, self.seed, folds)
        return (unseen, np.mean([member.predict(self.asked) for member in members], axis=0)), members


def products(trial: Trial) -> dict[str, float]:
    """Errors of products whose kernel is known."""
    observed = trial.steps.observed_choices()
    if observed is None:
        raise SystemExit("these samples do not name their kernels")
    problem, menu, made = trial.problem, observed.menu, observed.choice
    plain = learned.member_recipe(len(problem.target), problem.law)
    periodic = replace(
        plain, width=choice_fit.PERIODIC_WIDTH[0], layers=choice_fit.PERIODIC_WIDTH[1], frequencies=learned.INPUT_FREQUENCIES
    )  # fmt: skip
    told, known = menu.inputs(problem.features, made), made >= 0
    number = assign_folds(problem.calls, choice_fit.FOLDS, trial.seed)
    kinds = ("mixed", "scorer", "judges")
    unseen = {(kind, member): np.full(len(made), np.nan) for kind in kinds for member in ("trees", "plain", "periodic")}
    likely = dict.fromkeys(kinds, 0.0)
    members: list[dict[str, Any]] = []
    for fold in range(FOLDS):
        held, seed = number == fold, trial.seed + fold
        fit = ~held & known
        teacher = choice_teachers.train_teacher(menu, problem.features[fit], made[fit], seed)
        seen = told[fit], problem.target[fit]
        each = {
            "trees": train_trees(*seen, seed),
            "plain": train_network(*seen, plain, seed),
            "periodic": train_network(*seen, periodic, seed),
        }
        members.append(each)
        for kind, probabilities in _probabilities(teacher, menu, problem.features[held]).items():
            inputs = menu.inputs(problem.features[held], probabilities.argmax(axis=1))
            for name, member in each.items():
                unseen[kind, name][held] = member.predict(inputs)
        for kind, probabilities in _probabilities(teacher, menu, trial.asked).items():
            likely[kind] = likely[kind] + probabilities
    asked = {}
    for kind in kinds:
        inputs = menu.inputs(trial.asked, likely[kind].argmax(axis=1))
        for name in ("trees", "plain", "periodic"):
            asked[kind, name] = np.array([each[name].predict(inputs) for each in members])

    def trees(kind: str) -> Predictions:
        return unseen[kind, "trees"], asked[kind, "trees"].mean(axis=0)

    def networks(kind: str, *names: str) -> Predictions:
        """Folds in turn take a network of each of the names."""
        turn = [names[fold % len(names)] for fold in range(FOLDS)]
        own = np.full(len(made), np.nan)
        for fold, name in enumerate(turn):
            own = np.where(number == fold, unseen[kind, name], own)
        return own, np.mean([asked[kind, name][fold] for fold, name in enumerate(turn)], axis=0)

    both = "plain", "periodic"
    shipped = trial.mix(trees("mixed"), networks("mixed", *both))
    blind_trees, _ = trial.folds(train_trees, FOLDS)
    blind_networks, _ = trial.folds(partial(learned.train_by_recipe, plain), FOLDS)
    return {
        NOTHING_LEFT_OUT: trial.error(shipped),
        "trees over candidates": trial.error(trial.mix(trees("scorer"), networks("scorer", *both))),
        "scorer's odds beside these trees": trial.error(trial.mix(trees("judges"), networks("judges", *both))),
        "trees of the time": trial.error(networks("mixed", *both)),
        "networks of the time": trial.error(trees("mixed")),
        "networks with sines": trial.error(trial.mix(trees("mixed"), networks("mixed", "plain"))),
        "networks without sines": trial.error(trial.mix(trees("mixed"), networks("mixed", "periodic"))),
        "choice of kernel": trial.error(trial.mix(blind_trees, blind_networks)),
        "floor trust": trial.error(shipped, trust=False),
    }


def _probabilities(teacher: choice_teachers.Teacher, menu: Any, features: Array) -> dict[str, Array]:
    """Odds of every choice by scorer and trees together, and by each."""
    mixed, scorer = teacher.probabilities(menu, features), teacher.scorer.probabilities(menu, features)
    share = choice_teachers.TREES_WEIGHT
    return {"mixed": mixed, "scorer": scorer, "judges": (mixed - (1.0 - share) * scorer) / share}


def average(trial: Trial, students: bool) -> dict[str, float]:
    """Errors of the variant `average`."""
    problem = trial.problem
    rows = len(problem.target)
    recipe = learned.member_recipe(rows, problem.law)
    count = learned.FOLDS if rows < learned.SMALL_FAMILY_SAMPLES else LONG.network_folds
    by_trees, trees = trial.folds(train_trees, learned.FOLDS)
    by_networks, networks = trial.folds(partial(learned.train_by_recipe, recipe), count)
    shipped = trial.mix(by_trees, by_networks)
    found = {
        NOTHING_LEFT_OUT: trial.error(shipped),
        "trees": trial.error(by_networks),
        "networks": trial.error(by_trees),
        "floor trust": trial.error(shipped, trust=False),
    }
    if recipe.frequencies:
        still, _ = trial.folds(partial(learned.train_by_recipe, replace(recipe, frequencies=0)), count)
        found["sines"] = trial.error(trial.mix(by_trees, still))
    if trial.drift.found:
        measured = np.log(trial.steps.measured)
        drifting, _ = trial.folds(train_trees, learned.FOLDS, measured - trial.baseline)
        none = Drift(np.zeros(rows), 0.0)
        found["networks and drift"] = trial.error(drifting, none, measured)
    if students:
        shares, unseen = distil.Shares.best(problem, by_trees[0], by_networks[0])
        invented = distil.synthetic_calls(problem.calls, distil.SYNTHETIC_ROWS, trial.seed)
        teachers, inputs = distil.Teachers(trees, networks, shares), problem.featurise(invented)
        lesson = distil.StudentData(problem.features, problem.target, inputs, teachers.times(problem, invented, inputs))
        student = distil.distil(
            problem, lesson, teachers, unseen, trial.seed,
            distil.student_recipe(recipe, few=rows < learned.SMALL_FAMILY_SAMPLES),
        ).members[0]  # fmt: skip
        found["student instead of its teachers"] = trial.error((unseen, student.predict(trial.asked)))
    return found


def show(table: pd.DataFrame) -> str:
    """Markdown: GMAE in percent with all components, and its change in percent of that with one left out."""
    lines = []
    order = {name: i for i, name in enumerate(PUBLIC_FAMILIES)}
    for family, rows in sorted(table.groupby("family"), key=lambda item: order[str(item[0])]):
        grid = rows.pivot_table("gmae", "left_out", "gpu", sort=False)
        whole = grid.loc[NOTHING_LEFT_OUT]
        names = list(grid.columns)
        lines += ["", f"| {family}: left out | {' | '.join(names)} | mean |", "|---|" + "---|" * (len(names) + 1)]
        lines.append(
            f"| {NOTHING_LEFT_OUT}: GMAE % | "
            + " | ".join(f"{whole[name]:.2f}" for name in names)
            + f" | {whole.mean():.2f} |"
        )
        for left_out in grid.index.drop(NOTHING_LEFT_OUT):
            ratio = grid.loc[left_out] / whole
            cells = [f"{100 * (each - 1):+.1f}" if np.isfinite(each) else "" for each in ratio]
            mean = 100 * (np.exp(np.log(ratio).mean()) - 1)
            lines.append(f"| {left_out} | {' | '.join(cells)} | {mean:+.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", nargs="+", default=list(GPUS))
    parser.add_argument("--families", nargs="+", default=list(PUBLIC_FAMILIES), choices=PUBLIC_FAMILIES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--students", action="store_true", help="train students too (a minute each; not of gemm)")
    parser.add_argument("--out", type=Path, help="table (CSV) to complete")
    parser.add_argument("--show", type=Path, help="print a table that is there as Markdown")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    if chosen.show:
        print(show(pd.read_csv(chosen.show)))
        return
    root = datasets_dir()
    if root is None or chosen.out is None:
        raise SystemExit("give --out, and $STEPTIME_DATASETS where the public data are not found")
    for name in chosen.families:
        measure: Callable[[Trial], dict[str, float]] = (
            products if name in AUTO_CHOICE_FAMILIES else partial(average, students=chosen.students)
        )
        for gpu in chosen.gpus:
            done = pd.read_csv(chosen.out) if chosen.out.is_file() else pd.DataFrame(columns=COLUMNS)
            full = load_gpu(gpu).name
            if ((done["gpu"] == full) & (done["family"] == name)).any():
                continue
            began = time.process_time()
            errors = measure(Trial(read_samples(root, full), full, name, chosen.seed))
            seconds = round(time.process_time() - began)
            rows = [(full, name, left_out, round(error, 4), seconds) for left_out, error in errors.items()]
            print(*rows, sep="\n", flush=True)
            found = pd.DataFrame(rows, columns=COLUMNS)
            found.to_csv(chosen.out, mode="a", header=not chosen.out.exists(), index=False)


if __name__ == "__main__":
    main()
