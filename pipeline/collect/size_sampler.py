"""Sample sizes around the calls of a workload: log-uniform from a quarter of each dimension to four times it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.collect.cases import Spec
from pipeline.collect.device import FLOAT_BYTES

MIN_FACTOR, MAX_FACTOR = 0.25, 4.0
"""Range of the factor by which a dimension is scaled."""

SIZES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("M", "N", "K"), "bmm": ("B", "M", "N", "K"), "attention": ("B", "M", "N"),
    "conv2d_forward": ("B", "in_channels", "out_channels", "input_size"),
    "conv2d_backward_data": ("B", "in_channels", "out_channels", "input_size"),
    "conv2d_backward_weight": ("B", "in_channels", "out_channels", "input_size"),
    "embedding_forward": ("B", "E", "L"), "embedding_backward": ("B", "E", "L"),
    "tril_index_forward": ("B", "F"), "tril_index_backward": ("B", "F"), "index": ("B", "E"),
    "elementwise": ("B", "H"), "softmax": ("B", "H"), "layer_norm": ("B", "H"), "dropout": ("B", "H"),
    "reduction": ("B", "H"), "loss": ("B", "H"), "batch_norm": ("B", "C"), "pooling": ("B", "C"),
    "rnn": ("B", "T"), "concat": ("B",), "copy": (), "memset": (), "memcpy_h2d": (), "memcpy_d2h": (), "memcpy_d2d": (),
    "optimizer": (), "sort": (),
}  # fmt: skip
"""Dimensions that are scaled independently. Dims in bytes follow from them, or are scaled if a family has no others."""

MAX_WORK_FACTOR = 6.0
"""Largest product of the factors of a sampled call, relative to the call it was sampled around."""

DIMS_WITHOUT_CHOICE = 4
"""Sizes below this are not changed, for example a batch of 1, 3 input channels or 2 heads."""


def distinct(specs: Sequence[Spec]) -> list[Spec]:
    """Each distinct measurement once, in order of first use."""
    return list({spec.key: spec for spec in specs}.values())


def interleaved(specs: Sequence[Spec]) -> list[Spec]:
    """Reorder the calls so that families take turns; each family keeps its order, and any prefix is balanced."""
    families: dict[str, list[Spec]] = {}
    for spec in specs:
        families.setdefault(spec.family, []).append(spec)
    longest = max(map(len, families.values()), default=0)
    return [members[turn] for turn in range(longest) for members in families.values() if turn < len(members)]


def sizes_around(specs: Sequence[Spec], seed: int) -> Iterator[Spec]:
    """Endless sampled sizes around calls; families and their calls take turns, so that any prefix is balanced."""
    rng = random.Random(seed)
    families: dict[str, list[Spec]] = {}
    for spec in specs:
        families.setdefault(spec.family, []).append(spec)
    if not families:
        return
    turn = 0
    while True:
        for members in families.values():
            yield vary(members[turn % len(members)], rng)
        turn += 1


def vary(spec: Spec, rng: random.Random) -> Spec:
    """One call like `spec` with other sizes."""
    names = [name for name in SIZES.get(spec.family, ()) if spec.dims.get(name, 0) >= DIMS_WITHOUT_CHOICE]
    if not names and "bytes" in spec.dims:
        return _follow(spec, {}, _factor(rng, MAX_FACTOR))
    budget = MAX_WORK_FACTOR
    chosen: dict[str, int] = {}
    for name in rng.sample(names, len(names)):
        old = spec.dims[name]
        new = _rounded(old * _factor(rng, min(MAX_FACTOR, budget)), rng)
        budget = max(budget * old / new, MIN_FACTOR)
        chosen[name] = new
    return _follow(spec, chosen, 1.0)


def _follow(spec: Spec, chosen: Mapping[str, int], factor: float) -> Spec:
    """The call with new sizes; byte counts and listed shapes are adapted."""
    for name, new in chosen.items():
        factor *= new / spec.dims[name]
    dims = {**spec.dims, **chosen}
    element = FLOAT_BYTES.get(spec.dtype, 8)
    attributes = dict(spec.attributes)
    shape, widths = attributes.get("shape"), attributes.get("widths")
    if shape and "bytes" in dims:
        longest = max(range(len(shape)), key=lambda axis: shape[axis])
        grown = [max(round(n * factor), 1) if axis == longest else n for axis, n in enumerate(shape)]
        attributes["shape"] = grown
        factor = math.prod(grown) / max(math.prod(shape), 1)
    if widths and "B" in dims and "bytes" in dims:
        dims["bytes"] = element * dims["B"] * sum(int(width) for width in widths)
    else:
        attributes.pop("widths", None)
        if "bytes" in dims:
            dims["bytes"] = max(element * round(dims["bytes"] * factor / element), element)
    # operand bytes of a B x H call can scale differently: a bias has H elements for any B
    for name in ("inputs", "outputs"):
        if name in dims:
            dims[name] = _operand_bytes(spec, dims, name, factor, element)
    attributes.pop("rows", None)  # sampled tables have equal size
    return replace(spec, dims=dims, attributes=attributes)


def _operand_bytes(spec: Spec, dims: Mapping[str, int], name: str, factor: float, element: int) -> int:
    """Bytes of the operands after scaling; a sum of B x H, B and H terms remains such a sum."""
    old, old_b, old_h = spec.dims[name], spec.dims.get("B"), spec.dims.get("H")
    if old_b is None or old_h is None:
        return max(round(old * factor), 1)
    b, h = dims["B"], dims["H"]
    full, rest = divmod(old, element * old_b * old_h)
    total = full * element * b * h
    if rest == element * old_h:
        return total + element * h
    if rest == element * old_b:
        return total + element * b
    return total + (rest if rest <= element else round(rest * factor))


def _factor(rng: random.Random, highest: float) -> float:
    return math.exp(rng.uniform(math.log(MIN_FACTOR), math.log(max(highest, 2 * MIN_FACTOR))))


def _rounded(size: float, rng: random.Random) -> int:
    """Round to an integer. As in real models, above 16 a quarter are powers of two and a quarter multiples of 8."""
    value, style = max(round(size), 1), rng.random()
    if value > 16 and style < 0.25:
        return int(2 ** round(math.log2(value)))
    if value > 16 and style < 0.5:
        return 8 * round(value / 8)
    return value
