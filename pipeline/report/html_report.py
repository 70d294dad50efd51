"""Writes Snakemake's report as one HTML file that opens offline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import SteptimeError
from pipeline.paths import project_dir
from pipeline.schemas import atomic_path


def write_report(snakefile: str, config: Mapping[str, Any], targets: Sequence[str], page: str | Path) -> None:
    """Run `snakemake --report` on finished targets, while another Snakemake process waits for it.

    Args:
        snakefile: the workflow.
        config: its `--config` values.
        targets: files or rules that the report covers; their files must exist.
        page: the HTML file to write.

    Raises:
        SteptimeError: Snakemake could not write the report; the message says why.
    """
    command = [sys.executable, "-m", "snakemake", "--snakefile", snakefile, "--nolock", "--cores", "1", *targets,
               "--report", str(page), "--report-stylesheet",
               str(project_dir() / "workflow/report/style.css")]  # fmt: skip
    if config:
        command += ["--config", *(f"{key}={_text(value)}" for key, value in config.items())]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0 or not Path(page).is_file():
        lines = [line for line in (run.stderr or run.stdout).splitlines() if line.strip()] or ["no output"]
        raise SteptimeError(f"{page}: Snakemake could not write its report: {lines[-1].strip()}")

    _add_script(Path(page))


PHONE = """<script>
// On a narrow screen: begin with the page, not with the menu, and come back to it when a result was chosen.
function narrow() {
  if (typeof app === "undefined" || !app.updater || !document.querySelector("#app nav")) return setTimeout(narrow, 50);
  const whole = app.setView;
  app.setView = (view) => whole(view.content ? { hideNavbar: true, ...view } : view);
  app.setState({ hideNavbar: true });
}
if (window.innerWidth <= 700) narrow();
</script>"""
"""Script that adapts Snakemake's page to a narrow screen."""


def _add_script(page: Path) -> None:
    head, end, rest = page.read_text(encoding="utf-8").rpartition("</body>")
    if end:
        with atomic_path(page) as part:
            part.write_text(f"{head}{PHONE}\n{end}{rest}", encoding="utf-8")


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
