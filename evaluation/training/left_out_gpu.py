"""Leave-one-GPU-out errors of every transfer method over all ordered pairs of GPUs.

For each destination, all learned models are trained on the other GPUs. An origin's rows are joined to the
destination's by shape. Errors are computed over rows above twice the destination's latency floor. The floor is the
smallest latency of the op on that GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluation.training.mlp_train import train_mlp
from evaluation.training.prior_fit import learn_prior
from evaluation.training.recipes import RECIPES, Recipe
from evaluation.training.utilisation_train import train_utilisation
from pipeline.families import FAMILIES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.error_metrics import gmae, mape
from pipeline.transfer import wave_scaling as wave
from pipeline.transfer.methods import by_auto, by_roofline
from pipeline.transfer.probes import (
    Calibration,
    CovarianceInputs,
    calibrate,
    choose_probes,
    covariance_inputs,
)
from pipeline.transfer.utilisation import UtilisationModel
from pipeline.transfer.wave_scaling import DIMS, TransferMlp

Array = npt.NDArray[np.float64]

Trained = TypeVar("Trained", UtilisationModel, TransferMlp)

PROBES = 10
"""Number of probe kernels per family for the errors with probes."""

PROBE_COUNTS = (5, 10, 20)
"""Numbers of probes with which `probe_errors` predicts a left-out GPU."""

MIN_FLOOR_MULTIPLE = 2.0
"""Errors are computed over rows above this multiple of the latency floor."""


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
    probes: bool = True,
) -> Iterator[Fold]:
    """Train a family's models once for each left-out GPU.

    The prior for probes of the left-out GPU is learned from the errors on the other GPUs. Each of these GPUs is
    predicted by a model of one network, trained without it and without the left-out GPU.

    Args:
        samples: a samples table.
        family: a covered family.
        recipe: sizes and schedule; the family's by default.
        mlp_steps: steps of the cross-GPU network; none is trained for 0.
        cache: folder of models from earlier calls; missing models are trained and saved there.
        probes: whether to learn the prior for probes, which takes one model per pair of GPUs.
    """
    family_rows = samples[samples["family"] == family]
    gpus = sorted(str(gpu) for gpu in family_rows["gpu"].unique())
    chosen = recipe or RECIPES[family]
    pairs: dict[tuple[str, ...], UtilisationModel] = {}

    def without_both(a: str, b: str) -> UtilisationModel:
        key = tuple(sorted((a, b)))
        if key not in pairs:
            pairs[key] = _cached(
                cache and cache / f"{family}_without_{key[0]}_{key[1]}.safetensors",
                UtilisationModel.load,
                lambda: train_utilisation(
                    family_rows[~family_rows["gpu"].isin(key)], family, replace(chosen, networks=1)
                ),
            )
        return pairs[key]

    for gpu in gpus:
        rest = family_rows[family_rows["gpu"] != gpu]
        model = _cached(
            cache and cache / f"{family}_without_{gpu}.safetensors",
            UtilisationModel.load,
            partial(train_utilisation, rest, family, chosen),
        )
        if probes and len(gpus) > 2:
            others = {
                other: left_out_errors(rest, without_both(gpu, other), other)
                for other in gpus
                if other != gpu
            }
            model = replace(model, probe_prior=learn_prior(others).as_dict())
        mlp = None
        if family in DIMS and mlp_steps:
            mlp = _cached(
                cache and cache / f"mlp_{family}_without_{gpu}.safetensors",
                TransferMlp.load,
                partial(train_mlp, rest, family, steps=mlp_steps),
            )
        yield Fold(family, load_gpu(str(gpu)), model, mlp)


def _cached(
    path: Path | None, load: Callable[[Path], Trained], train: Callable[[], Trained]
) -> Trained:
    """Load the model at a path; where there is none, train it and save it there."""
    if path is not None and path.is_file():
        return load(path)
    model = train()
    if path is not None:
        model.save(path)
    return model


def left_out_errors(
    samples: pd.DataFrame, model: UtilisationModel, gpu: str
) -> tuple[CovarianceInputs, Array]:
    """Calls of a GPU above `MIN_FLOOR_MULTIPLE` times the floor, and their log(measured / predicted), for `learn_prior`.

    The model must have been trained without this GPU.
    """
    family_rows = _above_floor(
        samples[(samples["family"] == model.family) & (samples["gpu"] == gpu)]
    )
    inputs = covariance_inputs(model, family_rows, load_gpu(gpu))
    return inputs, np.log(family_rows["latency_us"].to_numpy(dtype=np.float64)) - inputs.log_latency


def _above_floor(family_rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one GPU above `MIN_FLOOR_MULTIPLE` times the floor of their op."""
    return family_rows[
        family_rows["latency_us"]
        > MIN_FLOOR_MULTIPLE * family_rows["op"].map(family_rows.groupby("op")["latency_us"].min())
    ]


