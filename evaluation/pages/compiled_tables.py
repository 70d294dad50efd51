"""Predicts steps that others measured as written and compiled, and compares: `python -m evaluation.pages.compiled_tables --write`.

The blocks of `docs/compiled.md` hold the rows, with what was measured. Predictions and errors are written beside them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.pages.markdown import block, markdown, rewrite, table_rows
from pipeline.answers.engine import Engine
from pipeline.answers.model_sources import AvailableModels
from pipeline.errors import SteptimeError
from pipeline.paths import project_dir
from pipeline.prediction import Prediction
from pipeline.question.question import questions_of

PAGE = Path("docs") / "compiled.md"

NETWORKS, KERNELS = "compiled networks", "compiled kernels"
"""Blocks of the page with rows: inference of timm's networks, and single layers."""

TRANSFORMERS = ("vit", "deit", "flexivit", "pit", "vitamin")
"""Beginnings of names of networks that are mostly attention."""

LAYERS = "evaluation.workloads.compiled_layers:make_step"
"""What makes the step of one layer."""

SEEN = " (seen)"
"""Mark of rows that set a constant of the family of fused kernels."""


def predicted(engine: Engine, gpu: str, model: str, options: Mapping[str, object]) -> Prediction:
    """The answer to one question."""
    (question,) = questions_of(gpu, model, options)
    return engine.predict_one(question).whole()


def network_rows(rows: Sequence[Mapping[str, str]], engine: Engine) -> list[list[str]]:
    """Rows of the table of networks, on an RTX 4090 in fp16 under autocast, with predictions; times in ms.

    Raises:
        SteptimeError: a step cannot be predicted.
    """
    table = []
    for row in rows:
        options = {
            "model.name": row["network"],
            "model.image_size": int(row["image"]),
            "model.mode": "inference",
            "model.dtype": "fp16",
            "model.copies": "none",
            "batch_size": int(row["batch"]),
        }
        us = [
            predicted(engine, "RTX4090", "timm", {**options, "model.compile": on}).predicted_us
            for on in (False, True)
        ]
        measured = [float(row[name]) for name in ("eager ms", "compiled ms")]
        gain, expected = measured[0] / measured[1], us[0] / us[1]
        table.append(
            [
                *(row[name] for name in ("network", "image", "batch", "eager ms", "compiled ms")),
                *(f"{each / 1e3:.1f}" for each in us),
                f"{gain:.2f}",
                f"{expected:.2f}",
                f"{100 * (expected / gain - 1):+.1f}",
            ]
        )
        print(*table[-1], file=sys.stderr, flush=True)
    return table


NETWORK_COLUMNS = (
    "network", "image", "batch", "eager ms", "compiled ms", "predicted eager ms",
    "predicted compiled ms", "speed-up", "predicted speed-up", "error %",
)  # fmt: skip


def layer_rows(rows: Sequence[Mapping[str, str]], engine: Engine) -> list[list[str]]:
    """Rows of the table of layers with the predicted time of a pass, in us."""
    table = []
    for row in rows:
        options = {
            "model.target": LAYERS,
            "+model.options.kind": row["layer"],
            "+model.options.width": int(row["width"]),
            "+model.options.entries": int(row["entries"] or 0),
            "model.copies": "none",
            "model.optimizer": "none",
            "model.compile": True,
            "batch_size": int(row["rows"]),
        }
        calls = predicted(engine, row["GPU"].removesuffix(SEEN), "custom", options).calls
        assert calls is not None
        fused = calls[(calls["family"] == "fused") & (calls["phase"] == row["pass"])]
        us, measured = float(fused["kernel_us"].sum()), float(row["measured us"])
        kept = ("GPU", "layer", "pass", "rows", "width", "entries", "measured us")
        error = 100 * (us / measured - 1)
        table.append([*(row[name] for name in kept), f"{us:.1f}", f"{error:+.0f}"])
        print(*table[-1], file=sys.stderr, flush=True)
    return table


LAYER_COLUMNS = (
    "GPU", "layer", "pass", "rows", "width", "entries", "measured us", "predicted us", "error %",
)  # fmt: skip


def network_summary(table: Sequence[Sequence[str]]) -> str:
    """Sentences about the errors of speed-ups and of compiled times."""
    frame = pd.DataFrame(table, columns=NETWORK_COLUMNS)
    errors = frame["error %"].astype(float).abs()
    attends = frame["network"].str.startswith(TRANSFORMERS)
    times = {
        name: frame[f"predicted {name} ms"].astype(float) / frame[f"{name} ms"].astype(float) - 1
        for name in ("eager", "compiled")
    }
    said = [f"{name} times {100 * each.abs().mean():.1f} %" for name, each in times.items()]
    return (
        f"Mean absolute error of the speed-up over {len(frame)} networks: {errors.mean():.1f} %"
        f" (median {errors.median():.1f} %); of the {attends.sum()} that are mostly attention"
        f" {errors[attends].mean():.1f} %. Of {' and '.join(said)}."
    )


def layer_summary(table: Sequence[Sequence[str]]) -> str:
    """A sentence with the geometric means of the errors of layers, by GPU and pass; rows that set constants apart."""
    frame = pd.DataFrame(table, columns=LAYER_COLUMNS)
    ratios = frame["predicted us"].astype(float) / frame["measured us"].astype(float)
    errors = pd.Series(np.abs(np.log(ratios.to_numpy(float))))
    unseen = ~frame["GPU"].str.endswith(SEEN)
    said = [
        f"{gpu}, {way} {100 * (np.exp(group.mean()) - 1):.0f} % ({len(group)} rows)"
        for (gpu, way), group in errors.groupby([frame["GPU"], frame["pass"]])
    ]
    alone = 100 * (np.exp(errors[unseen].mean()) - 1)
    return f"Geometric mean of the errors: {'; '.join(said)}; all rows not seen {alone:.0f} %."


def main(arguments: Iterable[str] | None = None) -> int:
    """Compare the rows of the page, print the tables and, where asked for, write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", nargs="*", choices=[NETWORKS, KERNELS, []], help="all, if none")
    parser.add_argument("--write", action="store_true", help="replace the tables of the page")
    options = parser.parse_args(None if arguments is None else list(arguments))
    page = project_dir() / PAGE
    text, engine = page.read_text(encoding="utf-8"), Engine(AvailableModels(results=None))
    kinds = {
        NETWORKS: (network_rows, NETWORK_COLUMNS, network_summary),
        KERNELS: (layer_rows, LAYER_COLUMNS, layer_summary),
    }
    try:
        for name in options.blocks or kinds:
            compare, columns, summary = kinds[name]
            table = compare(table_rows(block(text, name)), engine)
            made = f"{markdown(columns, table)}\n\n{summary(table)}"
            print(made)
            if options.write:
                rewrite(page, {name: made})
    except SteptimeError as error:
        print(f"steptime: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
