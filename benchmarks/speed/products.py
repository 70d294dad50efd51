"""CPU time and peak memory of 1,000,000 gemm predictions on one core, all of different sizes.

The floor under this time is the arithmetic of the networks: the rate of large matrix products in float32 is measured in the
same run.
"""

from __future__ import annotations

from functools import cache
from statistics import median
from time import process_time

import numpy as np

from benchmarks.speed.process_cost import IMPORTS, cost_table, measured, median_costs, python
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.networks import Network
from pipeline.paths import packs_dir

ROWS = 1_000_000
GPU = "V100"

NAME = "1,000,000 products, predicted by the pack of the V100"
MADE = "the table of 1,000,000 products alone"

TABLE = """
import numpy as np, pandas as pd
from pipeline.answers.who_answers import kernel_predictor
from pipeline.hardware.find_gpu import load_gpu
predictor = kernel_predictor(load_gpu({gpu!r}), "auto", None)
rng = np.random.default_rng(0)
sizes = np.unique(np.exp(rng.uniform(np.log(8), np.log(8192), ({rows} * 5 // 4, 3))).astype(np.int64), axis=0)
sizes = dict(zip("MNK", rng.permutation(sizes)[:{rows}].T))
calls = pd.DataFrame({{"family": "gemm", "op": "linear", "phase": "forward", "dtype": "fp32", "B": 1, **sizes}})
assert len(calls) == {rows}
"""
PREDICTED = TABLE + "assert predictor.predict(calls)['modelled'].all()\n"


def section(rounds: int) -> str:
    """Costs as medians over the rounds, and the least time that the networks' arithmetic takes on this core."""
    commands = {
        name: python(code.format(rows=ROWS, gpu=GPU))
        for name, code in ((MADE, TABLE), (NAME, PREDICTED))
    }
    measured(commands[MADE])
    found = median_costs({name: python(code) for name, code in IMPORTS.items()} | commands, rounds)
    torch, own = found[next(iter(IMPORTS))], found[NAME].cpu_s - found[MADE].cpu_s
    floor = 2e-9 * ROWS * multiply_adds() / product_rate()
    return (
        "No two products have the same size. All are predicted by the fitted model of the V100,"
        f" with features and intervals.\n\n{cost_table(found)}\n\nThe predictions alone take"
        f" {own:.1f} s of CPU time on one core, {own / torch.cpu_s:.1f} times that of importing"
        f" PyTorch. The network of this model needs {multiply_adds() / 1e3:.0f} thousand"
        f" multiply-adds per product. At the {product_rate():.0f} GFLOP/s that this core reaches in"
        f" large float32 products, these alone take {floor:.1f} s."
    )


def multiply_adds() -> int:
    """Multiply-adds per row of the matrix products in the networks of the gemm model."""
    model = FittedModel.load(packs_dir() / GPU / "kernels" / "gemm", load_gpu(GPU))
    return sum(
        each.size
        for network in [model.member]
        if isinstance(network, Network)
        for each in network.weights
    )


@cache
def product_rate() -> float:
    """Rate of large float32 products on one core, GFLOP/s; measured once."""
    one, other = (np.random.default_rng(0).random((2048, 2048), dtype=np.float32) for _ in range(2))
    times = []
    for _ in range(5):
        begin = process_time()
        one @ other
        times.append(process_time() - begin)
    return 2 * 2048**3 / median(times) / 1e9
