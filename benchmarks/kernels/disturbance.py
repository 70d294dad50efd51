"""Splits the error of a convolution model into the part of the model and the part of the measuring session.

    python benchmarks/kernels/disturbance.py

Columns of the table, all GMAE in %:

- `undisturbed`: boosted trees in cross-validation, with the session's drift (`pipeline.kernels.session_drift`) removed from the
  latencies.
- `in hindsight`: their predictions against the latencies as measured. For each of twenty classes of size, the constant
  that fits the measured latencies best is added.
- `exact kernels`: the same with the undisturbed times instead of predictions. This error comes from the session alone.
"""

import numpy as np

from pipeline.datasets.neusight import read_samples
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.error_metrics import gmae
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.fit_gpu import calibrate_physics
from pipeline.kernels.intervals import Quantiles
from pipeline.kernels.latency_floor import estimate_floor
from pipeline.kernels.physics import Physics
from pipeline.kernels.sample_range import Scope
from pipeline.kernels.samples import assign_folds, clean_samples
from pipeline.kernels.session_drift import estimate_drift
from pipeline.kernels.trees import train_trees
from pipeline.kernels.work import Array
from pipeline.paths import datasets_dir

FAMILY = "conv2d_forward"
SIZE_CLASSES = 20


def error_with_best_constants(expected: Array, latency: Array, max_us: float) -> float:
    """GMAE of expected times plus the best constant, up to `max_us`, of each of twenty classes of size."""
    best = np.empty(len(expected))
    for rows in np.array_split(np.argsort(expected), SIZE_CLASSES):
        guesses = np.linspace(0.0, max_us, 80)
        scores = np.array([gmae(expected[rows] + guess, latency[rows]) for guess in guesses])
        # scores of neighbouring constants differ by chance: smooth before choosing
        smooth = np.convolve(np.pad(np.log(scores), 4, mode="edge"), np.full(9, 1.0 / 9.0), mode="valid")
        best[rows] = expected[rows] + guesses[int(np.argmin(smooth))]
    return gmae(best, latency)


def main() -> None:
    root = datasets_dir()
    if root is None:
        raise SystemExit("set $STEPTIME_DATASETS: the public data are not found")
    print("| GPU | typical drift, us | undisturbed, GMAE % | in hindsight, GMAE % | exact kernels, GMAE % |")
    print("|---|---|---|---|---|")
    for gpu in map(load_gpu, ("V100", "P100")):
        samples = read_samples(root, gpu.name)
        memory, offset_us, _ = calibrate_physics(samples, gpu)
        own = clean_samples(samples[samples["family"] == FAMILY].reset_index(drop=True), FAMILY)
        physics = Physics.of(gpu)
        if memory is not None:
            physics = physics.calibrate(memory, "fitted")
        scope = Scope.of(
            FAMILY, own, ("B", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding")
        )
        floor = estimate_floor(own, physics, offset_us)
        wide = Quantiles.constant(1.5)
        model = FittedModel(FAMILY, gpu, "roofline", scope, floor, physics.memory, wide, wide)
        latency = own["latency_us"].to_numpy(dtype=np.float64)
        inputs, start = model.features(own), model.baseline(own)
        folds = assign_folds(own, 5, 0)
        drift = estimate_drift(inputs, start, latency, folds % 3)
        clean = np.maximum(latency - drift.extra_us, 0.2 * latency)
        expected = np.empty(len(own))
        for fold in range(5):
            held = folds == fold
            trees = train_trees(inputs[~held], np.log(clean[~held]) - start[~held], 0)
            expected[held] = np.exp(start[held] + trees.predict(inputs[held]))
        max_drift_us = float(drift.extra_us.max())
        judged = (
            gmae(expected, clean),
            error_with_best_constants(expected, latency, max_drift_us),
            error_with_best_constants(clean, latency, max_drift_us),
        )
        print(f"| {gpu.name} | {drift.typical_us:.0f} | " + " | ".join(f"{100 * error:.1f}" for error in judged) + " |")


if __name__ == "__main__":
    main()
