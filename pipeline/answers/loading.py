"""Bounds a predicted step by the rate at which data loading delivers samples, which the user knows and no prediction does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.prediction import Prediction
from pipeline.readable import milliseconds, rate

LOADING = "loader"
"""What limits a step that waits for samples."""


def loading_us(prediction: Prediction, loader: float) -> float:
    """Time in which the samples of a step are loaded, µs; arguments as of `within_loading`."""
    return 1e6 * prediction.global_batch / loader if loader else 0.0


def waiting_us(prediction: Prediction, loader: float) -> float:
    """How much longer loading takes than the step, µs; arguments as of `within_loading`."""
    return max(loading_us(prediction, loader) - prediction.predicted_us, 0.0)


def within_loading(prediction: Prediction, loader: float) -> Prediction:
    """A step that takes at least as long as loading its samples, with a note.

    Args:
        prediction: the step with its batch at hand. Loading runs beside it, and is no part of it.
        loader: samples that the whole machine loads in a second; 0 where this is not known.
    """
    several = prediction.several is not None and prediction.several.devices > 1
    if not loader:
        if not several:
            return prediction
        note = "data loading is not in the step (loader=5000/s: what the machine loads at most)"
        return replace(prediction, notes=(*prediction.notes, note))
    loaded_us = loading_us(prediction, loader)
    note = f"data loading at {rate(loader)} samples/s takes {milliseconds(loaded_us)} a step"
    if loaded_us <= prediction.predicted_us:
        return replace(prediction, notes=(*prediction.notes, f"{note}, less than the step"))
    draws_us = prediction.draws_us
    return replace(
        prediction,
        predicted_us=loaded_us,
        p10_us=loaded_us,
        p90_us=max(prediction.p90_us, loaded_us),
        draws_us=None if draws_us is None else np.maximum(draws_us, loaded_us),
        bound=LOADING,
        device_bound_from=None,
        notes=(*prediction.notes, f"{note}; without it: {milliseconds(prediction.predicted_us)}"),
    )
