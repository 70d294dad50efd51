"""Errors of predictions: tables made from artifacts, as parquet, Markdown and an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

import pandas as pd

from evaluation.checks.lin2022_steps import predicted_cnn, predicted_dlrm, published_points
from evaluation.pages.markdown import markdown as table
from evaluation.published.published_errors import NETWORK_METHODS, PUBLISHED
from pipeline.answers.who_answers import Source, kernel_source
from pipeline.flow import Flow, key_of
from pipeline.kernels.error_metrics import DECILES
from pipeline.prediction import Prediction
from pipeline.question.question import LOCAL_GPU
from pipeline.show.html_report import Section

Cell = Callable[[pd.Series], str]

NONE_PUBLISHED = pd.DataFrame()
"""`published_steps` of a grid without such a step."""


def title_of(steps: pd.DataFrame) -> str:
    """Title of a grid: its GPUs, models and batch sizes in words."""
    sizes = ", ".join(f"{size:,}" for size in sorted(set(steps["batch_size"])))
    gpus, models = (
        ", ".join(dict.fromkeys(steps[name].astype(str))) for name in ("gpu", "model_variant")
    )
    return f"Accuracy on {gpus}: {models} at batch {sizes}"


def sections(
    steps: pd.DataFrame,
    errors: pd.DataFrame,
    parts: pd.DataFrame,
    kernels: pd.DataFrame,
    missing: Sequence[str],
    published: pd.DataFrame = NONE_PUBLISHED,
) -> list[Section]:
    """All sections of the accuracy report of one grid.

    Args:
        steps: `steps` of `pipeline.show.figures.step_times`.
        errors, parts: `errors_by_part`, `error_parts` of `evaluation.figures.accuracy_data`.
        kernels: `kernel_errors` of `evaluation.figures`.
        missing: sentences about evidence that is not available.
        published: `published_steps` of this grid; may be empty.
    """
    frames = {
        "Steps": steps,
        "Errors of measured points": errors,
        "Measured points by part of the step": parts,
        "Published steps": published,
        "Kernel models": kernels,
        "Kernel models by size": kernels[kernels[DECILES[0]].notna()],
    }
    made = [_table(title, frame) for title, frame in frames.items()]
    return [
        *(part for part in made if part.says),
        Section(
            "Published, for comparison",
            "Other models, GPUs and software; not measured by this project.",
            ("figure", "error", "source"),
            tuple((p.what, f"{p.percent:g} %", p.source) for p in PUBLISHED),
        ),
        Section(
            "What is missing",
            "" if missing else "Nothing.",
            ("evidence that is not available",) if missing else (),
            tuple((line,) for line in missing),
        ),
    ]


def published_steps(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """The grid's points that are published steps, with their measured times and the errors of published predictions."""
    dlrm = predicted_dlrm(made=predictions).rename(columns={"published_error": "Lin et al."})
    tables = [table for table in (dlrm, predicted_cnn(made=predictions)) if len(table)]
    return pd.concat(tables, ignore_index=True) if tables else dlrm


def missing_evidence(flow: Flow) -> list[str]:
    """One sentence per kind of evidence that a GPU of the grid lacks on this machine, with the way to get it."""
    lines = flow.not_fitted()
    published = {key[0] for key in published_points(map(key_of, flow.points))}
    campaign = "measure it with a campaign (docs/measure_your_gpu.md)"
    for gpu in flow.gpus:
        kernels = kernel_source(gpu)
        hosts = {point.host for point in flow.points if point.gpu.name == gpu}
        inferred = sorted(host.name for host in hosts if host.inferred)
        if kernels is Source.PACK:
            lines.append(
                f"{gpu}: no kernel samples are available; the shipped pack is used. Set"
                " $STEPTIME_DATASETS to refit."
            )
        if kernels is Source.TRANSFER:
            lines.append(
                f"{gpu}: no kernel samples; models of other GPUs are scaled to it. To change that,"
                f" {campaign}."
            )
        if inferred:
            lines.append(
                f"{gpu}: its host ({', '.join(inferred)}) is inferred. To change that, {campaign}."
            )
        if gpu != LOCAL_GPU and kernels is not Source.MEASUREMENTS and gpu not in published:
            lines.append(
                f"{gpu}: no measured steps, so the error of the step is unknown. To change that,"
                f" {campaign}."
            )
    return lines


def markdown(title: str, parts: Sequence[Section]) -> str:
    """The report as Markdown."""
    lines = [f"# {title}", "", "Made by `snakemake accuracy` from artifacts; do not edit."]
    for part in parts:
        lines += ["", f"## {part.title}", "", part.says]
        if part.rows:
            lines += ["", table(part.header, part.rows)]
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def html(title: str, parts: Sequence[Section]) -> str:
    """The report as a single HTML page without other files."""
    body = [f"<h1>{escape(title)}</h1>"]
    for part in parts:
        body += [
            f"<h2>{escape(part.title)}</h2>",
            f"<p>{escape(part.says)}</p>" if part.says else "",
        ]
        if part.rows:
            head = "".join(f"<th>{escape(name)}</th>" for name in part.header)
            rows = "".join(f"<tr>{_cells(part.header, row)}</tr>" for row in part.rows)
            body.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _cells(header: Sequence[str], row: Sequence[str]) -> str:
    return "".join(
        f"<td data-name='{escape(name)}'>{escape(cell)}</td>"
        for name, cell in zip(header, row, strict=True)
    )


