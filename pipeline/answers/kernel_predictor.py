"""Predicts tables of device calls: each family by its best available model, else by physics.

`load_predictor(load_gpu("V100"), [packs_dir() / "V100" / "kernels"]).predict(calls)` keeps rows and order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.gap_models import GAP_FAMILIES, with_fallback, with_gaps_filled
from pipeline.answers.transferred_models import TransferredModel, transferred_models
from pipeline.arrays import Array, Flags, Ints, Texts
from pipeline.families import FAMILIES
from pipeline.families.chip import BandwidthCurve
from pipeline.families.dims import Dims, is_one_of
from pipeline.families.family import Law
from pipeline.hardware.clusters import Cluster
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.derived_calls import DERIVED_FAMILIES, estimate_by_related_model
from pipeline.kernels.estimate import (
    EXTRAPOLATED,
    Estimate,
    Floor,
    KernelModel,
    Session,
    converted,
    merge,
    session_of,
)
from pipeline.kernels.family_model import (
    DESCRIPTION,
    REFIT_ADVICE,
    ROWS_IN_BLOCK,
    FittedModel,
    find_families,
    read_description,
)
from pipeline.kernels.networks import ROWS_IN_DOUBLE
from pipeline.kernels.physics import Physics
from pipeline.kernels.rnn_kernels import recurrent_us
from pipeline.model_files import reading
from pipeline.schemas import DIMS
from pipeline.transfer.gpu_features import COVERED_FAMILIES

UNKNOWN_LATENCY_FLOOR = Floor(offset_us=13.5, default_us=32.0, by_op={})
"""Latency floor in µs where no sample of a GPU shows it: medians over the five GPUs of the public samples
(docs/kernels.md)."""

TIMES = ("predicted_us", "kernel_us", "p10_us", "p90_us", "latency_p10_us", "latency_p90_us")
"""Time columns of a prediction, in microseconds. `p10_us` and `p90_us` bracket `kernel_us`; `latency_*` bracket
`predicted_us`."""


def scaled(predicted: pd.DataFrame, factor: Array) -> pd.DataFrame:
    """A prediction with all times of each call times a factor, shape (calls,)."""
    return predicted.assign(**{name: predicted[name] * factor for name in TIMES})


CARD_SD = 0.015
"""Standard deviation of the speed of equal cards. Over hundreds of cards of one kind in a cluster, times of the same work
spread over 8 % on average (Sinha et al., arXiv:2208.11035); a range of so many normal values is 5.4 standard deviations."""


def on_slowest_card(times: pd.DataFrame, calls: pd.DataFrame, devices: int) -> pd.DataFrame:
    """Kernel times on the card for which the others of a step wait: the slowest of `devices` (its expected value, after Blom).

    Args:
        times: of each call on a usual card, columns as of `KernelPredictor.predict`.
        calls: the calls. Times of collectives stay as they are: they are those of all cards together.
        devices: number of cards.
    """
    if devices == 1:
        return times
    slower = 1.0 + CARD_SD * NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))
    factor = np.where(calls["family"] == "collective", 1.0, slower)
    return scaled(times, factor)


PREDICTED = {
    **dict.fromkeys((*TIMES, "session_low", "session_high", "least_us"), float),
    **{"evidence": object, "modelled": bool, "inside": bool},
}
"""Columns of a prediction, with their dtypes."""

PLACES = frozenset({"node_id", "call"})
"""Columns of a `calls` table that say which call a row is; all others say what it launches."""

TEXT_COLUMNS = ("family", "op", "phase", "dtype", "attributes")
NUMBER_COLUMNS = ("flops", "bytes_read", "bytes_written", *DIMS)
"""Columns of a `calls` table that kernel models read."""


@dataclass(frozen=True)
class KernelPredictor:
    """Models of one GPU's families, physics for the rest, and the latency floor of this GPU."""

    gpu: GpuSpec
    models: Mapping[str, KernelModel]
    physics: Physics
    floor: Floor = UNKNOWN_LATENCY_FLOOR
    folders: tuple[str, ...] = ()
    """Folders that the models of this GPU were read from, best first; empty if it has none of its own."""
    any_session: bool = True
    """Whether intervals contain the error of another session."""
    complete: Callable[[], Mapping[str, KernelModel]] | None = None
    """`models` with those that fill their gaps, which are read at the first call that `models` do not cover."""

    def predict(self, calls: pd.DataFrame) -> pd.DataFrame:
        """Times of device calls.

        Args:
            calls: a calls table (or any table with `family`, `op` and dims).

        Returns:
            Same rows, order and index, with these columns:

            - `predicted_us`: latency, floor included.
            - `kernel_us`: time of the kernel.
            - `p10_us`, `p90_us`: interval of the kernel time.
            - `latency_p10_us`, `latency_p90_us`: interval of the latency.
            - `session_low`, `session_high`: the part of both intervals that all kernels of a step share, as log factors.
            - `least_us`: a time that no error goes below (`Physics.least_us`).
            - `evidence`: what the time rests on; it ends with `EXTRAPOLATED` where `inside` is False.
            - `modelled`: False where neither model nor formula covers the call. The time is then that of the shortest
              kernel.
            - `inside`: False where sizes are outside the range of the samples.
        """
        if not PLACES.issubset(calls.columns):
            return with_extrapolated(self.predict_rows(calls))
        distinct, which = distinct_calls(calls)
        return self.predict_distinct(distinct).iloc[which].set_axis(calls.index)

    def predict_distinct(self, calls: pd.DataFrame) -> pd.DataFrame:
        """As `predict`, for calls of `distinct_calls`: in tables so small that networks compute in float64."""
        blocks = [
            calls.iloc[at : at + ROWS_IN_DOUBLE]
            for at in range(0, max(len(calls), 1), ROWS_IN_DOUBLE)
        ]
        return with_extrapolated(pd.concat([self.predict_rows(block) for block in blocks]))

    def predict_rows(self, calls: pd.DataFrame) -> pd.DataFrame:
        """As `predict`, where every row is predicted for itself, also rows that are equal."""
        predicted = {name: np.zeros(len(calls), dtype) for name, dtype in PREDICTED.items()}
        plain = model_columns(calls)
        families, names = pd.factorize(plain["family"])
        stated, is_text = plain.notna().to_numpy(), plain.columns.isin(TEXT_COLUMNS)
        for number, name in enumerate(names):
            at = np.flatnonzero(families == number)
            family = str(name) if str(name) in FAMILIES else "other"
            # without the columns that are null in all rows: every family has dims of its own, and tables have those of all
            family_calls = plain.iloc[at, np.flatnonzero(is_text | stated[at].any(axis=0))]
            if family != name:
                family_calls = family_calls.assign(family=family)
            for column, values in self._columns(family, family_calls).items():
                predicted[column][at] = values
        return pd.DataFrame(predicted, index=calls.index, copy=False)

    def _columns(self, name: str, calls: pd.DataFrame) -> dict[str, Any]:
        """The columns of a prediction, for calls of one family."""
        estimate, evidence = self.estimate(name, calls)
        usable = np.isfinite(estimate.kernel) & (estimate.kernel > 0)
        session = session_of(self.gpu, name) if self.any_session else Session(0.0, 0.0)
        least = np.fmin(self.physics.least_us(name, calls), estimate.kernel)
        estimate = estimate.in_any_session(session.low, session.high, least)
        shortest, floor = self.physics.memory.start_us, self.floor.default_us
        times = {
            "predicted_us": (estimate.latency, floor),
            "kernel_us": (estimate.kernel, shortest),
            "p10_us": (estimate.p10, shortest / 2.0),
            "p90_us": (estimate.p90, shortest * 10.0),
            "latency_p10_us": (estimate.latency_p10, floor / 2.0),
            "latency_p90_us": (estimate.latency_p90, floor * 10.0),
        }
        return {
            **{key: np.where(usable, *both) for key, both in times.items()},
            "session_low": session.low,
            "session_high": session.high,
            "least_us": least,
            "evidence": evidence,
            "modelled": usable,
            "inside": estimate.inside,
        }

    def estimate(self, name: str, calls: pd.DataFrame) -> tuple[Estimate, Texts]:
        """Estimate and evidence of each row, for calls of one family."""
        models = self.models
        covered = _covered(models.get(name), calls)
        if not covered.all() and name in GAP_FAMILIES and self.complete is not None:
            models = self.complete()
            covered = _covered(models.get(name), calls)
        model = models.get(name)
        if model is not None and covered.all():
            return self._limited(name, calls, model), model.evidence_of(calls)
        formula, evidence = self.formula(name, calls), self.physics_evidence(name, calls)
        if model is not None and covered.any():
            learned = self._limited(name, calls[covered], model)
            formula = merge(formula, learned, covered)
            evidence[covered] = model.evidence_of(calls[covered])
        if name in DERIVED_FAMILIES and not covered.all():
            derived, origin = self._derived(name, calls[~covered], models)
            if derived is not None:
                usable = np.isfinite(derived.kernel)
                at = np.flatnonzero(~covered)[usable]
                formula = merge(formula, derived.rows(usable), at)
                evidence[at] = origin[usable]
        return formula, evidence

    def _limited(self, name: str, calls: pd.DataFrame, model: KernelModel) -> Estimate:
        """A model's estimate, within what few samples do not show (`Family.limit`)."""
        estimate, limit = model.predict(calls), FAMILIES[name].limit
        if limit is None:
            return estimate
        transferred = isinstance(self.models.get(name), TransferredModel)
        own = self.physics.calls(name, calls)
        factor, spread = limit(own, estimate.kernel, estimate.inside, transferred)
        return estimate.scale(factor).widen(spread) if (factor != 1.0).any() else estimate

    def _derived(
        self, name: str, calls: pd.DataFrame, models: Mapping[str, KernelModel]
    ) -> tuple[Estimate | None, Texts]:
        """Estimate from models of related calls, and each row's evidence; None where there is none."""
        if name == "rnn" and self.gpu.limits is not None:
            return recurrent_us(calls, partial(self.estimate, "gemm"), self.physics, self.floor)
        derived, origin = estimate_by_related_model(name, calls, models, self.physics)
        if derived is not None:
            # where the host's floor determines the latency, a shorter kernel does not shorten it
            derived = derived.floored(self.floor.of(Dims(calls).text("op")))
        return derived, np.full(len(calls), origin, dtype=object)

    def formula(self, name: str, calls: pd.DataFrame) -> Estimate:
        """Estimate by physics only: the family's law with a generic spread."""
        kernel = self.physics.kernel_us(name, calls)
        spread = np.maximum(self.physics.spread(name, calls), substitute_spread(calls))
        latency = self.floor.latency(kernel, Dims(calls).text("op"))
        return Estimate.around(latency, kernel, spread, self.floor.of(Dims(calls).text("op")))

    def physics_evidence(self, name: str, calls: pd.DataFrame) -> Texts:
        """Evidence of physics, shape (rows,). Data movement over a fitted bandwidth curve rests on samples of that GPU, all
        else on its file: also what is not known to be data movement, and frames that follow each other (dim T).
        """
        moved = np.isnan(Dims(calls)("T")) & (substitute_spread(calls) == 1.0)
        moved &= FAMILIES[name].law is Law.MOVEMENT
        return np.where(moved, self.physics.evidence, "roofline").astype(object)


