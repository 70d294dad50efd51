"""Leave-one-GPU-out errors of every transfer method over all ordered pairs of GPUs.

For each destination, all learned models are trained on the other GPUs. An origin's rows are joined to the
destination's by shape; errors count rows above twice the destination's latency floor, where the floor is the least
latency of the op on that GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec, load_gpu
from pipeline.kernels.families import FAMILIES
from pipeline.transfer import wave
from pipeline.transfer.methods import by_auto, by_roofline
from pipeline.transfer.mlp import DIMS, TransferMlp, train_mlp
from pipeline.transfer.probes import Calibration, calibrate, design
from pipeline.transfer.train import RECIPES, Recipe, train_utilisation
from pipeline.transfer.utilisation import UtilisationModel

Array = npt.NDArray[np.float64]

Trained = TypeVar("Trained", UtilisationModel, TransferMlp)

PROBES = 10
"""Probe kernels per family in the calibrated figures."""


@dataclass(frozen=True)
class Fold:
    """Models of one family trained without one GPU."""

    family: str
    destination: GpuSpec
    utilisation: UtilisationModel
    mlp: TransferMlp | None


def folds(
    samples: pd.DataFrame,
    family: str,
    recipe: Recipe | None = None,
    mlp_steps: int = 1500,
    cache: Path | None = None,
) -> Iterator[Fold]:
    """Train a family's models once per GPU left out.

    Args:
        samples: a samples table.
        family: a covered family.
        recipe: sizes and schedule; the family's by default.
        mlp_steps: steps of the cross-GPU network; none is trained for 0.
        cache: folder of models that an earlier call left there; missing ones are trained and saved.
    """
    own = samples[samples["family"] == family]
    for gpu in sorted(own["gpu"].unique()):
        rest = own[own["gpu"] != gpu]
        model = _cached(
            cache and cache / f"{family}_without_{gpu}.safetensors",
            UtilisationModel.load,
            partial(train_utilisation, rest, family, recipe or RECIPES[family]),
        )
        mlp = None
        if family in DIMS and mlp_steps:
            mlp = _cached(
                cache and cache / f"mlp_{family}_without_{gpu}.safetensors",
                TransferMlp.load,
                partial(train_mlp, rest, family, steps=mlp_steps),
            )
        yield Fold(family, load_gpu(str(gpu)), model, mlp)


def _cached(path: Path | None, load: Callable[[Path], Trained], train: Callable[[], Trained]) -> Trained:
    """The model saved at a path, else a new one, saved there."""
    if path is not None and path.is_file():
        return load(path)
    model = train()
    if path is not None:
        model.save(path)
    return model


def pair_errors(samples: pd.DataFrame, fold: Fold) -> pd.DataFrame:
    """Errors of every method from every other GPU to the fold's, one row per origin and method.

    Returns:
        Columns `family, origin, destination, method, mape, gmae, rows`; errors in per cent.
    """
    own = samples[samples["family"] == fold.family]
    target = own[own["gpu"] == fold.destination.name]
    floor = target.groupby("op")["latency_us"].min()
    keys = ["op", *(name for name in _DIMS[fold.family] if name in own.columns)]
    right = target[[*keys, "latency_us"]].drop_duplicates(keys).rename(columns={"latency_us": "truth"})
    probes = probe_rows(own, keys, fold.destination.name)
    calibration = calibrate(fold.utilisation, probes, fold.destination)
    models = {fold.family: fold.utilisation}
    rows = []
    for gpu in sorted(set(own["gpu"]) - {fold.destination.name}):
        origin = load_gpu(str(gpu))
        joined = own[own["gpu"] == gpu].drop_duplicates(keys).merge(right, on=keys, how="inner")
        joined = joined[joined["truth"] > 2.0 * joined["op"].map(floor)].reset_index(drop=True)
        held_out = ~joined[keys].apply(tuple, axis=1).isin(set(probes[keys].apply(tuple, axis=1))).to_numpy()
        predictions = {
            "auto": _auto(joined, origin, fold, models, None),
            f"auto, {PROBES} probes": _auto(joined, origin, fold, models, calibration),
            "wave": _wave(joined, origin, fold.destination, exact=False),
            "wave, exact": _wave(joined, origin, fold.destination, exact=True),
            "mlp": _mlp(joined, origin, fold),
            "roofline": by_roofline(joined, fold.family, origin, fold.destination),
            "bandwidth ratio": _bandwidth(joined, origin, fold.destination),
        }
        truth = joined["truth"].to_numpy(dtype=np.float64)
        for name, predicted in predictions.items():
            error = np.abs(predicted - truth)[held_out] / truth[held_out]
            if not np.isfinite(error).all():
                continue
            rows.append({
                "family": fold.family, "origin": origin.name, "destination": fold.destination.name, "method": name,
                "mape": 100 * float(error.mean()), "gmae": 100 * float(np.exp(np.log(error.clip(1e-6)).mean())),
                "rows": len(error),
            })  # fmt: skip
    return pd.DataFrame(rows)


_DIMS = {name: FAMILIES[name].required for name in RECIPES}


def probe_rows(own: pd.DataFrame, keys: list[str], destination: str, count: int = PROBES) -> pd.DataFrame:
    """The destination's rows of the calls that `design` picks, among those above twice the floor on all other GPUs."""
    others = own[own["gpu"] != destination]
    floor = others.groupby(["gpu", "op"])["latency_us"].transform("min")
    above = others[others["latency_us"] > 2.0 * floor].groupby(keys).size()
    everywhere = above[above == others["gpu"].nunique()].reset_index()[keys]
    target = own[own["gpu"] == destination].drop_duplicates(keys)
    usable = target.merge(everywhere, on=keys, how="inner").sort_values(keys)
    return design(str(own["family"].iloc[0]), usable, count)


