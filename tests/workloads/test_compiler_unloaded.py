"""Shipped workloads are captured without PyTorch's compiler, whose import takes as long as that of PyTorch."""

import subprocess
import sys

import pytest
import torch

from pipeline.paths import project_dir
from pipeline.workloads import compiler_unloaded as module
from pipeline.workloads.compiler_unloaded import COMPILER, OPTIMIZERS, SHIELDED, compiler_unloaded

RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))

CAPTURES = """
import sys
from pipeline.graph.capture import capture
from tests.workloads.small import SMALL, small

changes = [{}, {"mode": "inference"}, {"optimizer": "sgd"}, {"optimizer": "adagrad", "dtype": "fp16"}]
cases = [(name, change) for name in SMALL for change in changes]
first = [capture(small(name, **change), 4) for name, change in cases]
assert "torch._dynamo" not in sys.modules
import torch._dynamo
for (name, change), one in zip(cases, first, strict=True):
    again = capture(small(name, **change), 4)
    assert one.table.equals(again.table), (name, change)
    assert one.memory == again.memory, (name, change)
print(len(first), "steps are equal")
"""


@pytest.mark.skipif(RELEASE < (2, 13), reason="older PyTorch loads its compiler when a recording ends")
def test_no_shipped_workload_loads_the_compiler_and_its_graph_is_the_same_with_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CAPTURES], cwd=project_dir(), capture_output=True, text=True, check=False
    )
    assert done.stdout == "60 steps are equal\n", done.stderr[-600:]


def test_pytorch_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    functions, steps = module._to_shield(), [kind.step for kind in OPTIMIZERS]
    assert len(functions) > 100
    shielded = [hasattr(each, SHIELDED) for each in functions]
    with pytest.raises(KeyError), compiler_unloaded():
        assert all(hasattr(each, SHIELDED) for each in functions)
        assert all(kind.step is not step for kind, step in zip(OPTIMIZERS, steps, strict=True))
        raise KeyError
    assert [hasattr(each, SHIELDED) for each in functions] == shielded
    assert [kind.step for kind in OPTIMIZERS] == steps


def test_a_loaded_compiler_shields_as_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, COMPILER, sys)
    before = [getattr(each, SHIELDED, None) for each in module._to_shield()]
    with compiler_unloaded():
        assert [getattr(each, SHIELDED, None) for each in module._to_shield()] == before
        assert all(kind.step.__name__ == "step" for kind in OPTIMIZERS)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_update_as_always(kind: type[torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch) -> None:
    def updated() -> torch.Tensor:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = kind([weight], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (weight * torch.arange(3.0)).sum().backward()
            optimizer.step()
        assert torch.is_grad_enabled()
        return weight.detach()

    expected = updated()
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    with compiler_unloaded():
        found = updated()
    assert torch.equal(found, expected) and not torch.equal(found, torch.ones(3))
