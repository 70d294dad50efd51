"""Write the error tables of docs/transfer.md and docs/notes/transfer.md from `evaluation.training.build_models --errors`.

    python benchmarks/transfer/tables.py --errors errors.csv... [--models surfer.csv] --doc DOC.md...

Each table replaces the text between its markers, in the document that has them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from evaluation.checks.method_names import TRACKER_METHOD
from evaluation.pages.markdown import markdown, rewrite
from evaluation.training.left_out_gpu import PROBES
from pipeline.paths import transfer_dir
from pipeline.readable import distinct
from pipeline.transfer.utilisation import UtilisationModel

BARS = {
    "gemm": 20,
    "bmm": 20,
    "conv2d_forward": 15,
    "elementwise": 8,
    "softmax": 12,
    "layer_norm": 12,
}
"""Target MAPE of `auto` in %, set by this project."""

ORDER = ["auto", "auto, 10 probes", "mlp", "wave", "wave, exact", "roofline"]
"""Methods in the columns of the overview. docs/accuracy.md also has the ratio of bandwidths."""


def overview(errors: pd.DataFrame) -> str:
    """Mean MAPE over ordered pairs by family and method."""
    table = errors.groupby(["family", "method"])["mape"].mean().unstack().reindex(index=list(BARS))
    table = table[[name for name in ORDER if name in table.columns]]
    table.insert(0, "bar", pd.Series(BARS))
    return percents(table, "family")


def matrices(errors: pd.DataFrame) -> str:
    """One matrix of `auto` per family: origin by destination."""
    texts = []
    for family in BARS:
        part = errors[(errors["family"] == family) & (errors["method"] == "auto")]
        if len(part):
            matrix = part.pivot(index="origin", columns="destination", values="mape")
            table = percents(matrix, "from, to")
            texts.append(f"`{family}`\n\n{table}")
    return "\n\n".join(texts)


def models(results: pd.DataFrame) -> str:
    """Mean and worst absolute error of whole models by destination and method."""
    error = _absolute(results)
    table = error.groupby(["method", "destination"])["error"].mean().unstack()
    table["all"] = error.groupby("method")["error"].mean()
    known = ~error[["origin", "destination"]].isin(["T4"]).any(axis=1)
    table["all but T4"] = error[known].groupby("method")["error"].mean()
    table["worst"] = error.groupby("method")["error"].max()
    return percents(table, "method")


def model_pairs(results: pd.DataFrame) -> str:
    """Mean absolute error of whole models by origin and destination, a matrix per method."""
    error, texts = _absolute(results), []
    for method in (TRACKER_METHOD, "utilisation", "wave"):
        own = error[error["method"] == method]
        matrix = own.pivot_table(index="origin", columns="destination", values="error")
        texts.append(f"`{method}`, by pair:\n\n{percents(matrix, 'from, to')}")
    return "\n\n".join(texts)


def _absolute(results: pd.DataFrame) -> pd.DataFrame:
    return results.assign(error=100 * results["error"].abs())


def left_out(folder: Path) -> str:
    """Errors stored with the shipped models: each GPU is predicted from its spec, by models trained without it."""
    rows = {}
    for family in BARS:
        path = folder / f"{family}.safetensors"
        for gpu, facts in UtilisationModel.load(path).provenance.get("left_out", {}).items():
            rows[family, gpu] = {key: facts.get(key) for key in ("mape", "gmae", "coverage")}
    table = pd.DataFrame(rows).T.astype(float)
    table["coverage"] *= 100.0
    mean = table.groupby(level=0, sort=False).mean()
    for key in ("gmae", "coverage"):
        mean[f"{key}, worst"] = table.groupby(level=0, sort=False)[key].agg(
            "max" if key == "gmae" else "min"
        )
    return percents(mean[["mape", "gmae", "gmae, worst", "coverage", "coverage, worst"]], "family")


def probes(folder: Path) -> str:
    """MAPE of left-out GPUs by family and number of probes, and coverage of the interval with ten probes."""
    mean = _probed(folder).groupby(level=["family", "probes"], sort=False).mean()
    table = mean["mape"].unstack().reindex(list(BARS)).sort_index(axis=1)
    table.columns = pd.Index([f"{count} probes" if count else "none" for count in table.columns])
    table["coverage, 10 probes"] = mean["coverage"].xs(PROBES, level="probes")
    return percents(table, "family")


def probes_in_full(folder: Path) -> str:
    """All errors of left-out GPUs by number of probes: for each family, and for products on each GPU."""
    table, texts = _probed(folder), []
    for part, by, corner in (
        (table, "family", "family, probes"),
        (table.loc[["gemm"]], "gpu", "`gemm`, probes"),
    ):
        mean = part.groupby(level=[by, "probes"], sort=False).mean()
        names = distinct(mean.index.get_level_values(0))
        mean = mean.reindex(
            pd.MultiIndex.from_product([names, sorted(set(mean.index.get_level_values(1)))])
        )
        mean.index = pd.Index([f"{name}, {count}" for name, count in mean.index])
        texts.append(percents(mean[["mape", "gmae", "median", "coverage"]], corner))
    return "\n\n".join(texts)


def _probed(folder: Path) -> pd.DataFrame:
    """Errors of left-out GPUs in %, from the shipped models' metadata, by family, GPU and number of probes."""
    rows = {}
    for family in BARS:
        facts = UtilisationModel.load(folder / f"{family}.safetensors").provenance.get(
            "left_out", {}
        )
        for gpu, found in facts.items():
            for count, errors in found.get("probes", {}).items():
                rows[family, gpu, int(count)] = errors
    table = pd.DataFrame(rows).T.rename_axis(["family", "gpu", "probes"]).astype(float)
    table["coverage"] *= 100.0
    return table


def percents(table: pd.DataFrame, corner: str) -> str:
    """Markdown table with one decimal."""
    rows = (
        [str(name), *("" if pd.isna(value) else f"{value:.1f}" for value in row)]
        for name, row in table.iterrows()
    )
    return markdown([corner, *map(str, table.columns)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--errors", type=Path, action="append", required=True)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--doc", type=Path, action="append", required=True, help="may be repeated")
    options = parser.parse_args()
    errors = pd.concat([pd.read_csv(path) for path in options.errors], ignore_index=True)
    shipped = transfer_dir()
    blocks = {
        "overview": overview(errors),
        "matrices": matrices(errors),
        "left out": left_out(shipped),
        "probes": probes(shipped),
        "probes in full": probes_in_full(shipped),
    }
    if options.models:
        results = pd.read_csv(options.models)
        blocks |= {"models": models(results), "model pairs": model_pairs(results)}
    texts = {path: path.read_text(encoding="utf-8") for path in options.doc}
    if lost := [
        name for name in blocks if not any(f"<!-- {name} -->" in text for text in texts.values())
    ]:
        parser.error(
            f"none of the documents has the markers <!-- {lost[0]} --> and <!-- /{lost[0]} -->"
        )
    for path, text in texts.items():
        rewrite(path, {name: block for name, block in blocks.items() if f"<!-- {name} -->" in text})


if __name__ == "__main__":
    main()
