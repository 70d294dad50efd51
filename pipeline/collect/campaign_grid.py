"""The training steps that a campaign measures, the most valuable first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.collect.model_config import load_model

FIRST_TRACE_BYTES, OTHER_TRACE_BYTES = 1_100_000, 350_000
"""Space limit in bytes for the compressed traces of a unit: a workload's first unit, and any other unit. With these
values, ten first units and about fifteen others fill the archives."""

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
    dtypes: tuple[str, ...] = ("fp32", "tf32")
    options: tuple[Mapping[str, Any], ...] = ({},)
    iterations: int = 10
    tiny: Mapping[str, Any] | None = None


_DLRM_OPTIONS: tuple[Mapping[str, Any], ...] = tuple({"embedding": e} for e in ("joint_sparse", "sparse", "dense"))
"""Embedding variants of DLRM. `fused` is left out: it is an operator of FBGEMM, which campaigns do not have. A measured
substitute under this name would be compared with predictions of the real operator."""
_TINY_DLRM = {"bottom_mlp": [16, 16], "top_mlp": [32, 1], "dim": 16, "rows": 500, "tables": 2}
_TINY_LANGUAGE = {"width": 32, "layers": 1, "heads": 2, "vocabulary": 100, "seq_len": 16, "positions": 16}
_LARGE = ("fp32", "tf32", "bf16")

GRIDS: Mapping[str, Grid] = {
    "dlrm_default": Grid(DLRM_BATCHES, 8, options=_DLRM_OPTIONS, tiny=_TINY_DLRM),
    "dlrm_ddp": Grid(DLRM_BATCHES, 6, options=_DLRM_OPTIONS, tiny=_TINY_DLRM),
    "dlrm_mlperf": Grid(DLRM_BATCHES, 12, options=_DLRM_OPTIONS[:2], tiny=_TINY_DLRM),
    "resnet50": Grid(IMAGE_BATCHES, 9, _LARGE, iterations=8, tiny={"image_size": 32}),
    "bert_large": Grid((2, 8), 14, _LARGE, ({"optimizer": "none"}, {}), 2, _TINY_LANGUAGE),
    "transformer": Grid((64, 32), 9, _LARGE, tiny=_TINY_LANGUAGE),
    "inception_v3": Grid(IMAGE_BATCHES, 11, _LARGE, iterations=5),
    "gpt2_large": Grid((1, 4), 20, _LARGE, ({"optimizer": "none"}, {}), 2, _TINY_LANGUAGE),
    "gnmt": Grid((64, 128), 10, _LARGE, iterations=6, tiny={"width": 16, "vocabulary": 100, "seq_len": 8}),
    "dcgan": Grid((64, 128), 8, _LARGE, tiny={"width": 4, "noise": 8}),
}
"""The grid of the paper (Lin et al.), the five workloads of Surfer, BERT and GPT-2. Language models are also measured
without an optimizer."""

TINY_BATCHES = {"dlrm": (16, 32), "other": (2,)}
"""Batch sizes of a trial."""
TINY_SECONDS = 1.0
"""Estimated seconds of a unit in a trial."""


@dataclass(frozen=True)
class StepPlan:
    """One training step to measure. `overrides` change the model's configuration; `variant` names them in the tables.

    `first` marks the first batch size of a variant in fp32; the other batch sizes and dtypes share its graph.
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
        """Bytes that its traces may take in the archives; first steps get more than other batch sizes and dtypes."""
        return FIRST_TRACE_BYTES if self.first else OTHER_TRACE_BYTES

    @property
    def variant(self) -> str:
        """`default`, or the overrides that change the result, in the format of grid-point names (`config.Point`)."""
        shown = {key: value for key, value in self.overrides.items() if key in ("embedding", "optimizer", "dtype")}
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
        known = load_model(self.model)
        # drop tiny overrides of keys that the model does not have
        return known | {key: value for key, value in self.overrides.items() if key in known}


def plans(tiny: bool = False) -> list[StepPlan]:
    """All steps, the most valuable first: every workload once, then more batch sizes, variants and dtypes."""
    found = []
    for model, grid in GRIDS.items():
        for o, option in enumerate(grid.options):
            for d, dtype in enumerate(grid.dtypes):
                for b, batch in enumerate(grid.batches):
                    rank = b + 1.5 * o + (2.5 if d else 0.0) + d
                    overrides = dict(option) | ({"dtype": dtype} if d else {})
                    first = not d and not b
                    found.append(StepPlan(model, batch, overrides, rank, grid.seconds, grid.iterations, first))
    found = _tiny(found) if tiny else found
    return sorted(found, key=lambda plan: plan.rank)


def _tiny(found: list[StepPlan]) -> list[StepPlan]:
    """The first variant of each workload, with the batch sizes of `TINY_BATCHES` and sizes that are fast on a CPU."""
    kept = []
    for plan in found:
        batches = TINY_BATCHES["dlrm" if plan.model.startswith("dlrm") else "other"]
        first = plan.overrides == dict(GRIDS[plan.model].options[0])  # then its rank is the index of its batch size
        small = GRIDS[plan.model].tiny
        if small is None or not first or plan.rank >= len(batches):
            continue
        overrides = {**small, **plan.overrides}
        size = batches[round(plan.rank)]
        kept.append(replace(plan, batch_size=size, overrides=overrides, seconds=TINY_SECONDS, iterations=2))
    return kept
