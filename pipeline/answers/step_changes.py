"""Changes of a step that may be advised: options and edits of its operators, and when each applies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.hardware.spec import has_bf16, has_tf32
from pipeline.question.question import Question, ask
from pipeline.question.settings import NO_EDIT, written
from pipeline.question.table_plan import PLANS
from pipeline.workloads.user_steps import as_given, is_given, shown_target

SAME = "no"
"""What a candidate changes of a step's results if they stay the same up to rounding."""


@dataclass(frozen=True)
class Candidate:
    """A change of one option that may make a step faster."""

    key: str
    value: str
    instead_of: tuple[str, ...]
    """Values of the option that it improves; a step with another value does not get this advice. Empty for edits, which
    are added to those that a point has."""
    how: str
    """What to write in PyTorch."""
    changes: str = SAME
    """What it changes of the step's results."""
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Values that other options must have."""
    unless: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Values of other options that together make the change impossible."""

    @property
    def text(self) -> str:
        """The change as an override."""
        return f"{self.key}={self.value}"


SPARSE = ("joint_sparse", "joint_rows", "sparse")
"""Values of `model.embedding` with sparse gradients."""

SIZES_FROM_DATA = {
    "model.embedding": SPARSE,
    "model.optimizer": ("adagrad", "adam"),
}
"""Options with which the number of updated rows depends on the batch: CUDA graphs cannot capture such a step."""

CANDIDATES = (
    Candidate(
        "model.read_loss",
        "never",
        ("before_backward", "at_end"),
        "do not call loss.item() in each step",
    ),
    Candidate(
        "model.copies",
        "pinned",
        ("pageable",),
        "DataLoader(pin_memory=True), .to(device, non_blocking=True)",
    ),
    Candidate("model.set_to_none", "true", ("false",), "optimizer.zero_grad(set_to_none=True)"),
    Candidate("model.foreach", "true", ("false",), "torch.optim's foreach=True"),
    Candidate(
        "model.foreach",
        "fused",
        ("true", "false"),
        "torch.optim's fused=True",
        given={
            "model.optimizer": ("sgd", "sgd_momentum", "adam", "adamw"),
            "model.mode": ("train",),
        },
        unless={
            "model.embedding": SPARSE,
            "model.optimizer": ("sgd",),
        },
    ),
    Candidate("model.attention", "fused", ("eager",), "F.scaled_dot_product_attention"),
    Candidate(
        "model.memory_format",
        "channels_last",
        ("contiguous",),
        "model.to(memory_format=torch.channels_last)",
    ),
    Candidate(
        "model.embedding",
        "fused",
        (*SPARSE, "dense"),
        "FBGEMM's SplitTableBatchedEmbeddingBagsCodegen",
        given={"model.optimizer": ("sgd",)},
    ),
    Candidate(
        "model.embedding",
        "fused",
        (*SPARSE, "dense"),
        "FBGEMM's SplitTableBatchedEmbeddingBagsCodegen",
        "the optimizer updates the rows in use only",
        given={"model.optimizer": ("adagrad", "adam")},
    ),
    Candidate(
        "model.interaction",
        "fused",
        ("by_parts",),
        "one kernel for all dot products, as in NVIDIA's example",
    ),
    Candidate(
        "predict.cuda_graph",
        "true",
        ("false",),
        "torch.cuda.make_graphed_callables",
        unless=SIZES_FROM_DATA,
    ),
    Candidate(
        "parallel.gradient_as_bucket_view",
        "true",
        ("false",),
        "DistributedDataParallel(gradient_as_bucket_view=True)",
    ),
    Candidate(
        "parallel.broadcast_buffers",
        "false",
        ("true",),
        "DistributedDataParallel(broadcast_buffers=False)",
        "each GPU keeps its own running statistics of batch norm",
    ),
    Candidate(
        "parallel.compression",
        "fp16",
        ("none",),
        "register_comm_hook(None, default_hooks.fp16_compress_hook)",
        "gradients are exchanged in fp16, with its small range",
    ),
    *(
        Candidate(
            "parallel.sharding",
            name,
            tuple(other for other in PLANS if other != name),
            "TorchRec's planner, or the plan that `steptime plan sharding` writes",
            given={"parallel.name": ("hybrid",)},
        )
        for name in PLANS
    ),
    Candidate(
        "model.dtype",
        "tf32",
        ("default", "fp32"),
        "torch.set_float32_matmul_precision('high')",
        "products have 10 bits of mantissa",
    ),
    Candidate(
        "model.dtype",
        "bf16",
        ("default", "fp32", "tf32"),
        "torch.autocast('cuda', torch.bfloat16)",
        "products have 7 bits of mantissa",
    ),
    Candidate(
        "model.dtype",
        "fp16",
        ("default", "fp32", "tf32"),
        "torch.autocast('cuda', torch.float16) with a gradient scaler",
        "products are in fp16, with its small range",
    ),
    Candidate(
        "model.precision",
        "pure",
        ("autocast",),
        "model.to(dtype)",
        "weights and optimizer state are in half precision",
        given={"model.dtype": ("bf16", "fp16")},
    ),
    Candidate(
        "edit.remove",
        "aten::dropout",
        (),
        "dropout=0",
        "training has no dropout",
        given={"model.mode": ("train",)},
    ),
)
"""All that can be advised; what keeps the results comes first."""


