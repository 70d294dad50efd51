"""No text of any figure overlaps another text or leaves its canvas, on a screen and on a phone, whatever grid is drawn."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from pipeline.kernels.families import FAMILIES
from pipeline.prediction import Prediction
from pipeline.report.figures.evidence_shares import result
from pipeline.report.figures.figure_data import REPLAY_METHODS, TRACKER_METHOD
from pipeline.report.figures.gallery import GALLERY, Artifacts, Entry, draw
from pipeline.report.figures.kernel_errors import error_histogram, predicted_against_measured
from pipeline.report.figures.layout import NARROW, WIDE, Page, board, finish, headline, label_rows, value_label, wrapped
from pipeline.report.figures.measured_errors import published_networks
from pipeline.report.figures.overhead_plots import overhead_types
from pipeline.report.figures.published_errors import NETWORK_METHODS

LONG_GPUS = tuple(f"A100-SXM4-{size}GB-overclocked" for size in (40, 80)) + tuple(
    f"GPU-{number}" for number in range(12)
)
LONG_MODEL = "dlrm_default embedding=joint_sparse optimizer.foreach=false read_loss=before_backward"
TOUCH = 1.0
"""Overlap, in pixels, that a reader does not see."""


def shown_texts(figure: Figure) -> Iterator[Text]:
    """All texts that are drawn; an axis keeps texts of ticks outside its ends, which are not."""
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()
    for axes in figure.axes:
        yield from (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts)  # type: ignore[attr-defined]
        if axes.get_legend() is not None:
            yield from axes.get_legend().get_texts()
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            yield axis.get_offset_text()
            yield from (tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high)


def problems(figure: Figure) -> list[str]:
    """Texts that leave the canvas, and pairs of texts that overlap."""
    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    boxes = [
        (text.get_text(), text.get_window_extent())
        for text in shown_texts(figure)
        if text.get_visible() and text.get_text().strip()
    ]
    found = [f"leaves the canvas: {text!r}" for text, box in boxes
             if min(box.x0, box.y0) < -TOUCH or box.x1 > width + TOUCH or box.y1 > height + TOUCH]  # fmt: skip
    for (one, a), (two, b) in itertools.combinations(boxes, 2):
        if min(a.x1, b.x1) - max(a.x0, b.x0) > TOUCH and min(a.y1, b.y1) - max(a.y0, b.y0) > TOUCH:
            found.append(f"overlap: {one!r} and {two!r}")
    return found


def summary(
    gpus: tuple[str, ...], models: tuple[str, ...], batches: tuple[int, ...], measured: bool = False
) -> pd.DataFrame:
    """Predictions of a grid: steps from 0.1 ms to minutes, host-bound and device-bound ones, some too large for the GPU."""
    rows = []
    random = np.random.default_rng(0)
    for (place, gpu), (size, model), batch in itertools.product(enumerate(gpus), enumerate(models), batches):
        active = 1000.0 * batch * 30.0**size / (1 + place)
        step = max(active, 3300.0) + 37.0
        shares = random.dirichlet(np.ones(14))
        families = {family: float(active * share) for family, share in zip(list(FAMILIES)[size:], shares, strict=False)}
        rows.append(
            Prediction(
                gpu=gpu, model=model, variant="default", batch_size=batch, predicted_us=step, active_us=active, host_us=3300.0,
                p10_us=0.5 * step, p90_us=2.2 * step, memory_bytes=2 << 30, fits=place % 3 != 1 or batch < 512,
                evidence={"pack": 0.6, "transferred": 0.3, "roofline": 0.1}, host_evidence={"transferred": 1.0},
                unmodelled_share=0.01, families_us=families, measured_us=step * (0.6 + 0.3 * place) if measured else None,
                bound="host" if active < 3300.0 else "device", host="the host of public V100 traces",
            ).summary_row()
        )  # fmt: skip
    return pd.concat(rows, ignore_index=True)


GRIDS = {
    "mixed": summary(("V100", "H100"), ("dlrm_default", "resnet50"), (64, 512)),
    "one point": summary(("V100",), ("dlrm_default",), (2048,)),
    "measured": summary(("local",), ("dlrm_small", "inception_v3"), (64, 100_000), measured=True),
    "many GPUs and long names": summary(LONG_GPUS, (LONG_MODEL, "resnet50"), (16, 512), measured=True),
    "many batch sizes": summary(("V100", "T4", "P100"), ("bert_large",), (1, 2, 4, 8, 16, 32, 1024, 65536)),
}
"""Grids that are drawn."""


def found_for(name: str, artifacts: Artifacts) -> Artifacts:
    """Everything that figures need, with names as long as the grid's."""
    grid = GRIDS[name]
    hosts, models = list(dict.fromkeys(grid["gpu"]))[:3], list(dict.fromkeys(grid["model"]))
    seen = artifacts.observations.assign(
        workload=lambda t: t["workload"].map({"one": "v100x8_a_workload_of_many_words_rank0", "two": "b"})
    )
    seen["op"] = (
        "autograd::engine::evaluate_function: " + seen["op"].str.removeprefix("aten::") + "CudnnBatchNormBackward0"
    )
    observations = pd.concat([seen.assign(gpu=host) for host in hosts], ignore_index=True)
    operators = pd.concat([pd.DataFrame({"model": model, "op": seen["op"].unique(), "calls": 3}) for model in models])
    gpus = ["A100-PCIE-40GB", "P100", "P4", "T4", "V100"]
    pairs = pd.DataFrame([(family, one, two, "auto", 3.0 + 7 * place, 1.0, 5)
                          for family in ("gemm", "conv2d_forward", "layer_norm", "softmax")
                          for place, (one, two) in enumerate(itertools.permutations(gpus, 2))],
                         columns=["family", "origin", "destination", "method", "mape", "gmae", "rows"])  # fmt: skip
    moved = pd.DataFrame([(model, one, two, method, 1e5 * (1 + place), 1e5 * (1.1 + place), 0.02 * place)
                          for model in ("bert_large", "gpt2_large", "gpt3_27") for method in (TRACKER_METHOD, "wave")
                          for place, (one, two) in enumerate(itertools.permutations(gpus, 2))],
                         columns=["model", "origin", "destination", "method", "measured_us", "predicted_us", "error"])  # fmt: skip
    models_of = tuple((gpu, folder) for gpu in list(dict.fromkeys(grid["gpu"])) for _, folder in artifacts.models)
    spans = pd.concat([artifacts.replays.assign(trace=trace, method=method)
                       for trace in ("a100x8_dlrm", "a_trace_with_a_very_long_name") for method in REPLAY_METHODS])  # fmt: skip
    return dataclasses.replace(artifacts, summary=grid, observations=observations, operators=operators, transfer=pairs,
                               models_moved=moved, models=models_of, replays=spans)  # fmt: skip


