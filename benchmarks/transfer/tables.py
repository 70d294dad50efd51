"""Write the error tables of docs/transfer.md from the CSV files of `python -m pipeline.transfer.build --errors`.

python benchmarks/transfer/tables.py --errors errors.csv... [--models surfer.csv] [--peer deepview.csv] --doc DOC.md
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pandas as pd

from pipeline.paths import packs_dir
from pipeline.transfer.paper import TRACKED
from pipeline.transfer.utilisation import UtilisationModel

BARS = {"gemm": 20, "bmm": 20, "conv2d_forward": 15, "elementwise": 8, "softmax": 12, "layer_norm": 12}
"""MAPE that this project asks of `auto`."""

ORDER = ["auto", "auto, 10 probes", "mlp", "wave", "wave, exact", "roofline", "bandwidth ratio"]


def overview(errors: pd.DataFrame) -> str:
    """Mean MAPE over ordered pairs by family and method."""
    table = errors.groupby(["family", "method"])["mape"].mean().unstack().reindex(index=list(BARS))
    table = table[[name for name in ORDER if name in table.columns]]
    table.insert(0, "bar", pd.Series(BARS))
    return markdown(table, "family")


def matrices(errors: pd.DataFrame) -> str:
    """One matrix of `auto` per family: origin by destination."""
    texts = []
    for family in BARS:
        part = errors[(errors["family"] == family) & (errors["method"] == "auto")]
        if len(part):
            matrix = part.pivot(index="origin", columns="destination", values="mape")
            table = markdown(matrix, "from, to")
            texts.append(f"`{family}`\n\n{table}")
    return "\n\n".join(texts)


def models(results: pd.DataFrame) -> str:
    """Mean and worst absolute error of whole models by destination and method."""
    error = results.assign(error=100 * results["error"].abs())
    table = error.groupby(["method", "destination"])["error"].mean().unstack()
    table["all"] = error.groupby("method")["error"].mean()
    known = ~error[["origin", "destination"]].isin(["T4"]).any(axis=1)
    table["all but T4"] = error[known].groupby("method")["error"].mean()
    table["worst"] = error.groupby("method")["error"].max()
    texts = [markdown(table, "method")]
    for method in (TRACKED, "utilisation", "wave"):
        own = error[error["method"] == method]
        matrix = own.pivot_table(index="origin", columns="destination", values="error")
        texts.append(f"`{method}`, by pair:\n\n{markdown(matrix, 'from, to')}")
    return "\n\n".join(texts)


def peer(results: pd.DataFrame) -> str:
    """Mean MAPE by family and method beside the maintained Surfer."""
    return markdown(results.groupby(["family", "method"])["mape"].mean().unstack(), "family")


def left_out(folder: Path) -> str:
    """What the shipped models say of themselves: each GPU predicted by the models trained without it, from its spec."""
    rows = {}
    for family in BARS:
        path = folder / f"{family}.safetensors"
        for gpu, facts in UtilisationModel.load(path).provenance.get("left_out", {}).items():
            rows[family, gpu] = {key: facts.get(key) for key in ("mape", "gmae", "coverage")}
    table = pd.DataFrame(rows).T.astype(float)
    table["coverage"] *= 100.0
    mean = table.groupby(level=0, sort=False).mean()
    for key in ("gmae", "coverage"):
        mean[f"{key}, worst"] = table.groupby(level=0, sort=False)[key].agg("max" if key == "gmae" else "min")
    return markdown(mean[["mape", "gmae", "gmae, worst", "coverage", "coverage, worst"]], "family")


def probes(folder: Path) -> str:
    """Errors of left-out GPUs by number of probes, from the shipped models' metadata: by family, and products by GPU."""
    rows = {}
    for family in BARS:
        facts = UtilisationModel.load(folder / f"{family}.safetensors").provenance.get("left_out", {})
        for gpu, found in facts.items():
            for count, errors in found.get("probes", {}).items():
                rows[family, gpu, int(count)] = errors
    table = pd.DataFrame(rows).T.rename_axis(["family", "gpu", "probes"]).astype(float)
    table["coverage"] *= 100.0
    texts = []
    for part, by, corner in ((table, "family", "family, probes"), (table.loc[["gemm"]], "gpu", "`gemm`, probes")):
        mean = part.groupby(level=[by, "probes"], sort=False).mean()
        names = list(dict.fromkeys(mean.index.get_level_values(0)))
        mean = mean.reindex(pd.MultiIndex.from_product([names, sorted(set(mean.index.get_level_values(1)))]))
        mean.index = pd.Index([f"{name}, {count}" for name, count in mean.index])
        texts.append(markdown(mean[["mape", "gmae", "median", "coverage"]], corner))
    return "\n\n".join(texts)


def markdown(table: pd.DataFrame, corner: str) -> str:
    """A table with one decimal."""
    lines = [f"| {corner} | " + " | ".join(str(c) for c in table.columns) + " |"]
    lines.append("|---" * (len(table.columns) + 1) + "|")
    for name, row in table.iterrows():
        cells = ["" if pd.isna(value) else f"{value:.1f}" for value in row]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replace_block(text: str, name: str, block: str) -> str:
    """Put a block between its two comment markers."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}\n{block}\n\n{found[2]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--errors", type=Path, action="append", required=True)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--peer", type=Path, help="CSV of deepview.py")
    parser.add_argument("--doc", type=Path, required=True)
    options = parser.parse_args()
    errors = pd.concat([pd.read_csv(path) for path in options.errors], ignore_index=True)
    text = options.doc.read_text(encoding="utf-8")
    text = replace_block(text, "overview", overview(errors))
    text = replace_block(text, "matrices", matrices(errors))
    text = replace_block(text, "left out", left_out(packs_dir() / "transfer"))
    text = replace_block(text, "probes", probes(packs_dir() / "transfer"))
    if options.models:
        text = replace_block(text, "models", models(pd.read_csv(options.models)))
    if options.peer:
        text = replace_block(text, "peer", peer(pd.read_csv(options.peer)))
    options.doc.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
