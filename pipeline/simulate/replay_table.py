"""A table of a replay for the terminal: prediction, measurement and the baselines for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

PATH_PARTS = {
    "host": ("host_us",),
    "device": ("device_us",),
    "work queued before the step": ("queued_us",),
    "latency, gaps, returns of waits": ("latency_us", "gap_us", "return_us"),
}
"""Rows of the critical path, with the keys of `ReplayResult.critical_path` that each adds up."""


BOX_FROM = 60
"""Width of a terminal, in characters, from which the table has lines between its cells."""


def table(facts: dict[str, Any], width: int = BOX_FROM) -> Table:
    """Rich table of `ReplayResult.as_dict()`, for lines of `width` characters."""
    from rich import box
    from rich.table import Table

    base = facts["baselines"]
    count = facts["iterations"]
    caption = f"{count} iteration{'' if count == 1 else 's'} evaluated, split: {facts['split']}"
    notes = "\n".join([caption, *facts["notes"]])
    out = Table(
        title=f"{facts['trace']} on {facts['device']}",
        caption=notes,
        caption_justify="left",
        box=box.HEAVY_HEAD if width >= BOX_FROM else None,
        padding=(0, 1 if width >= BOX_FROM else 0, 0, 1),
    )
    out.add_column("span of an iteration", overflow="fold")
    for name in ("µs", "error", "mean absolute error"):
        out.add_column(name, justify="right", overflow="fold", min_width=max(len(word) for word in name.split()))

    def row(label: str, value: float, error: float | None, absolute: float | None) -> None:
        size = "" if absolute is None else f"{absolute:.2%}"
        out.add_row(label, f"{value:,.1f}", "" if error is None else f"{round(error, 4) + 0.0:+.2%}", size)

    row("measured", facts["measured_us"], None, None)
    row("predicted", facts["predicted_us"], facts["error"], facts["mean_absolute_error"])
    row("baseline: kernel sum", base["kernel_sum_us"], base["kernel_sum_error"], base["kernel_sum_mean_absolute_error"])
    row("baseline: mean of training iterations", base["train_mean_us"], base["train_mean_error"],
        base["train_mean_mean_absolute_error"])  # fmt: skip
    out.add_section()
    row("work queued before the step", facts["queued_us"], None, None)
    row("step (span without that work), measured", facts["step_measured_us"], None, None)
    row("step, predicted", facts["step_predicted_us"], facts["step_error"], None)
    if facts["time_per_batch_us"] is not None:
        row("time per batch (end to end), measured", facts["time_per_batch_us"], None, None)
    out.add_section()
    measured, predicted = facts["active_measured_us"], facts["active_predicted_us"]
    row("device active, measured", measured, None, None)
    row("device active, predicted", predicted, predicted / measured - 1.0 if measured else None, None)
    out.add_section()
    path = facts["critical_path"]
    row(f"critical path ({path['bound']}-bound), the predicted span", facts["predicted_us"], None, None)
    for label, names in PATH_PARTS.items():
        row(f"  {label}", sum(path[name] for name in names), None, None)
    out.add_section()
    for kind, values in facts["overheads"].items():
        plural = "" if values["count"] == 1 else "s"
        out.add_row(f"{kind}: mean of {values['count']} observation{plural}", f"{values['mean_us']:,.2f}", "", "")
    return out