MODELLED_DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp64")
"""Dtypes of matrix products and convolutions whose rates are in the GPU files and whose kernels have models."""

UNKNOWN_SPREAD, FFT_SPREAD, FOREIGN_SPREAD = 10.0, 2.5, 4.0
"""Factors up and down of the intervals of substitute times. Unknown operators: a batched decomposition takes ten times as
long as its bytes, or more. Fourier transforms: lengths with large prime factors are padded to more than twice the length, in
four passes. Products in foreign dtypes: those of complex numbers have four times the multiplications."""


def _covered(model: KernelModel | None, calls: pd.DataFrame) -> Flags:
    return np.zeros(len(calls), dtype=bool) if model is None else model.covers(calls)


def substitute_spread(calls: pd.DataFrame) -> Array:
    """Factor up and down of the interval of calls whose times are only substitutes, 1 for other calls; shape (rows,).

    - Operators that the map does not know, and Fourier transforms, are timed by their bytes: a lower bound.
    - Arithmetic in dtypes without a modelled rate (complex, integers) is timed as fp32.
    """
    d = Dims(calls)
    family, op, dtype = d.text("family"), d.text("op"), d.text("dtype", "fp32")
    computing = is_one_of(
        family, [name for name, entry in FAMILIES.items() if entry.law is Law.COMPUTE]
    )
    foreign = computing & ~is_one_of(dtype, MODELLED_DTYPES)
    unknown = (family == "other") & (op == "unknown")
    return np.select(
        [unknown, op == "fft", foreign], [UNKNOWN_SPREAD, FFT_SPREAD, FOREIGN_SPREAD], 1.0
    )


