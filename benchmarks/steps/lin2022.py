"""Predicted training steps against those that Lin et al. (HiPC 2022) measured on V100, TITAN Xp and P100.

    python benchmarks/steps/lin2022.py [--write docs/accuracy.md] [--draw docs/images]

The published numbers and where they come from: `evaluation/published/facts/`; the predicted loop:
`evaluation/checks/lin2022_steps.py`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evaluation.checks.lin2022_steps import OTHER_LOOPS, predicted_cnn, predicted_dlrm
from evaluation.figures.paper_figures import published_networks
from evaluation.pages.lin2022_tables import busy_tables, cnn_summary, dlrm_summary, table
from evaluation.pages.markdown import rewrite
from pipeline.show.figures.board import save


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, help="document whose marked sections take the tables")
    parser.add_argument("--draw", type=Path, help="folder for networks.png")
    args = parser.parse_args()
    dlrm, cnn = predicted_dlrm(), predicted_cnn()
    others = {name: predicted_dlrm(loop=loop) for name, loop in OTHER_LOOPS.items()}
    blocks = {
        "lin2022 dlrm": dlrm_summary(dlrm),
        "lin2022 cnn": cnn_summary(cnn),
        "lin2022 dlrm steps": table(dlrm),
        "lin2022 cnn steps": table(cnn),
        "busy": busy_tables(dlrm, others),
    }
    print("\n\n".join(blocks.values()))
    if args.draw:
        save(published_networks(cnn), args.draw, "networks", kinds=("png",))
    if args.write:
        rewrite(args.write, blocks)


if __name__ == "__main__":
    main()
