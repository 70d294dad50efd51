"""Every workload of the zoo at a size that is captured in a fraction of a second, and steps of users' own modules."""

import sys

import pytest

from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.question.options import workload_values
from pipeline.workloads import make_step

TOKENS = {"width": 32, "heads": 2, "layers": 1, "vocabulary": 50, "positions": 16, "seq_len": 8}

SMALL = {
    "dlrm_default": {}, "dlrm_ddp": {}, "dlrm_mlperf": {}, "dlrm_mlperf_lin2022": {},
    "dlrm_nvidia": {"embedding": "fused"}, "dlrm_dcnv2": {"optimizer": "sgd"},
    "dlrm_open_source": {}, "dlrm_small": {"embedding": "fused"}, "resnet50": {"image_size": 32},
    "inception_v3": {}, "dcgan": {"width": 4}, "transformer": {**TOKENS, "positions": None},
    "gnmt": {"width": 16, "vocabulary": 50, "seq_len": 5}, "bert_large": TOKENS,
    "gpt": {**TOKENS, "dtype": "default", "precision": "autocast"},
    "llama": {
        **TOKENS, "kv_heads": None, "ffn_width": 64, "attention": "eager", "dtype": "default",
        "precision": "autocast",
    },
    "hstu": {
        "width": 32, "heads": 2, "head_width": 16, "layers": 1, "seq_len": 8, "candidates": 1,
        "lengths": "full", "rows": [50, 7, 20], "dim": 8, "dtype": "default",
    },
    "gpt2_large": TOKENS, "gpt3_xl": TOKENS, "gpt3_27": TOKENS, "opt_13": TOKENS,
}  # fmt: skip
"""Workload -> changes of its config."""


TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}
"""Options of a configuration of `transformers`."""


def config_of(name, /, **changes):
    """Content of a workload's file, changed."""
    return {**workload_values(name), **changes}


def small(name, **changes):
    """A small config of a workload, changed further."""
    return config_of(name, **{**SMALL[name], **changes})


LIKE_ANOTHER = (
    "dlrm_default", "dlrm_mlperf", "dlrm_mlperf_lin2022", "dlrm_nvidia", "dlrm_small",
    "inception_v3", "gpt3_xl", "gpt3_27",
)  # fmt: skip
"""Workloads whose options run through another's code; the tests try them only where they differ."""

FIRST = "dlrm_ddp"
"""The workload that tries every optimizer, dtype and lookup: all make them in one place, so the others try one of each."""

WITH_LOOPS_OF_THEIR_OWN = (FIRST, "dcgan", "bert_large")
"""One workload with a loss function, one with a procedure, one whose model gives the loss: what the loop's options touch."""


def options_of(name):
    """(option, value) pairs that make sense for a workload, besides its defaults."""
    if name in LIKE_ANOTHER:
        return [("mode", "train")]
    config, first = config_of(name), name == FIRST
    found = [("mode", "inference")]
    other = "sgd" if config["optimizer"] == "adam" else "adam"
    found += [("optimizer", value) for value in (("adagrad", "adam") if first else (other,))]
    found += [("dtype", value) for value in (("tf32", "bf16", "fp16") if first else ("bf16",))]
    found += [("foreach", False)] * first
    if name in WITH_LOOPS_OF_THEIR_OWN:
        found += [("copies", "pageable"), ("read_loss", "before_backward"), ("read_loss", "at_end")]
        found += [("optimizer", "none"), ("set_to_none", False)]
    if "attention" in config:
        found += [("attention", "fused")]
    if "seq_len" in config:
        found += [("seq_len", 3)]
    if "memory_format" in config:
        found += [("memory_format", "channels_last")]
    if "embedding" in config:
        kinds = ("fused", "joint_sparse", "sparse", "dense")
        found += [("embedding", value) for value in (kinds if first else kinds[1:2])]
        found += [("interaction", "fused")]
    return found


def written_module(name, text):
    """A fixture of a module of the user's, which every test of the file can name."""

    @pytest.fixture(autouse=True)
    def module(tmp_path, monkeypatch):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return module


def captured_custom(target, batch_size=4, **changes):
    """The graph of a step of the user's: `target` is `module:function`."""
    return capture(config_of("custom", target=target, **changes), batch_size)


def known_calls(graph, gpu=None):
    """The calls of a graph, all of known operators, with their names."""
    calls = map_calls(graph, gpu)
    assert unknown_operators(graph, calls) == {}
    names = graph.table.set_index("node_id")["name"].str.removeprefix("aten::")
    return calls.assign(name=calls["node_id"].map(names))


def step_on_meta(name, /, batch_size, **changes):
    return make_step(config_of(name, **changes), batch_size, "meta")


def refusal(error, name, /, batch_size=2, **changes):
    """The message, of one line, of a capture that is refused."""
    with pytest.raises(error) as raised:
        capture(config_of(name, **changes), batch_size)
    assert "\n" not in str(raised.value)
    return str(raised.value)
