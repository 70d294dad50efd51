"""Collectives over NVLink: fitted curves, which calls they answer, and what other GPUs take from them."""

import numpy as np
import pandas as pd
import pytest

from evaluation.training.collective_fit import write_curves
from pipeline.answers.kernel_predictor import load_predictor
from pipeline.errors import PackError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.bandwidth import BandwidthCurve
from pipeline.kernels.collective_bandwidth import (
    CollectiveModel,
    collective_model,
    read_curves,
)


def calls(op="all_reduce", ranks=8, size=2**26):
    return pd.DataFrame([{"family": "collective", "op": op, "ranks": ranks, "bytes": size, "phase": "backward"}])


def test_a_call_takes_its_operation_and_the_nearest_ranks():
    spec = load_gpu("H200")
    flat = {n: BandwidthCurve.flat(100.0, 10.0 * n) for n in (2, 8)}
    model = CollectiveModel(spec, spec, {"all_reduce": flat, "all_to_all": {2: BandwidthCurve.flat(100.0, 1.0)}})
    table = pd.concat(
        [calls("nccl:all_reduce", 3, 0), calls("allreduce", 7, 0), calls("alltoall_base", 8, 0), calls("broadcast")],
        ignore_index=True,
    )
    assert model.covers(table).tolist() == [True, True, True, False]
    assert model.predict(table).kernel[:3].tolist() == [20.0, 80.0, 1.0]
    assert not model.covers(calls(ranks=1)).any()


def test_more_bytes_and_slower_links_never_take_less():
    sizes = [2**i for i in range(8, 31)]
    for gpu in ("A100-SXM4-80GB", "H200", "V100-SXM2-32GB"):
        model = collective_model(load_gpu(gpu))
        for op in model.curves:
            for ranks in (2, 4, 8):
                table = pd.concat([calls(op, ranks, size) for size in sizes], ignore_index=True)
                assert np.all(np.diff(model.predict(table).kernel) >= 0)
    fast, slow = (
        CollectiveModel(load_gpu(gpu), load_gpu("A100-SXM4-80GB"), collective_model(load_gpu("A100-SXM4-80GB")).curves)
        for gpu in ("A100-SXM4-80GB", "V100-SXM2-32GB")
    )
    assert slow.predict(calls()).kernel[0] > fast.predict(calls()).kernel[0]


def test_gpus_say_where_their_curves_come_from():
    assert collective_model(load_gpu("H200")).evidence == "pack"
    assert collective_model(load_gpu("V100-SXM2-32GB")).evidence == "transferred"
    assert collective_model(load_gpu("T4")) is None
    found = load_predictor(load_gpu("H200")).predict(pd.concat([calls(), calls("broadcast")], ignore_index=True))
    assert found["evidence"].tolist() == ["pack", "roofline"]
    # 64 MiB over eight H200: NCCL reaches most of what NVLink carries, and no more
    bus = 2**26 * 1.75 / found["kernel_us"][0] / 1e3
    assert 0.5 * 450 < bus < 450


def test_curves_survive_the_disk_and_damage_is_named(tmp_path):
    path = tmp_path / "collectives.json"
    curves = {"H200": {"all_reduce": {8: BandwidthCurve.flat(300.0, 16.0)}}}
    write_curves(path, curves, {"source": "test"})
    assert read_curves(path) == curves
    broken = tmp_path / "broken.json"
    broken.write_text(path.read_text()[:50])
    with pytest.raises(PackError, match="not readable"):
        read_curves(broken)
    other = tmp_path / "other.json"
    other.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(PackError, match="format 9"):
        read_curves(other)
