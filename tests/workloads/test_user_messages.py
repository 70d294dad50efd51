"""What a user reads when their own module is wrong, and what is reported beside the answer when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.graph.capture import capture
from pipeline.graph.graph_file import read_graph, write_graph
from pipeline.graph.step_modules import AS_WRITTEN
from pipeline.graph.table import Graph
from pipeline.question.question import expand
from tests.workloads.small import written_module

MODULE = """
import torch
from torch import nn
from pipeline.workloads.training_step import Step

def made(config, device, model, *batch):
    return Step([model], [batch], lambda *b: model(b[0]), lambda o, *b: o.float().sum(), device, config)

def layers(device, width=16):
    with torch.device(device):
        return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))

def plain(config, batch_size, device):
    width = config["options"].get("width", 16)
    return made(config, device, layers(device, width), torch.rand(batch_size, 16))

def late(config, batch_size, device):
    model = layers(device)
    def forward(x):
        return model(x) * config["options"]["scale"]
    return Step([model], [(torch.rand(batch_size, 16),)], forward, lambda o, x: o.sum(), device, config)

def spread(config, batch_size, device):
    return made(config, device, layers(device, **config["options"]), torch.rand(batch_size, 16))

def nested(config, batch_size, device):
    return made(config, device, layers(device, config["options"]["of"]["width"]), torch.rand(batch_size, 16))

def fixed(config, batch_size, device):
    return made(config, device, layers(device), torch.rand(8, 16))

def tokens(config, batch_size, device):
    return made(config, device, layers(device), torch.rand(batch_size * 5, 16))

def compiled(config, batch_size, device):
    return made(config, device, torch.compile(layers(device)), torch.rand(batch_size, 16))

def forgotten(config, batch_size, device):
    return made(config, device, nn.Linear(16, 4), torch.rand(batch_size, 16))

def forgotten_table(config, batch_size, device):
    return made(config, device, nn.Embedding(30, 4), torch.randint(30, (batch_size,)))

def forgotten_tensor(config, batch_size, device):
    model = layers(device)
    return Step([model], [(torch.rand(batch_size, 16),)], lambda x: model(x) + torch.rand(4), lambda o, x: o.sum(),
                device, config)

def mismatch(config, batch_size, device):
    with torch.device(device):
        model = nn.Sequential(nn.Linear(16, 8), nn.Linear(16, 4))
    return made(config, device, model, torch.rand(batch_size, 16))

def looped(config, batch_size, device, half=False):
    model = layers(device).half() if half else layers(device)
    batch = torch.rand(batch_size, 16).half() if half else torch.rand(batch_size, 16)
    def procedure(batch, optimizers):
        model(batch[0]).sum().backward()
    return Step([model], [(batch,)], None, None, device, config, procedure=procedure)

def halved(config, batch_size, device):
    return looped(config, batch_size, device, config["dtype"] == "fp16")

def too_few(config):
    pass

