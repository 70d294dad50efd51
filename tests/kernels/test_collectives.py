"""Collectives: fitted curves and formulas, which calls they answer, and what other GPUs take from them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from evaluation.training.collective_fit import write_curves
from pipeline.answers.kernel_commands import predict_command
from pipeline.answers.kernel_predictor import load_predictor
from pipeline.errors import InputError, PackError, TableError
from pipeline.hardware.clusters import load_cluster, usual_cluster
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.collective_bandwidth import (
    PYTORCH_US,
    MeasuredCurves,
    TimeCurve,
    collective_model,
    read_curves,
)
from pipeline.kernels.collective_formulas import OPS, kinds


def calls(op="all_reduce", ranks=8, size=2**26, nodes=1):
    row = {
        "family": "collective",
        "op": op,
        "ranks": ranks,
        "nodes": nodes,
        "bytes": size,
        "phase": "backward",
    }
    return pd.DataFrame([row])


def time_us(model, *args, **kwargs):
    return float(model.predict(calls(*args, **kwargs)).kernel[0])


def bus_gb_per_s(model, ranks, size, factor):
    return factor * size / time_us(model, "all_reduce", ranks, size) / 1e3


def of(gpu, cluster=None, measured=None):
    spec = load_gpu(gpu)
    joined = usual_cluster(spec) if cluster == "auto" else cluster and load_cluster(cluster)
    return collective_model(spec, joined, measured)


def test_a_call_takes_its_operation_and_the_nearest_ranks():
    flat = {n: TimeCurve((1.0,), (10.0 * n,)) for n in (2, 8)}
    curves = {"all_reduce": flat, "all_to_all": {2: TimeCurve((1.0,), (1.0,))}}
    model = of("H200", None, [MeasuredCurves(load_gpu("H200"), "nvswitch", curves)])
    table = pd.concat(
        [
            calls("nccl:all_reduce", 3, 0),
            calls("allreduce", 7, 0),
            calls("alltoall_base", 8, 0),
            calls("broadcast"),
        ],
        ignore_index=True,
    )
    assert model.covers(table).tolist() == [True, True, True, False]
    assert model.predict(table).kernel[:3].tolist() == [20 + PYTORCH_US, 80 + PYTORCH_US, 1]
    assert not model.covers(calls(ranks=1)).any()


def test_a_curve_is_straight_between_sizes_and_goes_on_as_before():
    curve = TimeCurve((100.0, 200.0, 400.0), (10.0, 12.0, 20.0))
    sizes = np.array([1.0, 100.0, 150.0, 300.0, 800.0])
    assert curve.time_us(sizes).tolist() == [10.0, 10.0, 11.0, 16.0, 36.0]
    # on a link of half the rate, half the bytes take as long
    assert curve.with_link(2.0).time_us(sizes / 2.0).tolist() == curve.time_us(sizes).tolist()


def test_topology_decides_not_the_sum_of_links():
    """V100 in a cube mesh reach 22.6, 85 and 134 GB/s with 2, 4 and 8 GPUs at 512 MiB (VIA-Research/vTrain)."""
    shipped, formula = of("V100-SXM2-16GB", "auto"), of("V100-SXM2-16GB", "auto", [])
    for ranks, factor, measured in ((2, 1.0, 22.6), (4, 1.5, 85.0), (8, 1.75, 134.0)):
        assert bus_gb_per_s(shipped, ranks, 2**29, factor) == pytest.approx(measured, rel=0.02)
        assert bus_gb_per_s(formula, ranks, 2**29, factor) == pytest.approx(measured, rel=0.2)
    assert shipped.evidence_of(calls()).tolist() == ["pack"]
    # behind the switches of a DGX-2, two reach what eight reach
    switched = of("V100-SXM2-32GB", "dgx2-v100")
    two, eight = (
        bus_gb_per_s(switched, ranks, 2**29, factor) for ranks, factor in ((2, 1.0), (8, 1.75))
    )
    assert 0.8 < two / eight < 1.1


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nccl:all_reduce", "all_reduce"),
        ("c10d::allreduce_", "all_reduce"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce", "broadcast"),
        ("alltoallv", "all_to_all"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("barrier", ""),
    ],
)
def test_names_of_nccl_are_known(name, op):
    assert kinds(np.array([name], dtype=object)).tolist() == [op]


@pytest.mark.parametrize("gpu", ["H200", "V100-SXM2-32GB", "T4"])
def test_more_bytes_more_nodes_and_slower_links_never_take_less(gpu):
    model = of(gpu, "auto")
    sizes = [2**i for i in range(8, 31, 2)]
    for op in OPS:
        for ranks, nodes in ((2, 1), (4, 1), (8, 1), (16, 2), (64, 8)):
            table = pd.concat([calls(op, ranks, size, nodes) for size in sizes], ignore_index=True)
            assert model.covers(table).all()
            assert np.all(np.diff(model.predict(table).kernel) >= 0), (op, ranks)
    assert time_us(model, ranks=16, nodes=2) > time_us(model, ranks=8, nodes=1)


def test_gpus_say_where_their_curves_come_from():
    assert of("T4") is None
    table = pd.concat([calls(), calls("broadcast")], ignore_index=True)
    predicted = load_predictor(load_gpu("H200")).predict(table)
    assert predicted["evidence"].tolist() == ["pack", "roofline"]
    # 64 MiB over eight H200: NCCL reaches most of what NVLink carries, and no more
    bus = 2**26 * 1.75 / predicted["kernel_us"][0] / 1e3
    assert 0.5 * 450 < bus < 450


def test_a_cluster_answers_for_every_operation_with_evidence():
    table = pd.concat(
        [calls(), calls("broadcast"), calls(ranks=16, nodes=2), calls(ranks=16)], ignore_index=True
    )
    table.loc[3, "nodes"] = np.nan  # sixteen ranks need two nodes
    spec = load_gpu("H100")
    predicted = load_predictor(spec, cluster=usual_cluster(spec)).predict(table)
    assert predicted["evidence"].tolist() == ["pack", "transferred", "roofline", "roofline"]
    assert predicted["kernel_us"][3] == predicted["kernel_us"][2] > predicted["kernel_us"][0]
    widths = predicted["p90_us"] / predicted["p10_us"]
    assert widths[0] < widths[1] < widths[2]


def test_a_ring_over_pcie_has_the_rate_of_the_host():
    model = of("T4", "pcie3", [])
    # 8 ranks send 2 x 7/8 of 256 MiB at 10 GB/s; hops and start are below a per cent
    assert time_us(model, "all_reduce", 8, 2**28) == pytest.approx(1.75 * 2**28 / 10e3, rel=0.01)
    assert model.evidence_of(calls()).tolist() == ["roofline"]


def test_a_thin_link_between_nodes_is_crossed_by_a_tree():
    # one NIC a node: four GPUs on two nodes sum in a tree, whose two halves cross once each
    thin = time_us(of("A100-PCIE-80GB", "pcie4"), "all_reduce", 4, 2**30, 2)
    assert thin == pytest.approx(2**30 / (0.9 * 0.95 * 12.5e3), rel=0.01)


def test_a_pair_with_a_bridge_is_nvlink_and_four_are_pcie():
    model = of("A100-PCIE-80GB", "pairs-a100")
    two, four = bus_gb_per_s(model, 2, 2**28, 1.0), bus_gb_per_s(model, 4, 2**28, 1.5)
    assert two > 150 and 15 < four < 30  # 194 and 23.6 GB/s were measured (microsoft/vidur)


def test_the_command_answers_collectives_in_a_cluster(tmp_path):
    source, out = tmp_path / "calls.parquet", tmp_path / "times.parquet"
    pd.concat([calls(), calls("send_recv", 2), calls(ranks=16, nodes=2)]).drop(
        columns=["family", "phase"]
    ).to_parquet(source)
    usual = predict_command("V100-SXM2-32GB", None, source, out)
    assert usual["rows"] == 3 and (tight := pd.read_parquet(out)["predicted_us"]).gt(0).all()
    predict_command("V100-SXM2-32GB", None, source, out, cluster="dgx2-v100")
    assert not np.allclose(pd.read_parquet(out)["predicted_us"], tight)
    with pytest.raises(InputError, match="unknown cluster 'dgx-2': did you mean"):
        predict_command("V100-SXM2-32GB", None, source, out, cluster="dgx-2")
    with pytest.raises(InputError, match="not T4"):
        predict_command("T4", None, source, out, cluster="dgx-h100")


def test_curves_survive_the_disk_and_damage_is_named(tmp_path):
    path = tmp_path / "collectives.json"
    curves = {"all_reduce": {8: TimeCurve((512.0, 1e9), (16.0, 3580.0))}}
    write_curves(path, [MeasuredCurves(load_gpu("H200"), "nvswitch", curves)], {"source": "test"})
    assert read_curves(path) == {"H200": {"nvswitch": curves}}
    path.write_text(path.read_text().replace("16 3580", "16"))
    read_curves.cache_clear()
    with pytest.raises(PackError, match="2 sizes and 1 times"):
        read_curves(path)


@pytest.mark.parametrize(
    "ranks, nodes, said",
    [(1, 1, "a collective needs 2 ranks"), (16, 1, "16 ranks on 1 nodes; a node of")],
)
def test_a_collective_has_two_ranks_and_no_more_than_its_nodes_hold(ranks, nodes, said, tmp_path):
    pd.DataFrame({"op": ["all_reduce"], "bytes": 1e6, "ranks": ranks, "nodes": nodes}).to_parquet(
        tmp_path / "in.parquet"
    )
    with pytest.raises(TableError, match=said):
        predict_command("H100", None, tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def in_cluster(gpu="H100", cluster="dgx-h100", measured=(), **changed):
    return collective_model(load_gpu(gpu), replace(load_cluster(cluster), **changed), measured)


@pytest.mark.parametrize(
    "op, ranks, groups, changed, used",
    [
        ("all_gather", 16, 1, {}, 8),
        ("all_reduce", 16, 1, {}, 8),
        (
            "all_gather",
            16,
            4,
            {},
            2,
        ),  # tensor parallel in fours: each group has a quarter of the NICs
        ("all_gather", 4, 1, {}, 2),  # two ranks of a node have the NICs beside them
        ("all_gather", 4, 1, {"nics_per_node": 16}, 4),
    ],
)
def test_ranks_send_through_their_own_share_of_the_nics(op, ranks, groups, changed, used):
    call = calls(op, ranks, 2**34, 2).assign(node_groups=groups)
    passes = 2 if op == "all_reduce" else 1
    wire = passes * (ranks - 1) / ranks * 2**34 / (0.95 * used * 50e3)
    assert in_cluster(**changed).predict(call).kernel[0] == pytest.approx(wire, rel=0.01)


@pytest.mark.parametrize(
    "asked, hop, hops",
    [
        (("all_gather", 8, 1), "latency_us", 7),
        (("all_gather", 16, 1), "latency_us", 7 + 2),  # beyond a ring of 8: up and down a tree
        (("all_reduce", 64, 2**34, 4), "nic_latency_us", 2 * 3),
        (("all_reduce", 64, 1, 4), "nic_latency_us", 2 * 2),  # a tree
    ],
)
def test_each_hop_of_a_ring_adds_its_latency(asked, hop, hops):
    models = [in_cluster("V100-SXM2-32GB", "dgx2-v100", **{hop: us}) for us in (1.0, 2.0)]
    assert np.diff([time_us(model, *asked) for model in models]) == pytest.approx(hops, rel=1e-4)


def test_a_curve_of_more_ranks_is_shorter_by_the_hops_that_fewer_ranks_save():
    flat = {"all_reduce": {8: TimeCurve((1.0,), (50.0,))}}
    curves = [MeasuredCurves(load_gpu("H100"), "nvswitch", flat)]
    model = in_cluster(measured=curves, latency_us=1.0)
    assert time_us(model) == 50 + PYTORCH_US and time_us(model, ranks=4) == 42 + PYTORCH_US
    assert time_us(model, "all_gather") == 43, "half as many as an all-reduce"


def test_a_card_of_the_same_chip_with_another_link_is_not_measured():
    """A card with half the link of the measured one is another card: 1.55 up and down, not 1.12."""
    card, curve = load_gpu("H200"), TimeCurve((1.0, 2e9), (1.0, 1e4))
    curves = [MeasuredCurves(card, "nvswitch", {"all_reduce": {8: curve}})]
    cut = replace(card, name="cut", nvlink_gb_per_s=card.nvlink_gb_per_s / 2)
    models = [collective_model(each, None, curves) for each in (replace(card, name="same"), cut)]
    assert [model.evidence for model in models] == ["pack", "transferred"]
    same_us, cut_us = (time_us(model, size=2**28) for model in models)
    assert cut_us == pytest.approx(2 * same_us, rel=0.01)


@pytest.mark.parametrize(
    "gpu, evidence, width", [("L40S", "transferred", 2.0), ("H100", "pack", 1.12)]
)
def test_a_curve_over_pcie_is_that_of_another_host_with_the_width_of_one(gpu, evidence, width):
    """The card of the curve, in the cluster that is usual for it: hosts differ by more than curves of NVLink do."""
    model, asked = of(gpu, "auto"), calls(ranks=2, size=2**28)
    times = model.predict(asked)
    assert model.evidence_of(asked).tolist() == [evidence]
    assert times.p90[0] / times.kernel[0] == pytest.approx(width, rel=0.02)
