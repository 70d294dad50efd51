"""The project's accuracy on measurements at hand, as Markdown: a short table for the README, a long one for `docs/`.

Everything comes from artifacts: the descriptions of shipped models, and `results/checks/`. Nothing is typed by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pipeline.evaluation import bars
from pipeline.evaluation import replayed_traces as replays
from pipeline.evaluation.surfer_pairs import TRACKED
from pipeline.model_files import REBUILD, read_arrays
from pipeline.report.figures.published_errors import published
from pipeline.report.figures.style import in_order
from pipeline.report.markdown import markdown

SAME_PERCENT = 1.0
"""Errors between GPUs and errors from specifications differ by less, in percent, where both are of the same models."""

FAMILY_TITLES = {"conv2d_forward": "conv", "layer_norm": "layer norm"}


@dataclass(frozen=True)
class Evidence:
    """What the account is made of.

    Attributes:
        kernels: `kernel_errors` of the packs.
        spans: `replay_spans`.
        passes: `predicted_passes`.
        left_out: `left_out_errors` of the cross-GPU models.
        pairs: errors of kernels between GPUs.
        models: errors of whole models between GPUs.
    """

    kernels: pd.DataFrame
    spans: pd.DataFrame
    passes: pd.DataFrame
    left_out: pd.DataFrame
    pairs: pd.DataFrame
    models: pd.DataFrame


def left_out_errors(folder: Path) -> pd.DataFrame:
    """Errors of the shipped cross-GPU models on GPUs left out of training, from the models' own metadata.

    Returns:
        family, gpu, mape (%, above twice the latency floor), gmae (%).
    """
    rows = []
    for path in sorted(folder.glob("*.safetensors")):
        facts = read_arrays(path, REBUILD)[1].get("utilisation", {})
        for gpu, errors in facts.get("provenance", {}).get("left_out", {}).items():
            rows.append({"family": facts["family"], "gpu": gpu, **errors})
    return pd.DataFrame(rows, columns=["family", "gpu", "mape", "gmae"])


def short(found: Evidence) -> str:
    """The README's tables."""
    return f"""**Kernel models**: GMAE in % on shapes that the model was not trained on; in brackets this project's bar.

{kernel_table(found.kernels)}

**Steps**: mean absolute error in %. *Published* figures are of other data: they say what is usual.

{stage_table(found)}"""


def long(found: Evidence) -> str:
    """All tables of `docs/accuracy.md`."""
    return f"""## Kernel models

GMAE in % on shapes that the model was not trained on (in brackets this project's bar), and below it the share of calls
inside the p10 to p90 interval, in % (80 is meant). From `packs/*/kernels/*/family.json`.

{kernel_table(found.kernels)}

{_coverage(found.kernels)}

## Replayed traces

Mean absolute error of an iteration's span in %. Kernel times are those of the evaluated iteration; host time and
waiting are predicted: from the other half of the iterations or the other ranks; under *{replays.SHARED}* from all other
machines' traces and one factor. `v100x8_dlrm` has one iteration a rank, hence no factor that is not its own.

{_replays(found.spans)}

## Whole models

Predicted from the shipped packs; the public end-to-end latencies (NeuSight; fp32, eager attention; training: forward
and backward, no optimizer) were used in no fit.

{_passes(found.passes)}

## GPUs without samples

Each GPU left out of training in turn: MAPE in % above twice the latency floor, from its spec file alone. From the
metadata of `packs/transfer/*.safetensors`.

{_left_out(found.left_out)}

Carried from another GPU that was measured (mean over all ordered pairs; `packs/transfer/pair_errors.csv`):

{_pairs(found.pairs)}

## All stages

{stage_table(found)}"""


