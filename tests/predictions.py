"""Predictions as tests need them: a step by its time, with what matters to a test."""

from __future__ import annotations

from typing import Any

from pipeline.prediction import Prediction


def predicted(us: float = 100.0, **known: Any) -> Prediction:
    """A step of a model on a V100; what is not said is the usual, and the GPU works all the time."""
    usual = {
        "gpu": "V100",
        "model": "m",
        "variant": "default",
        "batch_size": 64,
        "predicted_us": us,
        "active_us": us,
        "host_us": us,
        "p10_us": 0.9 * us,
        "p90_us": 1.1 * us,
        "memory_bytes": 0,
        "fits": True,
        "evidence": {},
        "host_evidence": {},
        "unmodelled_share": 0.0,
    }
    return Prediction(**{**usual, **known})
