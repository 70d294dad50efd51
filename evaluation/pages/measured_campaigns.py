"""Writes the paper's table for measured GPUs: every step of a campaign compared with its prediction.

`make measured` or `python -m evaluation.pages.measured_campaigns`: for each campaign under `measurements/` (or
$STEPTIME_MEASUREMENTS), runs the target `accuracy` for the workloads that were timed with the default precision. It writes
the tables into `docs/accuracy.md`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.checks import error_parts as parts
from evaluation.figures.accuracy_inputs import fitted_models, read_any, with_gpus
from evaluation.figures.kernel_errors import kernel_errors
from evaluation.pages.accuracy_tables import FAMILY_TITLES
from evaluation.pages.markdown import markdown, rewrite
from evaluation.pages.snakemake_runs import run_snakemake
from pipeline.errors import InputError, SteptimeError
from pipeline.flow import Flow, wildcards_of
from pipeline.kernels.error_metrics import gmae, mape
from pipeline.measured.campaign_reader import measured_step, provenance, read_step_times
from pipeline.paths import campaign_gpus, measurements_dir, project_dir
from pipeline.question.compose import choices
from pipeline.question.question import ask
from pipeline.readable import distinct

PAGE, MARKER = Path("docs") / "accuracy.md", "measured"
OPTION_PATTERN = re.compile(
    r"(embedding|optimizer|dtype)-(.*?)(?=_(?:embedding|optimizer|dtype)-|$)"
)
"""Pattern of a model's options in a variant's name, as `pipeline.collect.campaign_grid` and grid points write them."""
SHOWN_PARTS = (
    (parts.ACTIVE, "active"),
    (parts.UNSEEN_ACTIVE, "active without these shapes"),
    (parts.OWN_OVERHEADS, "own overheads"),
    (parts.SHARED_OVERHEADS, "other models' overheads"),
    (parts.UNLIKE_OVERHEADS, "other kinds' overheads"),
    (parts.KERNEL_SUM, "kernels alone"),
)
"""Parts of the prediction that the table shows, with the names of their columns."""

COLUMNS = """\
- *Without these shapes*: a kernel whose shape was a sample takes what a model of the other shapes predicts for it
  (cross-validation in five folds of shapes). Where a network learned, three of five shapes have such a prediction.
- *Own overheads* come from the workload's own trace, *other models' overheads* from the traces of all other models: of no batch
  size and no variant of the same model. For *other kinds' overheads* all DLRMs are one model."""
"""What the columns of the table are."""

PREDICTED = [SHOWN_PARTS[place] for place in (0, 2, 3)]
"""The parts whose predicted times are shown."""


@dataclass(frozen=True)
class Grid:
    """Steps of one campaign that one `snakemake --config` covers: models with the same options and batch sizes."""

    gpu: str
    models: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    batches: tuple[int, ...]

    def config(self, results: str) -> dict[str, str]:
        """Snakemake's `--config` values."""
        overrides = " ".join(f"model.{key}={value}" for key, value in self.options)
        named = {
            "gpu": self.gpu,
            "host": self.gpu,
            "model": ",".join(self.models),
            "batch_size": ",".join(map(str, self.batches)),
        }
        return named | ({"overrides": overrides} if overrides else {}) | {"results": results}


def grids(gpu: str, folder: Path) -> list[Grid]:
    """The grids that cover a campaign's steps in the default precision, without models that have no configuration here.

    Raises:
        InputError, TableError: the folder is not a campaign, or its table is damaged.
    """
    batches: dict[tuple[str, tuple[tuple[str, str], ...]], set[int]] = defaultdict(set)
    for row in read_step_times(folder).to_dict("records"):
        options = tuple(OPTION_PATTERN.findall(str(row["variant"])))
        if "dtype" not in dict(options) and row["model"] in choices("model"):
            batches[str(row["model"]), options].add(int(row["batch_size"]))
    together: dict[tuple[tuple[tuple[str, str], ...], tuple[int, ...]], list[str]] = defaultdict(
        list
    )
    for (model, options), sizes in batches.items():
        together[options, tuple(sorted(sizes))].append(model)
    return [
        Grid(gpu, tuple(models), options, sizes) for (options, sizes), models in together.items()
    ]