def kernel_table(kernels: pd.DataFrame) -> str:
    """GMAE by GPU and family, with the bar where there is one."""
    families = [name for name in in_order(kernels["family"]) if name in bars.TRANSFER_MAPE]
    rows = []
    for gpu in sorted(set(kernels["gpu"])):
        own = kernels[kernels["gpu"] == gpu].set_index("family")
        wanted = bars.KERNEL_GMAE.get(gpu, {})
        cells = [f"{100 * own.loc[name, 'gmae']:.2f}" + (f" ({wanted[name]:g})" if name in wanted else "")
                 if name in own.index else "" for name in families]  # fmt: skip
        rows.append([gpu, *cells])
    bound = published("kernels")[0]
    rows.append([f"published, {bound.source}", *([f"< {bound.percent:g}"] * len(families))])
    return markdown(["GPU", *(FAMILY_TITLES.get(name, name) for name in families)], rows)


def stage_table(found: Evidence) -> str:
    """Ours, baseline, published and bar per stage beyond the single kernel."""
    step, shared, moved = (published(key)[0] for key in ("step", "step_shared", "transfer"))
    rows = [*_replay_rows(replays.mean_errors(found.spans), step.percent, shared.percent), *_pass_rows(found.passes),
            *_transfer_rows(found, moved.percent)]  # fmt: skip
    return markdown(["stage", "held against", "ours", "baseline", "published", "bar"], rows)


def _replay_rows(errors: pd.DataFrame, step: float, shared: float) -> Iterable[list[str]]:
    table = errors.pivot(index="trace", columns="method", values="mean_error")
    for trace in dict.fromkeys(errors["trace"]):
        row = table.loc[trace]
        yield ["step, kernel times given", f"`{trace}`", _percent(row[replays.FULL]),
               f"sum of kernels {_percent(row[replays.KERNEL_SUM])}", f"{step:g}",
               f"{bars.REPLAY[trace]:g}" if trace in bars.REPLAY else ""]  # fmt: skip
    known = table[table[replays.SHARED].notna()] if replays.SHARED in table else table.head(0)
    if len(known):
        yield ["the same, overheads of other hosts", f"mean of {len(known)} traces", _percent(known[replays.SHARED].mean()),
           f"sum of kernels {_percent(known[replays.KERNEL_SUM].mean())}", f"{shared:g}",
           f"{bars.SHARED_OVERHEADS:g}"]  # fmt: skip


def _pass_rows(passes: pd.DataFrame) -> Iterable[list[str]]:
    error = (passes["predicted_us"] / passes["measured_us"] - 1).abs()
    for gpu, own in error.groupby(passes["gpu"], sort=True):
        yield ["whole language model", f"{gpu}, {len(own)} passes", f"{_percent(own.mean())} (worst "
               f"{_percent(own.max())})", "", "", f"{bars.WHOLE_MODELS:g}"]  # fmt: skip


def _transfer_rows(found: Evidence, published_percent: float) -> Iterable[list[str]]:
    means = _pair_means(found.pairs)
    for family in in_order(means.index):
        yield [f"{FAMILY_TITLES.get(family, family)}, from one GPU to another", "five GPUs, each left out in turn",
               f"{float(means['auto'][family]):.1f}", f"wave scaling {float(means['wave'][family]):.1f}", "",
               f"{bars.TRANSFER_MAPE[family]:g}"]  # fmt: skip
    if len(found.models):
        error = found.models.assign(error=100 * found.models["error"].abs()).groupby("method")["error"].mean()
        passes = int((found.models["method"] == TRACKED).sum())
        yield ["whole model, from one GPU to another", f"{passes} pairs of passes", f"{error[TRACKED]:.1f}",
               f"wave scaling {error['wave']:.1f}", f"{published_percent:g}", f"{bars.TRANSFER_MODELS:g}"]  # fmt: skip


def _pair_means(pairs: pd.DataFrame) -> pd.DataFrame:
    """Mean MAPE over all ordered pairs: a row per family, a column per method."""
    if pairs.empty:
        return pd.DataFrame(columns=["auto", "wave"])
    means = pairs.groupby(["family", "method"])["mape"].mean().unstack()
    return means.loc[in_order(means.index)]