NUMBER = 3
"""


module = written_module("mine_with_faults", MODULE)


def captured(target: str, batch_size: int = 8, *options: str) -> Graph:
    target = target if ":" in target else f"mine_with_faults:{target}"
    given = [f"model.{option}" for option in (f"target={target}", *options)]
    (point,) = expand(["model=custom", f"batch_size={batch_size}", *given])
    return capture(point.section("model"), point.batch_size)


def refused(target: str, *given: object) -> str:
    with pytest.raises(InputError) as error:
        captured(target, *given)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(MODULE.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    "function, option, unread",
    [
        ("plain", "options.width=32", []),
        ("plain", "options.widht=32", ["model.options.widht"]),
        ("plain", "seq_len=64", ["model.seq_len"]),
        ("plain", "optimizer=adam", []),
        ("late", "options.scale=2", []),
        ("spread", "options.width=32", []),
        ("nested", "options.of={width:32,deep:3}", ["model.options.of.deep"]),
    ],
)
def test_options_that_a_step_never_read_are_named(
    function: str, option: str, unread: list[str]
) -> None:
    said = captured(function, 8, option).warnings
    assert [text.partition(":")[0] for text in said] == unread


def test_a_loop_in_full_precision_is_named_and_one_that_halves_its_model_is_not() -> None:
    (text,) = captured("looped", 8, "dtype=fp16", "optimizer=none").warnings
    assert text.startswith("model.dtype: ")
    assert text.endswith("use `with step.autocast():` in its procedure")
    halved = captured("halved", 8, "dtype=fp16", "optimizer=none")
    assert halved.warnings == () and halved.computed == {"dtype": "fp16"}


def test_a_loop_that_updates_by_itself_is_said_to_and_options_without_effect_are_named() -> None:
    options = ("dtype=bf16", "foreach=false", "memory_format=channels_last", "optimizer=adam")
    graph = captured("looped", 8, *options)
    assert graph.computed == {"dtype": "default", "optimizer": "the step's own"}
    named = sorted(text.partition(":")[0] for text in graph.warnings)
    assert named == [f"model.{text.partition('=')[0]}" for text in options]


def test_a_step_that_ignores_the_batch_size_is_refused_unless_it_has_it_by_chance() -> None:
    assert captured("fixed", 8).warnings == ()
    text = refused("fixed", 32)
    assert "batch_size=32 changes nothing" in text and "(8, 16)" in text
    assert captured("tokens", 8).warnings == (), "five tokens a sample, joined in one dimension"


def test_compiled_code_is_reported_where_the_step_calls_it(tmp_path: Path) -> None:
    graph = captured("compiled")
    assert graph.warnings == (AS_WRITTEN,)
    write_graph(graph, tmp_path / "graph.parquet")
    assert read_graph(tmp_path / "graph.parquet").warnings == graph.warnings
    code = MODULE + "\n@torch.compile\ndef cube(x):\n    return x ** 3\n"
    (tmp_path / "compiled_at_import.py").write_text(code)
    assert captured("compiled_at_import:plain").warnings == ()


@pytest.mark.parametrize("function", ["forgotten", "forgotten_table"])
def test_modules_on_the_cpu_get_their_remedy(function: str) -> None:
    assert refused(function).endswith(
        "all modules are on the CPU: create them inside `with torch.device(device):`"
    )


def test_a_tensor_on_the_cpu_gets_its_remedy_and_its_line() -> None:
    text = refused("forgotten_tensor")
    assert (
        f"in mine_with_faults.py, line {line_of('torch.rand(4)')}" in text
        and "device=x.device" in text
    )


def test_an_ordinary_error_is_not_blamed_on_the_meta_device() -> None:
    text = refused("mismatch")
    assert "its code fails: RuntimeError" in text and "meta" not in text
    assert text.endswith(f"in mine_with_faults.py, line {line_of('lambda *b: model(b[0])')}")


def test_another_signature_is_shown_beside_the_one_that_is_called() -> None:
    text = refused("too_few")
    assert (
        "called as too_few(config, batch_size, device)" in text
        and "defined as too_few(config)" in text
    )


def test_a_function_that_is_missing_is_shown_with_those_that_exist() -> None:
    said = "has no plian: did you mean 'plain'? it defines made, layers, plain, late"
    assert said in refused("plian")


@pytest.mark.parametrize(
    "text, says",
    [
        ("import torch\nimport numppy\n", "no module 'numppy', which it imports in {0}.py, line 2"),
        (
            "\n\ndef (:\n",
            "{0} cannot be imported: SyntaxError: invalid syntax ({0}.py, line 3)",
        ),
        (
            "import torch\nx = torch.foo\ndef make(c, b, d): pass\n",
            "AttributeError: module 'torch' has no attribute 'foo' in {0}.py, line 2",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_says_why_and_where(
    tmp_path: Path, text: str, says: str
) -> None:
    name = f"faulty_{abs(hash(text)) % 10_000_000}"
    (tmp_path / f"{name}.py").write_text(text)
    assert says.format(name) in refused(f"{name}:make")