def with_extrapolated(predicted: pd.DataFrame) -> pd.DataFrame:
    """A prediction whose evidence says where sizes are outside the range of the samples."""
    outside = ~predicted["inside"].to_numpy(bool)
    if not outside.any():
        return predicted
    evidence = predicted["evidence"].to_numpy(object)
    return predicted.assign(evidence=np.where(outside, evidence + EXTRAPOLATED, evidence))


def model_columns(calls: pd.DataFrame) -> pd.DataFrame:
    """The columns of a `calls` table that kernel models read: numbers as float64, text as objects; rows are numbered.

    Numbers that no row states are left out. Reading such columns is several times as fast as reading nullable ones, and models
    read them hundreds of times. In large tables, text columns are categories, because each read of a text column compares all
    texts.
    """
    large = len(calls) > ROWS_IN_BLOCK
    texts: dict[str, Any] = {
        name: pd.Categorical(calls[name]) if large else calls[name].to_numpy(object)
        for name in TEXT_COLUMNS
        if name in calls.columns
    }
    numbers = calls[[name for name in NUMBER_COLUMNS if name in calls.columns]]
    if not all(map(pd.api.types.is_numeric_dtype, numbers.dtypes)):
        numbers = numbers.apply(pd.to_numeric, errors="coerce")
    values = numbers.to_numpy(np.float64, na_value=np.nan)
    stated = ~np.isnan(values).all(axis=0)
    plain = pd.DataFrame(values.T[stated].T, columns=numbers.columns[stated])
    for place, (name, text) in enumerate(texts.items()):
        plain.insert(
            place, name, pd.Series(text, dtype=text.dtype)
        )  # pandas has its own type of text
    return plain


