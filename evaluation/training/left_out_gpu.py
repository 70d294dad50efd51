"""Leave-one-GPU-out errors of every transfer method over all ordered pairs of GPUs.

For each destination, all learned models are trained on the other GPUs. An origin's rows are joined to the
destination's by shape. Errors are computed over rows above twice the destination's latency floor. The floor is the
smallest latency of the op on that GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluation.training.prior_fit import learn_prior
from evaluation.training.published_networks import DIMS, PublishedNetwork, train_published
from evaluation.training.recipes import RECIPES, Recipe
from evaluation.training.utilisation_train import train_utilisation
from pipeline.families import FAMILIES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.error_metrics import gmae, mape
from pipeline.transfer import wave_scaling as wave
from pipeline.transfer.probes import CovarianceInputs, calibrate, choose_probes, covariance_inputs
from pipeline.transfer.scaling_methods import by_auto, by_roofline
from pipeline.transfer.utilisation import UtilisationModel

Array = npt.NDArray[np.float64]

Trained = TypeVar("Trained", UtilisationModel, PublishedNetwork)

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
    published: PublishedNetwork | None


def folds(
    samples: pd.DataFrame,
    family: str,
    recipe: Recipe | None = None,
    cache: Path | None = None,
    *,
    baseline: bool = True,
    probes: bool = True,
) -> Iterator[Fold]:
    """Train a family's models once for each left-out GPU.

    The prior for probes of the left-out GPU is learned from the errors on the other GPUs. Each of these GPUs is
    predicted by a model of one network, trained without it and without the left-out GPU.

    Args:
        samples: a samples table.
        family: a covered family.
        recipe: sizes and schedule; the family's by default.
        cache: folder of models from earlier calls; missing models are trained and saved there.
        baseline: whether to train the papers' network where the family has one.
        probes: whether to learn the prior for probes, which takes one model per pair of GPUs.
    """
    own = samples[samples["family"] == family]
    gpus = sorted(own["gpu"].astype(str).unique())
    chosen = recipe or RECIPES[family]
    fewer = replace(chosen, networks=1)
    pairs: dict[tuple[str, ...], UtilisationModel] = {}

    def trained(recipe: Recipe, *without: str) -> UtilisationModel:
        path = cache and cache / f"{family}_without_{'_'.join(without)}.safetensors"
        rest = own[~own["gpu"].isin(without)]
        train = partial(train_utilisation, rest, family, recipe)
        return _cached(path, UtilisationModel.load, train)

    def prior_errors(gpu: str, other: str) -> tuple[CovarianceInputs, Array]:
        low, high = sorted((gpu, other))
        if (low, high) not in pairs:
            pairs[low, high] = trained(fewer, low, high)
        return left_out_errors(own, pairs[low, high], other)

    for gpu in gpus:
        model = trained(chosen, gpu)
        if probes and len(gpus) > 2:
            others = {other: prior_errors(gpu, other) for other in gpus if other != gpu}
            model = replace(model, probe_prior=asdict(learn_prior(others)))
        network = None
        if baseline and family in DIMS:
            path = cache and cache / f"published_{family}_without_{gpu}.safetensors"
            train = partial(
                train_published,
                own[own["gpu"] != gpu],
                family,
            )
            network = _cached(path, PublishedNetwork.load, train)
        yield Fold(family, load_gpu(gpu), model, network)


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
    rows = samples[(samples["family"] == model.family) & (samples["gpu"] == gpu)]
    rows = rows[_above_floor(rows)]
    inputs = covariance_inputs(model, rows, load_gpu(gpu))
    return inputs, np.log(_measured(rows)) - inputs.log_latency


def _measured(rows: pd.DataFrame) -> Array:
    return rows["latency_us"].to_numpy(dtype=np.float64)


def _above_floor(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Mask of the rows above `MIN_FLOOR_MULTIPLE` times the floor of their GPU and op."""
    floor = rows.groupby(["gpu", "op"])["latency_us"].transform("min")
    return np.asarray(rows["latency_us"] > MIN_FLOOR_MULTIPLE * floor)


def _by_family(samples: pd.DataFrame, fold: Fold) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """The family's samples, the left-out GPU's, and the columns that identify a call."""
    own = samples[samples["family"] == fold.family]
    keys = [name for name in ("op", *FAMILIES[fold.family].required) if name in own.columns]
    target = own[own["gpu"] == fold.destination.name]
    return own, target.assign(shown=_above_floor(target)).drop_duplicates(keys), keys


