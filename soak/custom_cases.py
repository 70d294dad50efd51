"""Modules of a user's own step that are broken: `model=custom model.target=mod:make_step`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from pipeline.answers.engine import engine
from pipeline.question.question import expand
from soak.damage import damaged
from soak.verdicts import Case
from soak.workplace import forget_everything

GOOD = """\
import torch
from pipeline.workloads.training_step import Step


def make_step(config, batch_size, device):
    model = torch.nn.Linear(8, 8, device=device)
    return Step([model], [(torch.rand(batch_size, 8),)], model, lambda output, x: output.sum(), device, config)
"""

HARMS: dict[str, tuple[str, str]] = {
    "no function": ("def make_step(", "def other("),
    "no callable": (
        "def make_step(config, batch_size, device):",
        "make_step = 5\ndef other(config, batch_size, device):",
    ),
    "syntax": ("import torch", "import torch ("),
    "indentation": ("    model", "  model"),
    "missing library": ("import torch\n", "import torch\nimport no_such_library_of_tomorrow\n"),
    "exit": ("import torch\n", "import torch\nimport sys\nsys.exit(3)\n"),
    "exit in the step": ("    model", "    raise SystemExit(0)\n    model"),
    "raise": ("    model", "    raise ValueError('two\\nlines')\n    model"),
    "raise empty": ("    model", "    raise RuntimeError\n    model"),
    "assert": ("    model", "    assert False\n    model"),
    "recursion": ("    model", "    make_step(config, batch_size, device)\n    model"),
    "arguments": ("(config, batch_size, device)", "(config)"),
    "more arguments": ("(config, batch_size, device)", "(config, batch_size, device, more)"),
    "returns None": ("return Step(", "Step("),
    "returns text": ("return Step(", "return 'step'; Step("),
    "on the CPU": ("device=device", "device='cpu'"),
    "no batch": ("torch.rand(batch_size, 8)", "torch.rand(7, 8)"),
    "wrong width": ("torch.rand(batch_size, 8)", "torch.rand(batch_size, 9)"),
    "no pool": ("[(torch.rand(batch_size, 8),)]", "[]"),
    "pool of None": ("[(torch.rand(batch_size, 8),)]", "None"),
    "batch of text": ("(torch.rand(batch_size, 8),)", "('x',)"),
    "no modules": ("Step([model]", "Step([]"),
    "modules None": ("Step([model]", "Step(None"),
    "loss of text": ("output.sum()", "'loss'"),
    "loss of many": ("output.sum()", "output"),
    "loss none": ("output.sum()", "None"),
    "loss detached": ("output.sum()", "output.sum().detach()"),
    "loss reads": ("output.sum()", "float(output.sum())"),
    "loss raises": ("output.sum()", "1 / 0"),
    "int model": ("torch.nn.Linear(8, 8, device=device)", "5"),
    "dtype": ("torch.rand(batch_size, 8)", "torch.zeros(batch_size, 8, dtype=torch.int64)"),
    "huge": ("torch.nn.Linear(8, 8, device=device)", "torch.nn.Linear(8, 1 << 50, device=device)"),
    "negative": ("torch.nn.Linear(8, 8, device=device)", "torch.nn.Linear(8, -1, device=device)"),
    "threads": (
        "    model",
        "    import threading; threading.Thread(target=print).start()\n    model",
    ),
    "shadow": ("import torch\n", "import torch\nimport numpy as torch2\n"),
    "cuda": ("    model", "    torch.zeros(2, device='cuda')\n    model"),
    "encoding": ("import torch\n", "# coding: no-such-encoding\nimport torch\n"),
    "NUL": ("import torch\n", "import torch\x00\n"),
}
"""Text of the good module, and what takes its place."""

FINE = ("threads", "shadow", "cuda")
"""Changes after which the module still makes its step."""

MAY = (
    "dtype",
    "no modules",
    "loss none",
    "recursion",
    "loss of many",
    "loss reads",
    "loss detached",
    "on the CPU",
)
"""Changes of which PyTorch decides."""


def prepare(folder: Path) -> Any:
    """The prediction of the good module."""
    return _predicted(folder, "soak_good", GOOD)


def _predicted(folder: Path, name: str, text: str | bytes, target: str = "") -> Any:
    path = folder / f"{name}.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    forget_everything()
    with (
        chdir(folder),
        patch.object(sys, "path", list(sys.path)),
        _forgotten(folder),
    ):
        target = target or f"{name}:make_step"
        point = expand(
            [
                "gpu=V100",
                "model=custom",
                f"model.target={target}",
                "batch_size=16",
                "predict.draws=32",
            ]
        )[0]
        found = engine().predict_one(point).whole()
        return [found.predicted_us, found.families_us, found.memory_bytes]


@contextmanager
def _forgotten(folder: Path) -> Iterator[None]:
    """The modules of a folder leave Python's memory with the block. Libraries stay: PyTorch cannot be imported twice."""
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


def case(good: Any, folder: Path, rng: Random) -> Case:
    """A broken module."""
    name = f"soak_{rng.randrange(10**9)}"
    draw = rng.random()
    if draw < 0.7:
        harm = rng.choice(sorted(HARMS))
        old, new = HARMS[harm]
        text = GOOD.replace(old, new, 1)
        assert text != GOOD
        must: Any = "accept" if harm in FINE else "either" if harm in MAY else "refuse"
        what: dict[str, Any] = {"truth": good} if harm in FINE else {"named": (name, "tep")}
        return Case(harm, lambda: _predicted(folder, name, text), must=must, **what)
    if draw < 0.85:
        harm, content = damaged(GOOD.encode(), rng)
        return Case(f"bytes {harm}", lambda: _predicted(folder, name, content))
    target = rng.choice(
        (
            "",
            ":",
            "x",
            f"{name}",
            f"{name}:",
            ":make_step",
            f"{name}.py:make_step",
            f"../{name}:make_step",
            "os:system",
            f"{name}:make_step:x",
            "torch:nn",
            "..:x",
            f"{name}..a:x",
            f"{name}:__doc__",
            "json:loads",
            "1:2",
            "µ:x",
            "builtins:exit",
            "pipeline:predict",
            f"{name}.make_step",
            "a b:c",
        )
    )
    return Case(
        f"target {target}".replace(name, "mod"),
        lambda: _predicted(folder, name, GOOD, target or "''"),
        must="refuse",
    )
