"""Reader of epochs by power limit: Zeus's traces (`zeus` in `sources.yaml`), six networks on a V100 and a P100.

Which runs count is decided on measured rows alone, before any prediction (`left_out`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.published.published_pages import reading

LIMITS = Path("power") / "zeus_limits.parquet"

RUN = ["gpu", "network", "dataset", "batch_size", "optimizer"]
"""What a run is; its rows differ in the power limit."""

HOST_GROWTH = 1.4
"""A step that takes less than so many times as long with twice the batch waits for the host."""


def read_limits(datasets: str | Path) -> pd.DataFrame:
    """Epochs under power limits: columns `RUN`, `power_limit_w`, `epoch_s`, `watts`, `slow`, `is_top`, `reason`.

    `slow` is the time over that under the highest limit, `reason` why a run is left out: `host`, `loader` or empty.

    Raises:
        TableError: the table is missing or has another form.
    """
    with reading(file := Path(datasets) / LIMITS):
        table = pd.read_parquet(file)
        table["gpu"] = table["gpu"].str.extract(r"^(V100|P100)")[0]
        columns = {
            "epoch_s": ("time_per_epoch_s", "median"),
            "watts": ("average_power_w", "median"),
        }
        rows = table.groupby([*RUN, "power_limit_w"], as_index=False).agg(**columns)
    most = rows.groupby("gpu")["power_limit_w"].transform("max")
    top = rows[rows["power_limit_w"] == most].set_index(RUN).sort_values("batch_size")
    highest_s = top["epoch_s"].reindex(pd.MultiIndex.from_frame(rows[RUN])).to_numpy()
    rows = rows.assign(slow=rows["epoch_s"] / highest_s, is_top=rows["power_limit_w"] == most)
    rows = rows.dropna(subset=["slow"]).merge(left_out(top.reset_index()), on=RUN)
    return rows.reset_index(drop=True)


def left_out(top: pd.DataFrame) -> pd.DataFrame:
    """Why each run is left out, from the rows under the highest limit, ascending by batch size: columns `RUN` and `reason`.

    - host: NCF, and ShuffleNet as long as a doubled batch takes less than `HOST_GROWTH` times as long;
    - loader: batches beyond the fastest with over 2 % longer epochs at over 5 % less power.
    """
    found = []
    for _, runs in top.groupby(["gpu", "network", "dataset", "optimizer"]):
        size, epoch_s, watts = (
            runs[key].to_numpy(float) for key in ("batch_size", "epoch_s", "watts")
        )
        step_s, best = epoch_s * size, int(np.argmin(epoch_s))
        doubled = (step_s[1:] / step_s[:-1]) ** (1 / np.log2(size[1:] / size[:-1]))
        grows = np.r_[False, doubled >= HOST_GROWTH]
        network = runs["network"].to_numpy(object)
        host = (network == "ncf") | ((network == "shufflenetv2") & ~grows)
        slower = (epoch_s > 1.02 * epoch_s[best]) & (watts < 0.95 * watts[best])
        loader = slower & (np.arange(len(runs)) > best)
        found.append(runs.assign(reason=np.where(host, "host", np.where(loader, "loader", ""))))
    return pd.concat(found)[[*RUN, "reason"]]