def pair_errors(samples: pd.DataFrame, fold: Fold) -> pd.DataFrame:
    """Errors of every method from every other GPU to the fold's, one row per origin and method.

    Returns:
        Columns `family, origin, destination, method, mape, gmae, rows`; errors in per cent.
    """
    own, target, keys = _by_family(samples, fold)
    truths = target[target["shown"]][[*keys, "latency_us"]]
    truths = truths.rename(columns={"latency_us": "truth"})
    probes = probe_rows(own, target, keys, fold, PROBES)
    rows = []
    for gpu in sorted(set(own["gpu"].astype(str)) - {fold.destination.name}):
        origin = own[own["gpu"] == gpu].drop_duplicates(keys)
        joined = origin.merge(truths, on=keys, how="inner")
        held_out = _without_probes(joined, probes, keys)
        truth = joined["truth"].to_numpy(dtype=np.float64)[held_out]
        facts = {"family": fold.family, "origin": gpu, "destination": fold.destination.name}
        for name, predicted in _predictions(joined, load_gpu(gpu), fold, probes).items():
            errors = _percent(
                np.asarray(predicted, dtype=np.float64)[held_out],
                truth,
            )
            rows.append({**facts, "method": name, **errors, "rows": len(truth)})
    return pd.DataFrame(rows)


def _predictions(
    joined: pd.DataFrame, origin: GpuSpec, fold: Fold, probes: pd.DataFrame
) -> dict[str, Any]:
    """Predictions of the destination's times by method, each of shape (rows,)."""
    there, measured = fold.destination, _measured(joined)
    models = {fold.family: fold.utilisation}
    calibrated = {fold.family: calibrate(fold.utilisation, probes, there)}
    gamma, launches = wave.gamma(wave.intensity_of(joined), there), wave.Launches.of(joined)
    simple, exact = (
        wave.scale(measured, launches, origin, there, gamma, exact=exact) for exact in (False, True)
    )
    predictions: dict[str, Any] = {
        "auto": by_auto(joined, origin, there, models)["predicted_us"],
        f"auto, {PROBES} probes": by_auto(joined, origin, there, models, calibrated)[
            "predicted_us"
        ],
        "wave": simple,
        "wave, exact": exact,
        "roofline": by_roofline(joined, fold.family, origin, there),
        "bandwidth ratio": measured * (origin.peak_dram_gb_per_s() / there.peak_dram_gb_per_s()),
    }
    if fold.published is not None:
        predictions["mlp"] = measured * fold.published.ratio(joined, origin, there)
    return predictions


def _without_probes(
    rows: pd.DataFrame, probes: pd.DataFrame, keys: list[str]
) -> npt.NDArray[np.bool_]:
    """Mask of the rows that are not probes."""
    return ~pd.MultiIndex.from_frame(rows[keys]).isin(pd.MultiIndex.from_frame(probes[keys]))


def probe_rows(
    own: pd.DataFrame, target: pd.DataFrame, keys: list[str], fold: Fold, count: int
) -> pd.DataFrame:
    """Probes among the destination's rows `target`, of calls above twice the floor on all other GPUs."""
    others = own[own["gpu"] != fold.destination.name]
    above = others[_above_floor(others)].groupby(keys).size()
    everywhere = above[above == others["gpu"].nunique()].reset_index()[keys]
    candidates = target.merge(everywhere, on=keys, how="inner").sort_values(keys)
    return choose_probes(fold.utilisation, candidates, fold.destination, count)


def probe_errors(samples: pd.DataFrame, fold: Fold) -> dict[str, dict[str, float]]:
    """Errors in % on the left-out GPU above twice its floor by number of probes, whose rows are excluded.

    Returns:
        MAPE, GMAE and median of the error. 0 means a prediction from the spec alone; with probes also `coverage`, the
        share of rows within p10 to p90.
    """
    own, target, keys = _by_family(samples, fold)
    shown, errors = target[target["shown"]], {}
    for count in (0, *PROBE_COUNTS):
        rows, half = shown, None
        if count:
            probes = probe_rows(own, target, keys, fold, count)
            rows = shown[_without_probes(shown, probes, keys)]
            calibration = calibrate(fold.utilisation, probes, fold.destination)
            _, latency, half = calibration.predict(rows)
        else:
            _, latency = fold.utilisation.kernel_and_latency(rows, fold.destination)
        off = np.abs(np.log(_measured(rows) / latency))
        median = 100 * float(np.median(np.abs(latency / _measured(rows) - 1.0)))
        covered = {} if half is None else {"coverage": float(np.mean(off <= half))}
        errors[str(count)] = _percent(latency, _measured(rows)) | {"median": median} | covered
    return errors


def direct_errors(samples: pd.DataFrame, fold: Fold) -> dict[str, float]:
    """Errors in % on the left-out GPU, predicted from its spec: MAPE above twice the floor, GMAE over all rows."""
    rows = samples[samples["family"].eq(fold.family) & samples["gpu"].eq(fold.destination.name)]
    _, latency = fold.utilisation.kernel_and_latency(rows, fold.destination)
    above = _above_floor(rows)
    return _percent(latency, _measured(rows)) | {
        "mape": 100 * mape(latency[above], _measured(rows)[above])
    }


def _percent(predicted: Array, truth: Array) -> dict[str, float]:
    return {
        "mape": 100 * mape(predicted, truth),
        "gmae": 100 * gmae(predicted, truth),
    }


def shortened(recipe: Recipe, steps: int, networks: int = 1) -> Recipe:
    """A shortened recipe, for tests."""
    return replace(recipe, steps=steps, networks=networks)
