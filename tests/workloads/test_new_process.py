"""What questions import, in a process that has imported nothing of it yet: it runs once, and each test reads what it said."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import Any

import pytest

from pipeline.paths import project_dir
from tests.commands import python

MODULES = {
    **dict.fromkeys(
        ("json", "yaml", "decimal", "scipy", "torchvision", "lightgbm"),
        "open('ran', 'a').write(__name__)\nraise RuntimeError('this file is not the library')\n",
    ),
    "sizes_of_mine": "WIDTH = 8\n",
    "step_of_mine": (
        "import json, decimal, yaml\n"
        "import torch\nfrom torch import nn\nfrom steptime import Step\n\n"
        "def step(config, batch_size, device):\n"
        "    from sizes_of_mine import WIDTH\n"  # a sibling, imported late
        "    from torch.distributed.fsdp import fully_shard\n"
        "    model = fully_shard(nn.Linear(WIDTH, WIDTH).cuda())\n"
        "    x = (torch.rand(batch_size, WIDTH),)\n"
        "    return Step([model], [x], lambda x: model(x).sum(), None, device, config)\n"
    ),
    "with_timm": "import timm\nraise ValueError(timm.is_model('resnet18'))\n",
}
"""Modules of a user, by name."""

ASKED = """
import sys
sys.path[:] = [p for p in sys.path if p]  # as the commands: `python -c` puts the folder first itself
early = "torch.distributed.fsdp" in sys.modules
from steptime import predict
own = predict("V100", "custom", model__target="step_of_mine:step", batch_size=8)
predict("V100", "dlrm_small")
loaded = {"timm", "torchvision", "transformers", "peft"} & {
    name.partition(".")[0] for name in sys.modules
}
import json, lightgbm, scipy
try:
    predict("V100", "custom", model__target="with_timm:make")
except Exception as error:
    refused = str(error)
told = {"early": early, "us": own.predicted_us, "warned": own.warnings, "loaded": [*loaded]}
print(json.dumps({**told, "refused": refused}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the process said of a step of one's own, of a shipped one, and of one that imports a library."""
    folder = tmp_path_factory.mktemp("mine")
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    options = {"PYTHONPATH": str(project_dir()), "STEPTIME_CACHE": str(folder / "cache")}
    done = python(ASKED, cwd=folder, env={**os.environ, **options})
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "ran": (folder / "ran").exists()}


def test_a_file_of_the_current_folder_does_not_stand_in_for_a_library(told: Any) -> None:
    assert told["us"] > 0 and not told["ran"]


def test_fully_shard_is_left_out_where_the_step_imports_it_first(told: Any) -> None:
    assert not told["early"]
    assert told["warned"][0].startswith("fully_shard: the step of one GPU"), told["warned"]


def test_only_a_question_about_a_library_imports_it(told: Any) -> None:
    assert not told["loaded"]


@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
def test_a_step_of_ones_own_may_import_a_library_whose_torchvision_is_for_cuda(told: Any) -> None:
    said = "with_timm cannot be imported: ValueError: True in with_timm.py, line 2"
    assert said in told["refused"]