_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:70rem;padding:0 1rem}"
    "h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.86rem;width:100%}"
    "th,td{text-align:left;vertical-align:top;padding:.3rem .7rem .3rem 0;border-bottom:1px solid"
    " #8886;overflow-wrap:anywhere}"
    # on a phone a row becomes a block: every value beside its heading
    "@media(max-width:760px){thead{display:none}tr{display:block;padding:.5rem 0;border-bottom:1px"
    " solid #8886}"
    "td{display:flex;gap:.8rem;border:0;padding:.05rem 0}td::before{content:attr(data-name);flex:0"
    " 0 44%;opacity:.7}"
    "td:empty{display:none}}"
)


def _ms(us: object) -> str:
    return "" if pd.isna(us) else f"{float(us) / 1000:,.2f}"  # type: ignore[arg-type,call-overload]


def _percent(share: object, sign: str = "") -> str:
    return "" if pd.isna(share) else f"{100 * float(share):{sign}.1f} %"  # type: ignore[arg-type,call-overload]


def _error(row: pd.Series) -> str:
    return _percent(row["predicted_us"] / row["measured_us"] - 1, "+")


def _share_of(name: str) -> Cell:
    return lambda row: _percent(row.get(name))


def _text_of(name: str) -> Cell:
    return lambda row: str(row[name])


def _ms_of(name: str) -> Cell:
    return lambda row: _ms(row[name])


_STEP: Mapping[str, Cell] = {
    "GPU": _text_of("gpu"),
    "model": _text_of("model_variant"),
    "batch": lambda r: f"{r['batch_size']:,}",
    "step (ms)": _ms_of("predicted_us"),
    "p10 to p90 (ms)": lambda r: f"{_ms(r['p10_us'])} to {_ms(r['p90_us'])}",
    "active, idle (ms)": lambda r: f"{_ms(r['active_us'])}, {_ms(r['idle_us'])}",
    "measured (ms)": _ms_of("measured_us"),
    "error": _error,
    "device time rests on": _text_of("device_evidence"),
    "host time rests on": _text_of("host_evidence"),
    "not modelled": _share_of("unmodelled_share"),
}

_PUBLISHED: Mapping[str, Cell] = {
    "GPU": _text_of("gpu"),
    "model": _text_of("model"),
    "batch": lambda r: f"{r['batch_size']:,}",
    "measured (ms)": _ms_of("measured_us"),
    "predicted (ms)": _ms_of("predicted_us"),
    "p10 to p90 (ms)": lambda r: f"{_ms(r['p10_us'])} to {_ms(r['p90_us'])}",
    "error": _error,
    **{name: _share_of(name) for name in NETWORK_METHODS.values()},
}

_ERROR: Mapping[str, Cell] = {
    "prediction": _text_of("method"),
    "points": _text_of("points"),
    "geometric mean": _share_of("gmae"),
    "mean": _share_of("mape"),
    "worst": _share_of("worst"),
}

_PART: Mapping[str, Cell] = {
    "GPU": _text_of("gpu"),
    "point": _text_of("workload"),
    "part": _text_of("part"),
    "predicted (ms)": _ms_of("predicted_us"),
    "measured (ms)": _ms_of("measured_us"),
    "error": _error,
}

_KERNEL: Mapping[str, Cell] = {
    "family": _text_of("family"),
    "GPU": _text_of("gpu"),
    "model": lambda r: f"{r['variant']} ({r['evidence']})",
    "split": lambda r: str(r["split"] or ""),
    "GMAE": _share_of("gmae"),
    "GMAE above the floor": _share_of("above_floor_gmae"),
    "MAPE": _share_of("mape"),
    "inside p10 to p90": _share_of("coverage"),
    "samples": lambda r: "" if pd.isna(r["samples"]) else f"{int(r['samples']):,}",
}

_BY_SIZE: Mapping[str, Cell] = {
    "family": _text_of("family"),
    "GPU": _text_of("gpu"),
    **{f"to {10 * tenth} %": _share_of(name) for tenth, name in enumerate(DECILES, 1)},
}


_TABLES: Mapping[str, tuple[Mapping[str, Cell], str, str]] = {
    "Steps": (
        _STEP,
        "Predicted step with its p10 to p90 interval; unprofiled measurements where there are any."
        " Evidence: the sources of the device time and the host time.",
        "No step was predicted.",
    ),
    "Errors of measured points": (
        _ERROR,
        "Over the points above that have a measured step.",
        "No point of this grid has a measured step.",
    ),
    "Measured points by part of the step": (
        _PART,
        "Active time against the profiler's trace, steps against unprofiled time.",
        "",
    ),
    "Published steps": (
        _PUBLISHED,
        "Steps of this grid that Lin et al. (HiPC 2022) measured, in their loop, with the errors of"
        " published predictions (absolute for networks). Nothing was fitted to them.",
        "",
    ),
    "Kernel models": (
        _KERNEL,
        "GMAE, MAPE and the share of calls inside p10 to p90, all on shapes that the model was not"
        " trained on; above the floor: calls longer than twice the latency floor.",
        "No kernel model of these GPUs was fitted here or shipped.",
    ),
    "Kernel models by size": (
        _BY_SIZE,
        "GMAE of each tenth of the calls, by the bytes that they move: smallest, then larger ones.",
        "",
    ),
}
"""Columns of each table, what stands above it, and what if it has no rows; without such a text it is left out."""


def _table(title: str, table: pd.DataFrame) -> Section:
    columns, says, if_empty = _TABLES[title]
    cells = [(name, [show(row) for _, row in table.iterrows()]) for name, show in columns.items()]
    told = [(name, column) for name, column in cells if any(column)]
    return Section(
        title,
        says if len(table) else if_empty,
        tuple(name for name, _ in told),
        tuple(zip(*(column for _, column in told), strict=True)),
    )