def asked_without_a_host(gpus: Iterable[str]) -> pd.DataFrame:
    """Every measured step with the command of a user who knows nothing of its host; columns as in `read_steps`.

    Raises:
        InputError, TableError: a folder is not a campaign, or its table is damaged.
    """
    rows = []
    for gpu in gpus:
        for row in read_step_times(measurements_dir() / gpu).to_dict("records"):
            options = dict(OPTION_PATTERN.findall(str(row["variant"])))
            words = [f"gpu={gpu}", f"model={row['model']}", f"batch_size={row['batch_size']}"]
            words += [f"model.{name}={value}" for name, value in options.items()]
            tables = json.loads(row["config"])["config"].get("rows")
            if isinstance(tables, list) and tables != list(ask(words).workload["rows"]):
                words += [f"model.rows=[{','.join(map(str, tables))}]"]  # as many as the GPU held
            precision = options.pop("dtype", "fp32")
            which = [f"{name} {value}" for name, value in options.items()]
            rows.append(
                {
                    "gpu": gpu,
                    "seen": True,
                    "step": ", ".join([f"{row['model']}, train", *which]),
                    "precision": precision,
                    "batch_size": int(row["batch_size"]),
                    "measured_us": float(row["step_us"]),
                    "command": " ".join(["steptime predict", *words]),
                }
            )
    return pd.DataFrame(rows).sort_values(["gpu", "step", "precision", "batch_size"])


def collect(flows: Sequence[Flow]) -> pd.DataFrame:
    """Parts of every measured point of some grids: `parts.COLUMNS` with model, variant and batch_size.

    Points with other sizes than the measured ones (a trial, tables reduced to fit the memory) are left out.
    """
    found = []
    for flow in flows:
        for point in flow.points:
            if (
                measured_step(
                    flow.campaign(wildcards_of(point))[0], point.step_name, point.section("model")
                )
                is None
            ):
                continue
            table = read_any([f"{flow.folder(point)}/parts.parquet"])
            found.append(
                table.assign(
                    model=point.model, variant=point.model_variant, batch_size=point.batch_size
                )
            )
    columns = [*parts.COLUMNS, "model", "variant", "batch_size"]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=columns)


def block(
    gpu: str,
    found: pd.DataFrame,
    kernels: pd.DataFrame,
    facts: Mapping[str, object],
    warnings: Sequence[str] = (),
) -> str:
    """The tables of one GPU as Markdown.

    Args:
        gpu: its name.
        found: `collect`'s rows of this GPU.
        kernels: `kernel_errors` of its models.
        facts: device facts of the campaign's manifest.
        warnings: the campaign's warnings about the machine.
    """
    software = ", ".join(
        f"{name} {facts[key]}"
        for name, key in (("torch", "torch"), ("CUDA", "cuda"), ("cuDNN", "cudnn"))
        if facts.get(key)
    )
    lines = [
        f"## Measured steps: {gpu}",
        "",
        (
            f"Source: `measurements/{gpu}/` ({software}), PyTorch's default precision (products in"
            " fp32; convolutions and RNNs in TF32 from Ampere on), unprofiled steps in a loop"
            " without waits. `make measured` writes this."
        ),
        "",
        COLUMNS,
        "",
        _steps(found),
    ]
    if warnings:
        told = "; ".join(warnings)
        lines[4:4] = [f"The campaign warned: {told}{'' if told.endswith('?') else '.'}", ""]
    if len(kernels):
        rows = [
            [
                FAMILY_TITLES.get(row["family"], row["family"]),
                _percent(row["gmae"]),
                _tested_on(row),
            ]
            for row in kernels.to_dict("records")
        ]
        lines += [
            "",
            (
                "Kernel models: GMAE on shapes that they were not trained on, over samples of all"
                " precisions. Families with few samples are tested by cross-validation, which tests"
                " each sample:"
            ),
            "",
            markdown(["family", "GMAE (%)", "tested on"], rows),
        ]
    return "\n".join(lines)


def _tested_on(row: Mapping[Any, Any]) -> str:
    """Number of samples that a family's error covers: all, because each was held out once."""
    count = row.get("samples")
    return "" if count is None or pd.isna(count) else str(int(count))


