"""How p10 and p90 of a step depend on `predict.seed`, for several numbers of draws.

    python benchmarks/steps/draws.py [--seeds 12] [--draws 1024,4096] [OVERRIDE ...]

For each point of the overrides and each number of draws, it prints the mean over the seeds, and the standard deviation from
seed to seed, in % of the step. `plain` draws all errors, as predictions did formerly.
"""

from __future__ import annotations

import argparse

import numpy as np

from evaluation.checks.step_intervals import plain_interval, step_of
from evaluation.pages.markdown import markdown
from pipeline.answers.step_errors import step_interval
from pipeline.question.question import expand

GRIDS = (
    ("gpu=V100", "model=dlrm_default,resnet50,bert_large,gnmt", "batch_size=16"),
    ("gpu=V100,A100", "model=dlrm_default", "batch_size=1024,2048"),
    ("gpu=T4,H100", "model=dlrm_default", "batch_size=1024,4096"),
)
"""Steps that are bound by the host, by the device, and nearly by both."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--draws", default="1024,4096")
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    rows = []
    grids = [tuple(given.overrides)] if given.overrides else GRIDS
    for point in (point for grid in grids for point in expand(list(grid))):
        errors, timeline, which = step_of(point)
        name, step_us = f"{point.model}, {point.gpu}, batch {point.batch_size}", float(timeline.step_us[0])
        for draws in map(int, given.draws.split(",")):
            for kind, interval in (("plain", plain_interval), ("predicted", step_interval)):
                found = [interval(errors, timeline, which, draws, seed) for seed in range(given.seeds)]
                ends = 100 * np.array(found) / step_us
                mean, scatter = ends.mean(axis=0), ends.std(axis=0, ddof=1)
                rows.append(
                    (name, kind, f"{draws:,}", *(f"{m:.2f} ± {s:.2f}" for m, s in zip(mean, scatter, strict=True)))
                )
    print(markdown(("step", "draws of", "draws", "p10 (% of the step)", "p90 (% of the step)"), rows))


if __name__ == "__main__":
    main()