def pair_errors(samples: pd.DataFrame, fold: Fold) -> pd.DataFrame:
    """Errors of every method from every other GPU to the fold's, one row per origin and method.

    Returns:
        Columns `family, origin, destination, method, mape, gmae, rows`; errors in per cent.
    """
    family_rows = samples[samples["family"] == fold.family]
    target = family_rows[family_rows["gpu"] == fold.destination.name]
    floor = target.groupby("op")["latency_us"].min()
    keys = ["op", *(name for name in _DIMS[fold.family] if name in family_rows.columns)]
    right = (
        target[[*keys, "latency_us"]].drop_duplicates(keys).rename(columns={"latency_us": "truth"})
    )
    probes = probe_rows(family_rows, keys, fold)
    calibration = calibrate(fold.utilisation, probes, fold.destination)
    models = {fold.family: fold.utilisation}
    rows = []
    for gpu in sorted(set(family_rows["gpu"]) - {fold.destination.name}):
        origin = load_gpu(str(gpu))
        joined = (
            family_rows[family_rows["gpu"] == gpu]
            .drop_duplicates(keys)
            .merge(right, on=keys, how="inner")
        )
        joined = joined[joined["truth"] > MIN_FLOOR_MULTIPLE * joined["op"].map(floor)].reset_index(
            drop=True
        )
        held_out = _without_probes(joined, probes, keys)
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
            if not np.isfinite(predicted[held_out]).all():
                continue
            rows.append(
                {
                    "family": fold.family,
                    "origin": origin.name,
                    "destination": fold.destination.name,
                    "method": name,
                    **_percent(predicted[held_out], truth[held_out]),
                    "rows": int(held_out.sum()),
                }
            )
    return pd.DataFrame(rows)


_DIMS = {name: FAMILIES[name].required for name in RECIPES}


def _without_probes(
    rows: pd.DataFrame, probes: pd.DataFrame, keys: list[str]
) -> npt.NDArray[np.bool_]:
    """Mask of the rows that are not probes."""
    return ~rows[keys].apply(tuple, axis=1).isin(set(probes[keys].apply(tuple, axis=1))).to_numpy()


def probe_rows(
    family_rows: pd.DataFrame, keys: list[str], fold: Fold, count: int = PROBES
) -> pd.DataFrame:
    """The destination's rows of the calls that `choose_probes` selects among `probe_candidates`."""
    return choose_probes(
        fold.utilisation, probe_candidates(family_rows, keys, fold), fold.destination, count
    )


def probe_candidates(family_rows: pd.DataFrame, keys: list[str], fold: Fold) -> pd.DataFrame:
    """The destination's rows of the calls above twice the floor on all other GPUs, sorted by `keys`."""
    destination = fold.destination.name
    others = family_rows[family_rows["gpu"] != destination]
    floor = others.groupby(["gpu", "op"])["latency_us"].transform("min")
    above = others[others["latency_us"] > MIN_FLOOR_MULTIPLE * floor].groupby(keys).size()
    everywhere = above[above == others["gpu"].nunique()].reset_index()[keys]
    target = family_rows[family_rows["gpu"] == destination].drop_duplicates(keys)
    return target.merge(everywhere, on=keys, how="inner").sort_values(keys)


def log_residuals(samples: pd.DataFrame, fold: Fold) -> Array:
    """log(measured / predicted) of the left-out GPU above twice its floor, predicted from its spec; shape (rows,)."""
    family_rows = samples[
        (samples["family"] == fold.family) & (samples["gpu"] == fold.destination.name)
    ]
    family_rows = _above_floor(family_rows)
    _, latency = fold.utilisation.kernel_and_latency(family_rows, fold.destination)
    return np.log(family_rows["latency_us"].to_numpy(dtype=np.float64) / latency)