def _steps(part_rows: pd.DataFrame) -> str:
    head = ["model", "batch", "active (ms)", "step (ms)"]
    head += [f"{name}: predicted (ms)" for _, name in PREDICTED] + [
        f"{name}: error (%)" for _, name in SHOWN_PARTS
    ]
    rows = []
    for (model, variant, batch), of_step in part_rows.groupby(
        ["model", "variant", "batch_size"], sort=True
    ):
        of = {
            str(r["part"]): (float(r["predicted_us"]), float(r["measured_us"]))
            for r in of_step.to_dict("records")
        }
        name = model if variant == "default" else f"{model} {variant}"
        step = next(
            (
                of[part][1]
                for part in (parts.OWN_OVERHEADS, parts.SHARED_OVERHEADS, parts.KERNEL_SUM)
                if part in of
            ),
            None,
        )
        active = of[parts.ACTIVE][1] if parts.ACTIVE in of else None
        measured = ["" if us is None else f"{us / 1e3:,.2f}" for us in (active, step)]
        predicted = [f"{of[part][0] / 1e3:,.2f}" if part in of else "" for part, _ in PREDICTED]
        errors = [
            f"{100 * (of[part][0] / of[part][1] - 1):+.1f}" if part in of else ""
            for part, _ in SHOWN_PARTS
        ]
        rows.append([str(name), f"{batch:,}", *measured, *predicted, *errors])
    return markdown(head, [*rows, *_means(part_rows)])


def _means(part_rows: pd.DataFrame) -> list[list[str]]:
    """The GMAE and the mean absolute error of each part over all steps that have it.

    If only some steps were traced, further rows cover the steps that have every part, so that parts can be compared.
    """
    step = ["model", "variant", "batch_size"]
    whole = part_rows.groupby(step)["part"].transform("nunique") == part_rows["part"].nunique()
    chosen = {"all steps": part_rows} | (
        {"steps with all parts": part_rows[whole]} if whole.any() and not whole.all() else {}
    )
    lines = []
    for name, rows in chosen.items():
        for title, error in (("GMAE", gmae), ("mean absolute error", mape)):
            means = []
            for part, _ in SHOWN_PARTS:
                of_part = rows[rows["part"] == part]
                times = (of_part[key].to_numpy(float) for key in ("predicted_us", "measured_us"))
                means.append(f"{_percent(error(*times))} ({len(of_part)})" if len(of_part) else "")
            lines.append([f"{title} (%), {name}", "", "", "", "", "", "", *means])
    return lines


def _percent(fraction: Any) -> str:
    return "" if pd.isna(fraction) else f"{100 * float(fraction):.2f}"


def warnings_of(told: Mapping[str, Any]) -> list[str]:
    """Warnings of a campaign's runs, without duplicates: a shared or throttled device gives invalid measurements."""
    every = [
        text
        for run in told.get("runs") or []
        for text in (run.get("preflight") or {}).get("warnings") or []
    ]
    return distinct(every)


def run(wanted: Sequence[Grid], results: str) -> Iterator[Flow]:
    """Run Snakemake for each grid up to its accuracy tables.

    Raises:
        SteptimeError: a grid did not finish; Snakemake has printed the reason.
    """
    for grid in wanted:
        config = grid.config(results)
        print(
            f"steptime: {grid.gpu} {', '.join(grid.models)} at {', '.join(map(str, grid.batches))}",
            flush=True,
        )
        if run_snakemake("accuracy", config) != 0:
            raise SteptimeError(
                f"{', '.join(grid.models)} on {grid.gpu} did not finish; see the lines above"
            )
        yield Flow.from_config(config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: writes the tables of every available campaign, or of the named ones, into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "gpus", nargs="*", help="names of folders under measurements/ (default: all)"
    )
    parser.add_argument("--results", default="results")
    parser.add_argument(
        "--root",
        type=Path,
        default=project_dir(),
        help="checkout whose docs/accuracy.md is rewritten",
    )
    options = parser.parse_args(arguments)
    try:
        gpus = options.gpus or campaign_gpus()
        if not gpus:
            raise InputError(f"{measurements_dir()}: has no campaign; see docs/measure_your_gpu.md")
        blocks = []
        for gpu in gpus:
            folder = measurements_dir() / gpu
            manifest = provenance(folder)
            device = manifest["device"] if isinstance(manifest["device"], dict) else {}
            if device.get("tiny"):
                raise InputError(
                    f"{folder}: a trial (--tiny) has no step at the published sizes; run the"
                    " campaign without --tiny"
                )
            flows = list(run(grids(gpu, folder), options.results))
            part_rows = collect(flows)
            if part_rows.empty:
                raise InputError(
                    f"{folder}: no step of a known model in the default precision; measure with"
                    " --parts steps"
                )
            models = kernel_errors(with_gpus(fitted_models(flows[0])))
            blocks.append(block(gpu, part_rows, models, device, warnings_of(manifest)))
        rewrite(options.root / PAGE, {MARKER: "\n\n".join(blocks)})
    except SteptimeError as error:
        print(f"steptime: {error}", file=sys.stderr)
        return error.exit_code
    print(options.root / PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
