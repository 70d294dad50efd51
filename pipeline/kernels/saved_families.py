"""Saved families: one folder each, with `family.json` saying what it is and portable model files beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.errors import PackError
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.bandwidth import BandwidthCurve
from pipeline.kernels.estimate import Floor
from pipeline.kernels.families import FAMILIES
from pipeline.schemas import atomic_path

DESCRIPTION = "family.json"


def find_families(model_dirs: Sequence[str | Path], variant: str = "auto") -> dict[str, Path]:
    """The folder of each family: the first of `model_dirs` that holds `<family>/` or `<family>/<variant>/`."""
    found: dict[str, Path] = {}
    for directory in map(Path, model_dirs):
        for name in FAMILIES:
            for folder in (directory / name, directory / name / variant):
                if name not in found and (folder / DESCRIPTION).is_file():
                    found[name] = folder
    return found


def read_description(folder: str | Path) -> dict[str, Any]:
    """A family's `family.json`.

    Raises:
        PackError: it is missing, not JSON, or lacks its keys.
    """
    path = Path(folder) / DESCRIPTION
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise PackError(f"{path}: not readable ({error}); rebuild it with `steptime kernels fit`") from None
    missing = [key for key in ("family", "evidence", "variant") if not isinstance(values, dict) or key not in values]
    if missing:
        raise PackError(f"{path}: misses {', '.join(missing)}; rebuild it with `steptime kernels fit`")
    return dict(values)


def write_physics(
    out_dir: str | Path, gpu: GpuSpec, memory: BandwidthCurve, floor: Floor, error: float, evidence: str,
    samples: pd.DataFrame,
) -> None:  # fmt: skip
    """Write the bandwidth curve that families without samples share, as the folder of family `copy`."""
    sources = sorted(samples["source"].astype(str).unique()) if "source" in samples.columns else []
    values = {
        "family": "copy", "gpu": gpu.name, "variant": "curve", "evidence": evidence, "source": sources,
        "physics": {"memory": memory.to_json()},
        "floor": {"offset_us": floor.offset_us, "default_us": floor.default_us, "by_op": dict(floor.by_op)},
        "fitted_on": "element-wise ops, whose traffic is known", "fit_error": round(error, 6),
    }  # fmt: skip
    with atomic_path(Path(out_dir) / "copy" / DESCRIPTION) as part:
        part.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8")