@pytest.mark.parametrize("page", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("grid", GRIDS)
def test_no_text_overlaps_another_or_leaves_the_canvas(artifacts: Artifacts, grid: str, page: Page) -> None:
    found = found_for(grid, artifacts)
    wrong = {}
    for entry in GALLERY:
        if grid != "mixed" and not depends_on_grid(entry):
            continue
        table = entry.table(found)
        if len(table) and (seen := problems(draw(entry, found, table, page))):
            wrong[entry.name] = seen[:5]
    assert wrong == {}


def depends_on_grid(entry: Entry) -> bool:
    """Whether a figure shows another picture for another grid."""
    return entry.category != "Transfer" and entry.name not in {"replays", "whole_models"}


def test_pictures_of_documents_and_of_runs_have_room_for_their_texts(artifacts: Artifacts) -> None:
    random = np.random.default_rng(1)
    measured = random.lognormal(5, 2, 300)
    test = pd.DataFrame(
        {"latency_us": measured, "predicted_us": 1.1 * measured, "op": random.choice(["mm", "linear"], 300)}
    )
    networks = pd.DataFrame([(gpu, model, batch, 0.1, 0.2, 0.15, 0.4) for gpu in ("V100", "TITAN Xp", "P100")
                             for model in ("resnet50", "inception_v3") for batch in (16, 64)],
                            columns=["gpu", "model", "batch_size", "error", *NETWORK_METHODS.values()])  # fmt: skip
    by_name = {entry.name: entry for entry in GALLERY}
    kernels, spans, passes = (by_name[name].table(artifacts) for name in ("kernel_errors", "replays", "whole_models"))
    figures = {
        "scatter": predicted_against_measured(test, "gemm on A100-PCIE-40GB, boosted trees"),
        "histogram": error_histogram(test, "gemm on A100-PCIE-40GB, boosted trees"),
        "overheads": overhead_types(artifacts.observations, "dlrm_default/default/b2048 on A100-PCIE-40GB"),
        "networks": published_networks(networks),
        "result": result(kernels, passes, spans),
    }
    assert {name: problems(figure) for name, figure in figures.items()} == {name: [] for name in figures}


def test_the_check_sees_overlaps_and_texts_outside() -> None:
    figure, (axes,) = board([1.0], WIDE)
    label_rows(axes, ["one", "two"])
    axes.text(0.5, 0.5, "here", transform=axes.transAxes)
    axes.text(0.5, 0.5, "there", transform=axes.transAxes)
    axes.text(2.0, 0.5, "outside", transform=axes.transAxes)
    assert len(problems(finish(figure))) >= 2


def test_an_axis_grows_until_its_values_fit() -> None:
    figure, (axes,) = board([1.0], NARROW)
    axes.barh([0, 1], [10.0, 3.0])
    label_rows(axes, ["a", "b"])
    value_label(axes, 10.0, 0, "10.0 ms and more words")
    finish(figure)
    assert axes.get_xlim()[1] > 15.0
    assert problems(figure) == []


def test_bars_are_equally_thick_whatever_stands_above_them() -> None:
    def height(says: str) -> float:
        figure, (axes,) = board([2.0], WIDE)
        headline(figure, says)
        finish(figure)
        return float(axes.bbox.height)

    assert height("short") == pytest.approx(height("a sentence of many words " * 20), abs=3)


def test_lines_break_after_words_then_after_underscores_then_anywhere() -> None:
    assert wrapped("one two", 0.4, 8.5) == "one\ntwo"
    assert wrapped("embedding_backward", 1.0, 8.5) == "embedding_\nbackward"
    assert "".join(wrapped("x" * 50, 0.5, 8.5).split("\n")) == "x" * 50
