"""Replay errors of public traces with one part of the model changed: writes the tables of docs/notes/replay.md.

    python benchmarks/trace/ablation.py [--doc docs/notes/replay.md]

Every figure is the mean absolute error of the span in %, on iterations (or ranks) that gave no statistics.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from evaluation.checks.replayed_traces import RANK_COUNT, RANKS, SINGLE_TRACES
from evaluation.pages.markdown import markdown, rewrite
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.overheads.shared_overheads import calibrate, merged
from pipeline.paths import datasets_dir
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.ranks import replay_ranks
from pipeline.simulate.replay import build, replay_source
from pipeline.simulate.replay_options import PUBLISHED, Options
from pipeline.simulate.replay_result import ReplayResult
from pipeline.simulate.trace_selection import TraceSelection, learn
from pipeline.trace.load import load_trace

ROOT = Path(__file__).resolve().parents[2]
HOST_BOUND = ("rtx2080ti_linear", RANKS)

VARIANTS: dict[str, Options] = {
    "full form (default)": Options(),
    "published form (Lin et al.)": PUBLISHED,
    "IQR-trimmed mean": Options(estimator="trimmed_mean"),
    "plain mean": Options(estimator="mean"),
    "median": Options(estimator="median"),
    "per op, no signatures": Options(signatures=False),
    "T1 without thread switch": Options(threads=False),
    "no waits of the host": Options(host_waits=False),
    "no waits between streams": Options(event_waits=False),
    "no launch queue": Options(queue=False),
    "no room on a full device": Options(occupancy=False),
    "T4/2 and 1 us, not measured": Options(device_constants=False),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--doc", type=Path, default=ROOT / "docs" / "notes" / "replay.md")
    options = parser.parse_args()
    data = datasets_dir()
    if data is None:
        print("no public traces here: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    folder = data / "traces"
    singles = {name: TraceSelection.of(load_trace(folder / name / "kineto.json.gz")) for name in SINGLE_TRACES}
    rank_paths = [folder / RANKS / f"rank{rank}_kineto.json.gz" for rank in range(RANK_COUNT)]
    ranks = [TraceSelection.of(load_trace(path)) for path in rank_paths]
    tables = {
        "ablations": ablations(singles, ranks),
        "ranks": ranks_together(rank_paths, ranks),
        "sharing": sharing({**singles, RANKS: ranks[0]}, ranks[1:]),
    }
    for name, table in tables.items():
        print(f"\n{name}\n{table}")
    rewrite(options.doc, tables)
    return 0


def ablations(singles: dict[str, TraceSelection], ranks: list[TraceSelection]) -> str:
    """One row per variant, one column per trace; baselines at the end."""
    rows: dict[str, list[float]] = {}
    results: list[list[ReplayResult]] = []
    for label, variant in VARIANTS.items():
        per_trace = [[replay_source(source, (), variant)] for source in singles.values()]
        per_trace.append([replay_source(own, [o for o in ranks if o is not own], variant) for own in ranks])
        rows[label] = [errors(group, lambda r: r.predicted_us) for group in per_trace]
        results = results or per_trace
    rows["baseline: kernel sum"] = [errors(g, lambda r: float(r.iteration.kernel_us.sum())) for g in results]
    rows["baseline: mean of training iterations"] = [errors(g, lambda r: r.train_mean_us) for g in results]
    head = ["variant", *singles, f"{RANKS}, rank from others", "mean"]
    return markdown(head, [[label, *(f"{v:.2f}" for v in values), f"{np.mean(values):.2f}"]
                           for label, values in rows.items()])  # fmt: skip


def errors(group: list[ReplayResult], pick: Callable[..., float]) -> float:
    """Mean absolute error of evaluated iterations, percent."""
    return 100 * float(np.mean([abs(pick(r) / r.iteration.span_us - 1) for g in group for r in g.replayed]))


def ranks_together(paths: list[Path], ranks: list[TraceSelection]) -> str:
    """Table of ranks: each alone, with the measured durations of its collectives, and all simulated together."""
    alone = [replay_source(own, [other for other in ranks if other is not own]) for own in ranks]
    joint = replay_ranks(paths)
    head = ["rank", "span measured, us", "alone, %", "together, %", "computing, us", "communicating, us"]
    rows = [
        [str(i), f"{j.iteration.span_us:.0f}", f"{100 * a.as_dict()['error']:+.2f}", f"{100 * j.error:+.2f}",
         f"{j.compute_us:.0f}", f"{j.communication_us:.0f}"] for i, (a, j) in enumerate(zip(alone, joint, strict=True))
    ]  # fmt: skip
    means = [np.mean([abs(a.as_dict()["error"]) for a in alone]), np.mean([abs(j.error) for j in joint])]
    return markdown(head, [*rows, ["mean absolute", "", *(f"{100 * m:.2f}" for m in means), "", ""]])


def sharing(sources: dict[str, TraceSelection], other_ranks: list[TraceSelection]) -> str:
    """Table of all ordered pairs: overheads of one workload predict another, without and with one factor.

    The factor comes from up to five of the target's iterations, at most half of them. The other iterations are
    evaluated. Ranks have one iteration each: rank 0 gives the factor, and the others are evaluated.
    """
    chosen = {n: s.after_warm_up for n, s in sources.items()}
    samples = {n: learn([s.without_one_time_costs])[0] for n, s in chosen.items()}
    plain, scaled, rows = {}, {}, []
    for target, source in chosen.items():
        few, rest = source, other_ranks
        if target != RANKS:
            count = min(5, len(source.chosen) // 2)
            few, rest = source.only(source.chosen[:count]), [source.only(source.chosen[count:])]
        seen, waits = learn([few.without_one_time_costs])
        for donor in chosen:
            if donor == target:
                continue
            model = OverheadModel(merged(samples[donor]))
            factor = calibrate(model, seen)
            for scale, kept in ((1.0, plain), (factor.scale, scaled)):
                spans = [
                    simulate(build(held, i, model.scaled(scale), waits), i.kernel_us).step_us[0] / i.span_us - 1
                    for held in rest for i in held.chosen
                ]  # fmt: skip
                kept[target, donor] = 100 * float(np.mean(np.abs(spans)))
            rows.append([target, donor, f"{factor.scale:.2f}", f"{plain[target, donor]:.1f}",
                         f"{scaled[target, donor]:.1f}"])  # fmt: skip
    for label, keep in (
        ("mean of all pairs", lambda t: True),
        ("mean of host-bound targets", lambda t: t in HOST_BOUND),
    ):
        means = [np.mean([v for (t, _), v in kept.items() if keep(t)]) for kept in (plain, scaled)]
        rows.append([label, "", "", *(f"{m:.1f}" for m in means)])
    return markdown(["target", "overheads from", "factor", "without factor, %", "with factor, %"], rows)


if __name__ == "__main__":
    sys.exit(main())