def distinct_calls(calls: pd.DataFrame) -> tuple[pd.DataFrame, Ints]:
    """The distinct calls of a graph, or of several graphs, and the number of the distinct call that each row is.

    The calls of a step repeat, in layers of one shape: models see each call once. Distinct calls have the columns that
    models read (`model_columns`), and are in the order in which they first occur.
    """
    plain = model_columns(calls)
    texts = [pd.factorize(plain[name].array)[0] for name in TEXT_COLUMNS if name in plain]
    rows = np.column_stack([*texts, plain.select_dtypes(np.float64)]).astype(np.float64)
    which = pd.factorize(np.array([row.tobytes() for row in rows], object))[0]
    first = np.unique(which, return_index=True)[1]
    return plain.iloc[first].reset_index(drop=True), which


def load_predictor(
    gpu: GpuSpec,
    model_dirs: Sequence[str | Path] = (),
    corrections: Mapping[str, Any] | None = None,
    cluster: Cluster | None = None,
) -> KernelPredictor:
    """A predictor from folders of saved families. Each family comes from the first folder that holds it.

    Other families are transferred or predicted by physics. A folder holds one folder per family with a `family.json`,
    or one per family and variant. Missing folders are skipped. `corrections` come from probes of this GPU
    (`pipeline.transfer.probes`) and apply to transferred families. Collectives run in the `cluster`.

    Raises:
        PackError: a family's files are damaged or incomplete.
    """
    return predictor_of(gpu, find_families(model_dirs), corrections, cluster)


def predictor_of(
    gpu: GpuSpec,
    families: Mapping[str, Path],
    corrections: Mapping[str, Any] | None = None,
    cluster: Cluster | None = None,
) -> KernelPredictor:
    """A predictor from one saved folder per family; families without one are transferred or predicted by physics.

    Collectives run in the `cluster`; without one, over NVLink behind switches, or by the formula of the GPU's links.

    Raises:
        PackError: a family's files are damaged or incomplete.
    """
    physics, floor, calibrated = Physics.of(gpu), UNKNOWN_LATENCY_FLOOR, False
    models: dict[str, KernelModel] = {}
    own: set[str] = set()
    for name, folder in families.items():
        description = read_description(folder)
        if "physics" in description:
            with reading(folder / DESCRIPTION, REFIT_ADVICE):
                curve = converted(description["physics"]["memory"], BandwidthCurve)
                physics, calibrated = physics.calibrate(curve, str(description["evidence"])), True
                if "floor" in description:
                    floor = converted(description["floor"], Floor)
        if "variant" in description and description["variant"] != "curve":
            models[name] = fitted = FittedModel.load(folder, gpu)
            own |= (
                {name} if "fp32" in fitted.scope.dtypes else set()
            )  # cross-GPU models answer for fp32
    if not own >= set(COVERED_FAMILIES):
        models = with_fallback(models, transferred_models(gpu, own, corrections))
    # since Ada, starts and L2 of the rules come from H100s, and halve the error of a pack's curve on dtypes that it lacks
    physics = physics if calibrated and not physics.is_recent else Physics.of(gpu).streaming()
    complete = cache(lambda: with_gaps_filled(gpu, models, cluster))
    return KernelPredictor(gpu, models, physics, floor, complete=complete)
