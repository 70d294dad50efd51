"""Predicted training steps against those that Lin et al. (HiPC 2022) measured on V100, TITAN Xp and P100.

    python benchmarks/steps/lin2022.py [DATASETS_DIR] [--write docs/accuracy.md] [--draw docs/images]

The files and where they come from: `evaluation/published/published_lin2022.py`; the predicted loop:
`evaluation/checks/lin2022_steps.py`. The paper's error of each DLRM step is in its notebook
(`evaluation/published/published_busy.py`). Without that file, `--write` keeps those that the page holds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from evaluation.checks.lin2022_steps import predicted_cnn, predicted_dlrm
from evaluation.pages.lin2022_tables import cnn_summary, dlrm_summary, table
from evaluation.pages.markdown import block, rewrite, table_rows
from evaluation.pages.pictures import published_networks
from evaluation.published.published_busy import FILE as NOTEBOOK
from evaluation.published.published_lin2022 import KEYS
from pipeline.errors import InputError, SteptimeError
from pipeline.paths import datasets_dir
from pipeline.show.figures.layout import save


def kept_errors(page: str, rows: pd.DataFrame) -> list[float]:
    """The paper's errors of the steps, as the page has them.

    Raises:
        InputError: the page lacks them.
    """
    try:
        kept = {(row["GPU"], row["model"], row["batch"]): float(row["Lin et al. %"]) / 100
                for row in table_rows(block(page, "lin2022 dlrm steps"))}  # fmt: skip
        return [kept[gpu, model, str(batch)] for gpu, model, batch in rows[list(KEYS)].itertuples(index=False)]
    except KeyError as error:
        raise InputError(f"the page lacks {error}, and {NOTEBOOK} is not at hand") from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--write", type=Path, help="document whose marked sections take the tables")
    parser.add_argument("--draw", type=Path, help="folder for networks.png")
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    try:
        dlrm, cnn = predicted_dlrm(args.datasets), predicted_cnn(args.datasets)
        if args.write and "published_error" not in dlrm:
            dlrm = dlrm.assign(published_error=kept_errors(args.write.read_text(encoding="utf-8"), dlrm))
        blocks = {"lin2022 dlrm": dlrm_summary(dlrm), "lin2022 cnn": cnn_summary(cnn), "lin2022 dlrm steps": table(dlrm),
                  "lin2022 cnn steps": table(cnn)}  # fmt: skip
        print("\n\n".join(blocks.values()))
        if args.draw:
            save(published_networks(cnn), args.draw, "networks", kinds=("png",))
        if args.write:
            rewrite(args.write, blocks)
    except SteptimeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