def log_residuals(samples: pd.DataFrame, fold: Fold) -> Array:
    """log(measured / predicted) of the left-out GPU above twice its floor, from its spec alone; shape (rows,)."""
    own = samples[(samples["family"] == fold.family) & (samples["gpu"] == fold.destination.name)]
    own = own[own["latency_us"] > 2.0 * own["op"].map(own.groupby("op")["latency_us"].min())]
    _, latency = fold.utilisation.kernel_and_latency(own, fold.destination)
    return np.log(own["latency_us"].to_numpy(dtype=np.float64) / latency)


def direct_errors(samples: pd.DataFrame, fold: Fold) -> dict[str, float]:
    """MAPE above twice the floor, and GMAE over all rows, of the left-out GPU predicted from its spec alone, %."""
    own = samples[(samples["family"] == fold.family) & (samples["gpu"] == fold.destination.name)]
    _, latency = fold.utilisation.kernel_and_latency(own, fold.destination)
    truth = own["latency_us"].to_numpy(dtype=np.float64)
    error = np.abs(latency - truth) / truth
    above = (own["latency_us"] > 2.0 * own["op"].map(own.groupby("op")["latency_us"].min())).to_numpy()
    gmae = np.exp(np.log(error.clip(1e-6)).mean())
    return {"mape": 100 * float(error[above].mean()), "gmae": 100 * float(gmae)}


def quick(recipe: Recipe, steps: int, networks: int = 1) -> Recipe:
    """A shortened recipe, for tests."""
    return replace(recipe, steps=steps, networks=networks)


def _auto(
    joined: pd.DataFrame,
    origin: GpuSpec,
    fold: Fold,
    models: dict[str, UtilisationModel],
    calibration: Calibration | None,
) -> Array:
    found = {fold.family: calibration} if calibration is not None else None
    return by_auto(joined, origin, fold.destination, models, found)["predicted_us"].to_numpy(dtype=np.float64)


def _wave(joined: pd.DataFrame, origin: GpuSpec, destination: GpuSpec, exact: bool) -> Array:
    measured = joined["latency_us"].to_numpy(dtype=np.float64)
    intensity = wave.intensity_of(joined)
    return wave.scale(measured, wave.Launches.of(joined), origin, destination, intensity, exact=exact)


def _mlp(joined: pd.DataFrame, origin: GpuSpec, fold: Fold) -> Array:
    if fold.mlp is None:
        return np.full(len(joined), np.nan)
    return joined["latency_us"].to_numpy(dtype=np.float64) * fold.mlp.ratio(joined, origin, fold.destination)


def _bandwidth(joined: pd.DataFrame, origin: GpuSpec, destination: GpuSpec) -> Array:
    ratio = origin.peak_dram_gb_per_s() / destination.peak_dram_gb_per_s()
    return np.asarray(joined["latency_us"].to_numpy(dtype=np.float64) * ratio)
