"""Folders of fitted families. Each holds a description (`family.json`) and the files of the family's members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.bandwidth import BandwidthCurve
from pipeline.kernels.estimate import Floor
from pipeline.kernels.families import FAMILIES
from pipeline.model_files import read_json, write_json

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
    """Read a family's `family.json`.

    Raises:
        PackError: the file is missing, is not JSON, or lacks required keys.
    """
    remedy = "rebuild it with `steptime kernels fit`"
    return read_json(Path(folder) / DESCRIPTION, remedy, ("family", "evidence", "variant"))


def write_physics(
    out_dir: str | Path, gpu: GpuSpec, memory: BandwidthCurve, floor: Floor, error: float, evidence: str,
    samples: pd.DataFrame,
) -> None:  # fmt: skip
    """Write the bandwidth curve that all families without samples use, into the folder of family `copy`."""
    sources = sorted(samples["source"].astype(str).unique()) if "source" in samples.columns else []
    values = {
        "family": "copy", "gpu": gpu.name, "variant": "curve", "evidence": evidence, "source": sources,
        "physics": {"memory": memory.to_json()},
        "floor": {**vars(floor), "by_op": dict(floor.by_op)},
        "fitted_on": "element-wise ops, whose traffic is known", "fit_error": round(error, 6),
    }  # fmt: skip
    write_json(Path(out_dir) / "copy" / DESCRIPTION, values, sealed=True)
