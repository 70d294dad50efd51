"""The training steps that a campaign measures, the most valuable first, and the configurations of their models.

Model files are flat: `key: value` with numbers, words and lists in brackets. The parser here reads only this format, so
that a campaign needs only torch, numpy, pandas and pyarrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.paths import config_dir
from pipeline.question.options import with_defaults

FIRST_TRACE_BYTES, OTHER_TRACE_BYTES = 1_100_000, 350_000
"""Largest size in bytes of the compressed traces of a unit: a workload's first unit, and any other unit. A folder is
shared in a repository: with these values the whole grid takes about 50 MB."""

DLRM_BATCHES, IMAGE_BATCHES = (2048, 512, 4096, 1024), (32, 64, 16)
"""Batch sizes of DLRM and of image models, the most valuable first."""


@dataclass(frozen=True)
class Grid:
    """Steps of one workload. Tuples are sorted from most to least valuable; the first entry is the pipeline's default.

    - `tiny` holds the overrides of a trial; None leaves the workload out of trials.
    - `seconds` is the time of a unit on a data-centre GPU, model building and profiling included.
    - `iterations` is the number of profiled steps that fit the space of a first trace. With more iterations, a step
      would be profiled twice. One step of ResNet-50 takes 106 kB, one of BERT-Large 570 kB (compressed, torch 2.11 for
      CUDA 13).
    """

    batches: tuple[int, ...]
    seconds: float
    dtypes: tuple[str, ...] = ("default", "tf32")
    options: tuple[Mapping[str, Any], ...] = ({},)
    iterations: int = 10
    tiny: Mapping[str, Any] | None = None


_DLRM_OPTIONS: tuple[Mapping[str, Any], ...] = tuple(
    {"embedding": e} for e in ("joint_sparse", "sparse", "dense")
)
"""Embedding variants of DLRM. `fused` is left out: it is an operator of FBGEMM, which campaigns do not have. A measured
substitute under this name would be compared with predictions of the real operator."""
_TINY_DLRM = {
    "bottom_mlp": [16, 16],
    "top_mlp": [32, 1],
    "dim": 16,
    "rows": 500,
    "tables": 2,
}
_TINY_LANGUAGE = {
    "width": 32,
    "layers": 1,
    "heads": 2,
    "vocabulary": 100,
    "seq_len": 16,
    "positions": 16,
}
_LARGE = ("default", "tf32", "bf16")

GRIDS: Mapping[str, Grid] = {
    "dlrm_default": Grid(DLRM_BATCHES, 8, options=_DLRM_OPTIONS, tiny=_TINY_DLRM),
    "dlrm_ddp": Grid(DLRM_BATCHES, 6, options=_DLRM_OPTIONS, tiny=_TINY_DLRM),
    "dlrm_mlperf": Grid(DLRM_BATCHES, 12, options=_DLRM_OPTIONS[:2], tiny=_TINY_DLRM),
    "resnet50": Grid(IMAGE_BATCHES, 9, _LARGE, iterations=8, tiny={"image_size": 32}),
    "bert_large": Grid(
        (2, 8),
        14,
        _LARGE,
        ({"optimizer": "none"}, {}),
        2,
        _TINY_LANGUAGE,
    ),
    "transformer": Grid((64, 32), 9, _LARGE, tiny=_TINY_LANGUAGE),
    "inception_v3": Grid(IMAGE_BATCHES, 11, _LARGE, iterations=5),
    "gpt2_large": Grid(
        (1, 4),
        20,
        _LARGE,
        ({"optimizer": "none"}, {}),
        2,
        _TINY_LANGUAGE,
    ),
    "gnmt": Grid(
        (64, 128), 10, _LARGE, iterations=6, tiny={"width": 16, "vocabulary": 100, "seq_len": 8}
    ),
    "dcgan": Grid((64, 128), 8, _LARGE, tiny={"width": 4, "noise": 8}),
}
"""The grid of the paper (Lin et al.), the five workloads of Surfer, BERT and GPT-2. Language models are also measured
without an optimizer."""

TINY_BATCHES = {"dlrm": (16, 32), "other": (2,)}
"""Batch sizes of a trial."""
TINY_SECONDS = 1.0
"""Estimated seconds of a unit in a trial."""

_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False, "???": "???"}
"""Values of words; `???` marks a value that must be given, as in Hydra."""


@dataclass(frozen=True)
class StepPlan:
    """One training step to measure. `overrides` change the model's configuration; `variant` names them in the tables.

    `first` marks the first batch size of a variant in the default precision; the other batch sizes and dtypes share its graph.
    """

    model: str
    batch_size: int
    overrides: Mapping[str, Any]
    rank: float
    seconds: float
    iterations: int
    first: bool = True

    @property
    def trace_bytes(self) -> int:
        """Bytes that its traces may take; first steps get more than other batch sizes and dtypes."""
        return FIRST_TRACE_BYTES if self.first else OTHER_TRACE_BYTES

    @property
    def variant(self) -> str:
        """`default`, or the overrides that change the result, in the format of grid-point names (`config.Point`)."""
        shown = {
            key: value
            for key, value in self.overrides.items()
            if key in ("embedding", "optimizer", "dtype")
        }
        return "_".join(f"{key}-{value}" for key, value in sorted(shown.items())) or "default"

    @property
    def unit(self) -> str:
        """Name of the unit."""
        return f"steps/{self.model}/{self.variant}/b{self.batch_size}"

    def config(self) -> dict[str, Any]:
        """The model's configuration with the overrides.

        Raises:
            UnknownNameError: the model does not exist.
        """
        config = load_model(self.model)
        # drop tiny overrides of keys that the model does not have
        return config | {key: value for key, value in self.overrides.items() if key in config}


def plans(tiny: bool = False) -> list[StepPlan]:
    """All steps, the most valuable first: every workload once, then more batch sizes, variants and dtypes."""
    steps = []
    for model, grid in GRIDS.items():
        for o, d, b in product(
            *(range(len(axis)) for axis in (grid.options, grid.dtypes, grid.batches))
        ):
            rank = b + 1.5 * o + (2.5 if d else 0.0) + d
            overrides = dict(grid.options[o]) | ({"dtype": grid.dtypes[d]} if d else {})
            first = not d and not b
            steps.append(
                StepPlan(
                    model, grid.batches[b], overrides, rank, grid.seconds, grid.iterations, first
                )
            )
    return sorted(filter(None, map(_tiny, steps)) if tiny else steps, key=lambda plan: plan.rank)


def _tiny(plan: StepPlan) -> StepPlan | None:
    """The plan in a trial, at a size that is fast on a CPU; None if trials leave it out.

    A trial has the first variant of each workload, with the batch sizes of `TINY_BATCHES`.
    """
    batches = TINY_BATCHES["dlrm" if plan.model.startswith("dlrm") else "other"]
    grid = GRIDS[plan.model]
    # the rank of the first variant is the index of its batch size
    if grid.tiny is None or plan.overrides != dict(grid.options[0]) or plan.rank >= len(batches):
        return None
    overrides = {**grid.tiny, **plan.overrides}
    size = batches[round(plan.rank)]
    return replace(plan, batch_size=size, overrides=overrides, seconds=TINY_SECONDS, iterations=2)


def load_model(name: str) -> dict[str, Any]:
    """The configuration of a model.

    Raises:
        UnknownNameError: the model does not exist; the message lists the names.
        ConfigError: the file is not flat YAML.
    """
    folder = config_dir() / "model"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise UnknownNameError("model", name, [file.stem for file in folder.glob("*.yaml")])
    try:
        import yaml
    except ImportError:
        return with_defaults(parse(path.read_text(), path))
    return with_defaults(yaml.safe_load(path.read_text()))


def parse(text: str, where: Path | str = "config") -> dict[str, Any]:
    """Parse flat YAML: keys, scalars, lists and empty maps in brackets, comments; lists may span several lines.

    Raises:
        ConfigError: a line is neither a comment nor `key: value`.
    """
    plain = "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines())
    joined = re.sub(r"\[[^\]]*\]", lambda bracket: " ".join(bracket.group().split()), plain)
    result: dict[str, Any] = {}
    for line in filter(None, map(str.rstrip, joined.splitlines())):
        match = re.fullmatch(r"(\w+):\s*(.*)", line)
        if match is None:
            raise ConfigError(f"{where}: cannot read {line!r} without PyYAML; install PyYAML")
        result[match.group(1)] = _value(match.group(2))
    return result


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?", text):
        return float(text) if re.search(r"[.eE]", text) else int(text)
    if text.startswith("[") and text.endswith("]"):
        return [_value(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    if text == "{}":
        return {}
    return json.loads(text) if text.startswith('"') else text.strip("'")
