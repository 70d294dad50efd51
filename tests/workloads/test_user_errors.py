"""Errors of the user's own step name its line, and what to change; what the step prints is no part of an answer."""

from __future__ import annotations

import json
import traceback

import pytest

from pipeline.errors import InputError
from pipeline.graph.capture import capture
from pipeline.question.question import expand
from pipeline.workloads.user_errors import place_in_user_code
from tests.commands import Steptime
from tests.workloads.small import written_module

MODULE = """
import torch
from torch import nn
from pipeline.workloads.training_step import Step

def linear(device):
    with torch.device(device):
        return nn.Linear(8, 8)

def given(config, batch_size, device):
    model, x = linear(device), torch.rand(batch_size, 8)
    usual = {"modules": [model], "pool": [(x,)], "forward": lambda x: model(x), "loss": lambda o, x: o.sum(), "config": config}
    changed = {
        "vector": {"loss": lambda o, x: o}, "detached": {"forward": lambda x: model(x).detach()},
        "lonely": {"loss": lambda o: o.sum()}, "lossless": {"loss": lambda o, x: None}, "number": {"loss": 3},
        "bare": {"pool": (x,)}, "arrays": {"pool": [(x.numpy(),)]}, "none": {"pool": [(x, None)]},
        "alone": {"modules": model}, "named": {"procedure": "nope"}, "idle": {"forward": None},
        "inference": {"forward": None, "procedure": lambda b, o: None, "config": {"mode": "inference"}},
    }[config["options"]["kind"]]
    return Step(device=device, **usual | changed)

def missing(config, batch_size, device):
    width = config["options"]["width"]

def elsewhere(config, batch_size, device):
    width = config["width"]

def repeated(config, batch_size, device):
    model = linear(device)
    kind = config["options"]["kind"]
    procedure = {
        "batch": lambda batch: None, "two": lambda x, y: model(x).sum().backward(), "three": lambda x, y, z: None,
        "attribute": lambda batch, optimizers: batch.sum(), "right": lambda batch, optimizers: model(batch[0]).sum().backward(),
    }[kind]
    return Step([model], [(torch.rand(batch_size, 8),)], None, None, device, config, procedure=procedure)

def noisy(config, batch_size, device):
    print("building")
    model = linear(device)
    def forward(x):
        print("running")
        return model(x)
    return Step([model], [(torch.rand(batch_size, 8),)], forward, lambda o, x: o.sum(), device, config)
"""


module = written_module("my_faults", MODULE)


@pytest.mark.parametrize(
    ("function", "option", "says"),
    [
        ("given", "kind=vector", "loss must return one number"),
        ("given", "kind=none", "a tuple that holds NoneType"),
        ("given", "kind=named", "Step: procedure must be a function, not str"),
        ("given", "kind=alone", "Step: modules must be a list of torch modules"),
        ("given", "kind=idle", "Step: forward is None: give a function"),
        (
            "given",
            "kind=inference",
            "forward is None: give a function (a procedure may replace it, in training alone)",
        ),
        ("given", "kind=detached", "must return a tensor that depends on trainable parameters"),
        ("given", "kind=lonely", "a Step calls forward(*batch) and loss(output, *batch)"),
        ("missing", "widht=3", "no option 'width' was given: did you mean 'widht'? give model."),
        (
            "elsewhere",
            "width=3",
            "there is no model.width: a step's own options are in config['options']",
        ),
        ("given", "kind=bare", "[(x, y)], or [(x,)] for one tensor"),
        ("repeated", "kind=batch", "it calls procedure(batch, optimizers), with the tuple"),
        ("repeated", "kind=three", "yours is defined as procedure(x, y, z)"),
        ("repeated", "kind=two", "must be Tensor, not tuple in my_faults.py, line"),
        ("repeated", "kind=attribute", "(a Step calls procedure(batch, optimizers)"),
    ],
)
def test_mistakes_of_a_step_get_their_remedy(function: str, option: str, says: str) -> None:
    options = f"model=custom model.target=my_faults:{function} model.options.{option}"
    (point,) = expand([*options.split(), "batch_size=4"])
    with pytest.raises(InputError) as error:
        capture(point.section("model"), point.batch_size)
    assert says in str(error.value) and "\n" not in str(error.value)
    assert "without a GPU" not in str(error.value), "CUDA raises these errors too"


def test_what_a_step_prints_is_no_part_of_a_json_answer(steptime: Steptime) -> None:
    given = ["gpu=V100", "model=custom", "model.target=my_faults:noisy", "batch_size=4"]
    code, out, errors = steptime("predict", "--json", *given)
    assert code == 0 and json.loads(out)["batch_size"] == 4
    assert "building" in errors and "running" in errors


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (["/me/net.py", "/me/lib/site-packages/torch/nn/linear.py"], " in net.py, line 1"),
        (["/me/net.py", "/usr/lib/python3/dist-packages/torch/nn.py"], " in net.py, line 1"),
        (
            ["/me/net.py", "/opt/env/lib/site-packages/timm/models/_factory.py"],
            " in net.py, line 1 (timm/models/_factory.py, line 1)",
        ),
        (["/opt/env/lib/site-packages/mynet/steps.py"], " in mynet/steps.py, line 1"),
        (["/opt/env/lib/site-packages/torch/nn/module.py"], ""),
        (["/tmp/ipykernel_77/2101.py"], " in a notebook cell, line 1"),
        (["<ipython-input-3-0a>"], " in a notebook cell, line 1"),
    ],
)
def test_the_line_is_the_users_own_wherever_libraries_are_installed(
    files: list[str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = traceback.StackSummary.from_list([(file, 1, "f", "") for file in files])
    monkeypatch.setattr(traceback, "extract_tb", lambda tb: frames)
    assert place_in_user_code(ValueError()) == place