def outdated(found: Evidence) -> list[str]:
    """Families whose errors between GPUs are not those of the models that ship: one of the two was made anew alone.

    Convolutions are left out: between GPUs they also use the origin's residual, which a specification does not have.
    """
    means = _pair_means(found.pairs)
    direct = found.left_out.groupby("family")["mape"].mean()
    return [family for family in in_order(set(means.index) & set(direct.index))
            if family != "conv2d_forward" and abs(means.loc[family, "auto"] - direct[family]) > SAME_PERCENT]  # fmt: skip


def _coverage(kernels: pd.DataFrame) -> str:
    families = [name for name in in_order(kernels["family"]) if name in bars.TRANSFER_MAPE]
    table = kernels.pivot(index="gpu", columns="family", values="coverage")
    rows = [[str(gpu), *("" if pd.isna(row[name]) else f"{100 * row[name]:.0f}" for name in families)]
            for gpu, row in table.iterrows()]  # fmt: skip
    return markdown(["inside p10 to p90", *(FAMILY_TITLES.get(name, name) for name in families)], rows)


def _replays(spans: pd.DataFrame) -> str:
    errors = replays.mean_errors(spans)
    table = errors.pivot(index="trace", columns="method", values="mean_error")
    methods = [name for name in replays.METHODS if name in table]
    first = errors.drop_duplicates("trace").set_index("trace")
    rows = [[f"`{trace}`", str(first.loc[trace, "device"]), str(first.loc[trace, "evaluated"]),
             *("" if pd.isna(table.loc[trace, name]) else _percent(table.loc[trace, name]) for name in methods)]
            for trace in first.index]  # fmt: skip
    means = table.loc[list(first.index), methods].mean()
    rows.append(["mean", "", "", *(_percent(means[name]) for name in methods)])
    return markdown(["trace", "device", "evaluated", *methods], rows)


def _passes(passes: pd.DataFrame) -> str:
    rows = []
    for row in passes.sort_values(["gpu", "model", "mode", "batch_size"]).to_dict("records"):
        measured, predicted = float(row["measured_us"]), float(row["predicted_us"])
        named = [str(row[name]) for name in ("gpu", "model", "mode", "seq_len", "batch_size")]
        times = [f"{measured / 1e3:,.1f}", f"{predicted / 1e3:,.1f}", f"{100 * (predicted / measured - 1):+.1f}"]
        rows.append([*named, *times])
    return markdown(["GPU", "model", "mode", "tokens", "batch", "measured (ms)", "predicted (ms)", "error (%)"], rows)


def _left_out(errors: pd.DataFrame) -> str:
    table = errors.pivot(index="gpu", columns="family", values="mape")
    families = in_order(errors["family"])
    rows = [[str(gpu), *("" if pd.isna(row[name]) else f"{row[name]:.1f}" for name in families)]
            for gpu, row in table.iterrows()]  # fmt: skip
    rows.append(["mean", *(f"{table[name].mean():.1f}" for name in families)])
    rows.append(["bar", *(f"{bars.TRANSFER_MAPE[name]:g}" for name in families)])
    return markdown(["left out", *(FAMILY_TITLES.get(name, name) for name in families)], rows)


def _pairs(pairs: pd.DataFrame) -> str:
    means = _pair_means(pairs)
    methods = [str(name) for name in means.columns]
    rows = [[FAMILY_TITLES.get(family, family), *("" if pd.isna(v) else f"{v:.1f}" for v in values)]
            for family, values in zip(means.index, means.to_numpy(float), strict=True)]  # fmt: skip
    return markdown(["family", *methods], rows)


def _percent(fraction: float) -> str:
    percent = 100 * fraction
    return f"{percent:.2f}" if percent < 1 else f"{percent:.1f}"
