"""Names under which overheads are stored and looked up, so that an op has the same name in a trace and in a graph."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache

HOST_TYPES = ("T1", "T2", "T3", "T4", "T5")
"""Kinds of host overhead: T1 between operators, T2 before, T3 after and T5 between launches, T4 in the runtime call."""

MAX_SIGNATURE = 1_000
"""Longest signature that is stored as text. In the overheads that ship, the longest has 491 characters."""

ANY_OP = "*"
"""Op name of statistics over all ops."""

_ALIASES = {
    "_reshape_alias": "view",
    "_unsafe_view": "view",
    "reshape_alias": "view",
    "_index_put_impl": "index_put",
    "cudnn_convolution": "convolution",
    "_convolution": "convolution",
    "convolution_overrideable": "convolution",
    "cudnn_batch_norm": "native_batch_norm",
    "_native_batch_norm_legit": "native_batch_norm",
    "miopen_batch_norm": "native_batch_norm",
    "concat": "cat",
    "concatenate": "cat",
}
_NODE_ALIASES = {
    "reshapealias": "view",
    "unsafeview": "view",
    "cudnnconvolution": "convolution",
    "cudnnbatchnorm": "nativebatchnorm",
    "miopenbatchnorm": "nativebatchnorm",
    "batchnorm": "nativebatchnorm",
}
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function:\s*")
_NODE = re.compile(r"^(?P<stem>\w+?)Backward\d*$")
_LOOKUP = re.compile(r"(split_embedding_codegen_lookup_|\bSplitLookupFunction_)(?!Dense_)\w+?(_function|_Op)\b")
"""FBGEMM's lookups with an optimizer in their backward pass. The optimizer is a part of the name."""


@lru_cache(maxsize=65536)
def normalised(name: str) -> str:
    """A single name per op: without in-place underscore, overload, autograd wrapper or version-dependent alias.

    Equal names:

    - `aten::add_` and `aten::add`.
    - `autograd::engine::evaluate_function: AddmmBackward0` and `AddmmBackward0`.
    - `Optimizer.step#SGD.step` for any optimizer class.
    - FBGEMM's lookups for any optimizer. It changes their last kernel and not what the host does.
    """
    if name.startswith("Optimizer."):
        return name.partition("#")[0]
    text = _LOOKUP.sub(r"\1any\2", _BACKWARD.sub("", name))
    if "::" not in text and (node := _NODE.match(text)):
        stem = node["stem"].lower()
        return f"backward:{_NODE_ALIASES.get(stem, stem)}"
    space, mark, op = text.rpartition("::")
    op = op.split(".")[0]
    stripped = op.rstrip("_") or op
    stripped = _ALIASES.get(stripped, stripped)
    return f"{space}{mark}{stripped}"


def full_signature(apis: Iterable[str], shapes: str, children: int) -> str:
    """Signature of one item: its actions, input shapes and number of nested ops.

    Every action of an item has the item's signature in its key. An optimizer's item over 40,000 tensors has a text of
    MBs and thousands of actions, so a long text is replaced by its hash.
    """
    text = f"{','.join(apis)}|{shapes}|{children}"
    return text if len(text) <= MAX_SIGNATURE else hashlib.sha256(text.encode()).hexdigest()


def calls_signature(count: int) -> str:
    """Signature of all items of an op that make the same number of device calls."""
    return f"calls={count}"


@lru_cache(maxsize=256)
def switch_signature(before: int, after: int) -> str:
    """Signature of a gap (T1) by the threads on its two sides."""
    return f"thread {min(before, 2)}>{min(after, 2)}"