def probe_errors(samples: pd.DataFrame, fold: Fold) -> dict[str, dict[str, float]]:
    """`probed_errors` of the left-out GPU by number of probes; 0 means a prediction from the spec alone."""
    family_rows, keys, target = left_out_rows(samples, fold)
    return {
        str(count): probed_errors(
            target, keys, fold, probe_rows(family_rows, keys, fold, count) if count else None
        )
        for count in (0, *PROBE_COUNTS)
    }


def left_out_rows(
    samples: pd.DataFrame, fold: Fold
) -> tuple[pd.DataFrame, list[str], pd.DataFrame]:
    """The family's samples, the columns that identify a call, and the left-out GPU's rows above twice its floor."""
    family_rows = samples[samples["family"] == fold.family]
    keys = ["op", *(name for name in _DIMS[fold.family] if name in family_rows.columns)]
    return (
        family_rows,
        keys,
        _above_floor(
            family_rows[family_rows["gpu"] == fold.destination.name].drop_duplicates(keys)
        ),
    )


def probed_errors(
    target: pd.DataFrame, keys: list[str], fold: Fold, probes: pd.DataFrame | None = None
) -> dict[str, float]:
    """Errors of a fold's model on the left-out GPU's rows, with or without probes; the probes' rows are excluded.

    Returns:
        MAPE, GMAE and median of the error in %. With probes also `coverage`, the share of rows within p10 to p90.
    """
    rows, covered = target, {}
    if probes is not None:
        rows = target[_without_probes(target, probes, keys)]
        _, latency, half = calibrate(fold.utilisation, probes, fold.destination).predict(rows)
        off = np.log(rows["latency_us"].to_numpy(dtype=np.float64) / latency)
        covered = {"coverage": float(np.mean(np.abs(off) <= half))}
    else:
        _, latency = fold.utilisation.kernel_and_latency(rows, fold.destination)
    truth = rows["latency_us"].to_numpy(dtype=np.float64)
    median = 100 * float(np.median(np.abs(latency - truth) / truth))
    return {**_percent(latency, truth), "median": median, **covered}


def direct_errors(samples: pd.DataFrame, fold: Fold) -> dict[str, Any]:
    """Errors in % on the left-out GPU, predicted from its spec: MAPE above twice the floor, GMAE over all rows."""
    family_rows = samples[
        (samples["family"] == fold.family) & (samples["gpu"] == fold.destination.name)
    ]
    _, latency = fold.utilisation.kernel_and_latency(family_rows, fold.destination)
    truth = family_rows["latency_us"].to_numpy(dtype=np.float64)
    above = family_rows.index.isin(_above_floor(family_rows).index)
    return {"mape": 100 * mape(latency[above], truth[above]), "gmae": 100 * gmae(latency, truth)}


def _percent(predicted: Array, truth: Array) -> dict[str, float]:
    return {"mape": 100 * mape(predicted, truth), "gmae": 100 * gmae(predicted, truth)}


def shortened(recipe: Recipe, steps: int, networks: int = 1) -> Recipe:
    """A shortened recipe, for tests."""
    return replace(recipe, steps=steps, networks=networks)


def _auto(
    joined: pd.DataFrame,
    origin: GpuSpec,
    fold: Fold,
    models: dict[str, UtilisationModel],
    calibration: Calibration | None,
) -> Array:
    calibrations = {fold.family: calibration} if calibration is not None else None
    return by_auto(joined, origin, fold.destination, models, calibrations)["predicted_us"].to_numpy(
        dtype=np.float64
    )


def _wave(joined: pd.DataFrame, origin: GpuSpec, destination: GpuSpec, exact: bool) -> Array:
    measured = joined["latency_us"].to_numpy(dtype=np.float64)
    g = wave.gamma(wave.intensity_of(joined), destination)
    return wave.scale(measured, wave.Launches.of(joined), origin, destination, g, exact=exact)


def _mlp(joined: pd.DataFrame, origin: GpuSpec, fold: Fold) -> Array:
    if fold.mlp is None:
        return np.full(len(joined), np.nan)
    return joined["latency_us"].to_numpy(dtype=np.float64) * fold.mlp.ratio(
        joined, origin, fold.destination
    )


def _bandwidth(joined: pd.DataFrame, origin: GpuSpec, destination: GpuSpec) -> Array:
    ratio = origin.peak_dram_gb_per_s() / destination.peak_dram_gb_per_s()
    return np.asarray(joined["latency_us"].to_numpy(dtype=np.float64) * ratio)