COMPILED = Candidate("model.compile", "true", ("false",), "torch.compile(model)")
"""Tried on request, once, on top of all others: PyTorch's compiler takes up to a minute for each step that is new."""


def applies(candidate: Candidate, at: Question) -> bool:
    """Whether a point has the option, with a value that the candidate improves on a GPU that supports it."""
    if candidate.key.startswith("edit."):
        if candidate.value in _values(at, candidate.key):
            return False
    elif not set(_values(at, candidate.key)) & set(candidate.instead_of):
        return False
    if not _has(at, candidate.given) or (candidate.unless and _has(at, candidate.unless)):
        return False
    needs = {"model.dtype=tf32": has_tf32, "model.dtype=bf16": has_bf16}.get(candidate.text)
    return needs is None or needs(at.gpu)


def _has(at: Question, wanted: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether each of these options has one of its values."""
    return all(set(_values(at, key)) & set(values) for key, values in wanted.items())


def _values(at: Question, key: str) -> tuple[str, ...]:
    """Values of an option as a user types them; none if the point has no such option."""
    section, _, name = key.partition(".")
    value = at.section(section).get(name)
    several = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    return tuple(
        written(each).lower() if isinstance(each, bool) else written(each) for each in several
    )


def changed(at: Question, candidate: Candidate) -> Question:
    """The point with a candidate's change."""
    return as_given(ask(_texts(at, candidate.key, _after(at, candidate))))


def command(at: Question, candidate: Candidate) -> str:
    """The command that compares a point with and without a candidate's change; Python for a step that is an object."""
    before = _values(at, candidate.key)
    old = written(list(before)) if len(before) > 1 else before[0] if before else NO_EDIT
    texts = _texts(at, candidate.key, f"{old},{_after(at, candidate)}")
    if is_given(at.workload):
        pairs = (
            text.split("=", 1) for text in texts if not text.startswith(("model=", "model.target="))
        )
        arguments = ", ".join(f"{key.replace('.', '__')}={value!r}" for key, value in pairs)
        return f"compare({shown_target(at.workload['target'])}, ..., {arguments})"
    return shlex.join(["steptime", "compare", *texts])


def _after(at: Question, candidate: Candidate) -> str:
    """Value of the option with the change: edits are added to those of the point."""
    if candidate.key.startswith("edit.") and (present := _values(at, candidate.key)):
        return written([*present, candidate.value])
    return candidate.value


def _texts(at: Question, key: str, value: str) -> list[str]:
    """The overrides of a point with another value of one option."""
    kept = [text for text in at.overrides if text.partition("=")[0].lstrip("+") != key]
    target = at.workload.get("target")
    model = (
        ["model=custom", f"model.target='{target}'"]
        if is_given(at.workload)
        else [f"model={at.model}"]
    )
    return [f"gpu={at.gpu.name}", *model, f"batch_size={at.batch_size}", *kept, f"{key}={value}"]
