"""Pictures of README.md and docs/ that need no public data, and the notebook: `make pictures` makes all of them anew.

`docs/images/says.json` holds the texts of each picture: title, names, and numbers beside the marks. A test draws the pictures again
and compares, so that a picture that no longer shows what is predicted is noticed. Pictures of measurements: `make readme` and the
programs under `benchmarks/` (docs/figures.md).
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from evaluation.pages import chromium
from pipeline import compare, predict
from pipeline.answers.engine import engine
from pipeline.paths import project_dir
from pipeline.question.question import ask
from pipeline.show.figures.board import NARROW, WIDE, save
from pipeline.show.figures.gallery import GALLERY, Artifacts, draw
from pipeline.show.figures.pipeline_stages import draw_stages
from pipeline.show.figures.python_plots import draw_step, draw_steps
from pipeline.show.figures.roofline import draw_roofline
from pipeline.show.figures.waterfall import draw_difference
from pipeline.simulate.timeline_page import TEMPLATE, write_timeline
from pipeline.summary_rows import summary_row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAYS = "says.json"
"""File of the texts of all pictures, beside them."""

TIMELINE, TOUR = "timeline.png", "tour.ipynb"


def figures() -> Iterator[tuple[str, Figure]]:
    """The pictures of figures, by the name of their files."""
    answer = predict("V100", "dlrm_default", batch_size=2048)
    yield "answer", draw_step(answer, NARROW)
    yield "roofline", draw_roofline(answer)
    faster = answer.diff(predict("H100", "dlrm_default", batch_size=2048))
    yield "why", draw_difference(replace(faster, calls=(), notes=()), NARROW)
    found = compare("V100,P100,T4", "dlrm_default", batch_size="512,1024,2048").predictions
    ordered = sorted(found, key=lambda p: (p.gpu, p.batch_size))
    grid = Artifacts(pd.concat([summary_row(p) for p in ordered], ignore_index=True))
    entries = {entry.name: entry for entry in GALLERY}
    for file, name in (("steps", "step_times"), ("breakdown", "breakdown")):
        yield file, draw(entries[name], grid, entries[name].table(grid), WIDE)
    shared = {"devices": 8, "model__checkpointing": "selective", "predict__draws": 64}
    axes = ("parallel__tp", "parallel__pp", "parallel__micro_batches")
    layouts = [
        predict("H100", "llama", **shared, **dict(zip(axes, sizes, strict=True)))
        for sizes in ((8, 1, 16), (4, 1, 8), (2, 4, 16), (1, 8, 16))
    ]
    yield "layouts", draw_steps(layouts)
    yield "stages", draw_stages(layouts[2])
    slow, fast = (predict(gpu, "resnet50", batch_size=64) for gpu in ("V100", "H100"))
    difference = slow.diff(fast)
    yield "diff", draw_difference(replace(difference, notes=difference.notes[:1]))


def texts_of(figure: Figure) -> list[str]:
    """What a figure says: its texts, without the numbers of axes."""
    from matplotlib.text import Text

    ticks = {label for axes in figure.axes for label in axes.get_xticklabels()}
    ticks |= {
        label
        for axes in figure.axes
        if axes.get_yscale() == "log"
        for label in axes.get_yticklabels(which="both")
    }
    found = [text for text in figure.findobj(Text) if text not in ticks]
    return [" ".join(text.get_text().split()) for text in found if text.get_text().strip()]


def timeline_digest() -> str:
    """Digest of the page that `timeline.png` shows."""
    return hashlib.sha256(TEMPLATE.read_bytes()).hexdigest()[:16]


def draw_timeline(file: Path) -> bool:
    """Take a picture of a timeline's page with Chromium; False where there is none."""
    if chromium.program() is None:
        return False
    question = ask(["gpu=V100", "model=dlrm_default", "batch_size=512"])
    answer = engine(None).predict_one(question)
    assert answer.timeline is not None
    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as folder:  # Chromium may still write there
        page = Path(folder) / "timeline.html"
        write_timeline(answer.timeline, page, answer.calls, title=question.title)
        with chromium.running(Path(folder) / "browser") as opened:
            opened.size(1280, 740)
            opened.open(page.as_uri())
            opened.picture(file)
    return True


def run_cell(source: str, names: dict[str, Any]) -> tuple[object, str]:
    """The value of a cell's last line, if it is an expression, and what the cell prints."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        value = (
            eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            if isinstance(last, ast.Expr)
            else None
        )
    return value, printed.getvalue()


def stored_forms(value: Any) -> dict[str, str]:
    """The forms of a value that a notebook stores."""
    forms = {"text/plain": re.sub(r" at 0x[0-9a-f]+", "", repr(value))}
    if hasattr(value, "savefig"):
        picture = vars(value).get("_repr_png_")
        with tempfile.TemporaryFile() as stream:
            value.savefig(stream, format="png", dpi=90)
            stream.seek(0)
            content = picture() if picture else stream.read()
        return {
            "image/png": base64.b64encode(content).decode() + "\n",
            "text/plain": forms["text/plain"],
        }
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    return ({"text/html": html} if html else {}) | forms


def execute_tour(file: Path) -> None:
    """Execute the notebook's cells, and write it with their outputs."""
    notebooks: Any = import_module("nbformat")  # has no types
    book, names, count = notebooks.read(file, as_version=4), dict[str, Any](), 0
    for cell in book.cells:
        if cell.cell_type != "code":
            continue
        count += 1
        value, printed = run_cell(cell.source, names)
        outputs = (
            [notebooks.v4.new_output("stream", name="stdout", text=printed)] if printed else []
        )
        if value is not None:
            outputs.append(
                notebooks.v4.new_output(
                    "execute_result", stored_forms(value), execution_count=count
                )
            )
        cell.outputs, cell.execution_count = outputs, count
    notebooks.write(book, file)


def main() -> None:
    """Make all pictures and the notebook anew, and print their names."""
    os.environ |= {"STEPTIME_DATASETS": "none", "MPLBACKEND": "agg"}
    docs = project_dir() / "docs"
    images = docs / "images"
    says: dict[str, Any] = (
        json.loads((images / SAYS).read_text()) if (images / SAYS).is_file() else {}
    )
    for name, figure in figures():
        save(figure, images, name, kinds=("svg",))
        says[f"{name}.svg"] = texts_of(figure)
        print(images / f"{name}.svg")
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / TIMELINE
        if draw_timeline(picture):
            shutil.copy(picture, images / TIMELINE)
            says[TIMELINE] = timeline_digest()
            print(images / TIMELINE)
        else:
            print(f"{TIMELINE}: left as it is, because this machine has no Chromium")
    execute_tour(docs / TOUR)
    print(docs / TOUR)
    (images / SAYS).write_text(
        json.dumps(says, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
