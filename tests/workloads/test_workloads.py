"""Workloads: published sizes, options, and real steps on the CPU."""

import pytest
import torch

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.workloads import make_step
from tests.commands import python
from tests.workloads.small import config_of, refusal


@pytest.mark.parametrize(
    "name, millions",
    [
        ("resnet50", 25.557),
        ("inception_v3", 27.161),
        ("bert_large", 336.2),
        ("gpt2_large", 774.0),
        ("opt_13", 1315.8),
        ("dlrm_mlperf", 96.1e3 / 4),  # tables of 96 GB
    ],
)
def test_parameter_counts_are_the_published_ones(name, millions):
    step = make_step(config_of(name), 1, "meta")
    numbers = sum(p.numel() for p in step.parameters()) + sum(t.numel() for t in step.in_kernel)
    assert numbers / 1e6 == pytest.approx(millions, rel=1e-3 if "dlrm" in name else 2e-4)


@pytest.mark.parametrize("embedding", ["fused", "joint_sparse", "sparse"])
def test_all_embeddings_learn_the_same(embedding):
    """Ways to apply SGD to the rows that a batch used, against dense gradients of the tables."""
    sizes = {"rows": 30, "tables": 2, "dim": 8, "lookups": 3}
    config = config_of("dlrm_ddp", bottom_mlp=[4, 8], top_mlp=[8, 1], **sizes)
    steps = []
    for kind in ("dense", embedding):
        torch.manual_seed(0)
        steps.append(make_step({**config, "embedding": kind}, 8, "cpu"))
    plain, other = (step.modules[0] for step in steps)
    for part in ("top", "bottom"):
        getattr(other, part).load_state_dict(getattr(plain, part).state_dict())
    tables = [bag.weight.data for bag in plain.bags]
    before = torch.cat(tables)
    joint = other.fused if other.joint is None else other.joint.weight.data
    kept = [bag.weight.data for bag in other.bags] if joint is None else joint.chunk(2)
    for own, rows in zip(kept, tables, strict=True):
        own.copy_(rows)
    for step in steps:
        step.run(0)
    assert not torch.equal(torch.cat(tables), before)
    torch.testing.assert_close(torch.cat(kept), torch.cat(tables))


@pytest.mark.parametrize(
    "option, value", [("optimizer", "lion"), ("dtype", "fp8"), ("embedding", "none")]
)
def test_unknown_options_list_the_choices(option, value):
    with pytest.raises(UnknownNameError, match=f"model.{option}.*choose one of"):
        make_step(config_of("dlrm_small", **{option: value}), 8, "meta")


@pytest.mark.parametrize("batch", [0, 2.5, "8", True])
def test_batch_sizes_are_whole_and_positive(batch):
    with pytest.raises(ConfigError, match="batch_size"):
        make_step(config_of("dlrm_small"), batch, "meta")


def test_tables_may_come_from_a_file(tmp_path, monkeypatch):
    path = tmp_path / "tables.json"
    path.write_text('[{"num_embeddings": 10, "pooling_factor": 2.4}, {"num_embeddings": 7}]')

    def made(file, **changes):
        return make_step(config_of("dlrm_open_source", table_configs=file, **changes), 4, "meta")

    assert made(str(path), tables=[0, 1]).in_kernel[0].shape == (17, 128)
    monkeypatch.chdir(tmp_path)
    for file, says in (
        ("nowhere.json", f"file in {tmp_path} or .*"),
        ("/nowhere.json", r"file .*"),
    ):
        with pytest.raises(ConfigError, match=f"no readable JSON {says}No such file"):
            made(file)


@pytest.mark.parametrize(
    "name, changes, says",
    [
        ("transformer", {"layers": 0}, "model=transformer: these sizes contradict each other"),
        ("transformer", {"heads": 7}, "model=transformer: these sizes contradict each other"),
        ("gpt2_large", {"seq_len": 4096}, "positions"),
    ],
)
def test_sizes_that_do_not_fit_are_named_in_one_line(name, changes, says):
    assert says in refusal(ConfigError, name, **changes)


def test_importing_the_package_loads_no_torch():

    modules = "pipeline.workloads, pipeline.graph.device_calls, pipeline.graph.execution_trace"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert python(code).returncode == 0
