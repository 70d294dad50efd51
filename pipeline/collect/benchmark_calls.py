"""The calls that microbenchmarks measure beside those of the workloads: fixed seeds, and sampled sizes around calls.

Seeds cover each kernel family over the range of sizes that models use. Sampled sizes are log-uniform from a quarter of
each dimension to four times it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.collect.cases import Spec
from pipeline.collect.device import FLOAT_BYTES
from pipeline.families import FAMILIES

CONVOLUTIONS = ("conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight")
TF32_FAMILIES = {"gemm", "bmm", *CONVOLUTIONS}
"""Families that also run in TF32: products and convolutions."""
BF16_FAMILIES = {*TF32_FAMILIES, "elementwise", "softmax", "layer_norm", "attention", "dropout"}
"""Families that mixed precision runs in bf16."""

LINEARS = (
    (2048, 512, 512), (2048, 512, 64), (2048, 100, 1024), (2048, 1024, 1024), (2048, 1024, 1),
    (2048, 479, 1024), (2048, 13, 512), (1024, 1024, 4096), (1024, 4096, 1024), (1024, 1024, 1024),
    (1024, 1280, 5120), (3200, 512, 2048), (3200, 512, 32000), (64, 1024, 4096), (64, 2048, 1000),
)  # fmt: skip
"""(rows, reduction, outputs) of linear layers: DLRM's MLPs, BERT, GPT-2, Transformer, LSTM gates, a classifier."""
PRODUCTS = (
    (2048, 9, 64, 9), (2048, 27, 128, 27), (32, 512, 64, 512), (32, 512, 512, 64),
    (20, 1024, 64, 1024), (512, 50, 64, 50),
)  # fmt: skip
"""(B, M, N reduction, K): DLRM's interactions and attention."""
CONVS = (
    (32, 3, 64, 7, 224, 2, 3), (32, 64, 64, 1, 56, 1, 0), (32, 64, 64, 3, 56, 1, 1),
    (32, 256, 128, 1, 56, 1, 0), (32, 128, 128, 3, 28, 1, 1), (32, 256, 256, 3, 14, 1, 1),
    (32, 1024, 512, 1, 14, 1, 0), (32, 512, 512, 3, 7, 1, 1), (32, 256, 512, 1, 56, 2, 0),
    (32, 80, 192, 3, 73, 1, 0), (32, 48, 64, 5, 35, 1, 2), (64, 64, 128, 4, 32, 2, 1),
)  # fmt: skip
"""(B, in, out, kernel, size, stride, padding): ResNet-50, Inception v3, DCGAN."""
CONV_DIMS = ("B", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding")
TABLES = (
    (2048, 1_000_000, 8, 100, 64), (2048, 80_000, 8, 10, 128), (2048, 1_000_000, 1, 100, 64),
    (2048, 500_000, 1, 1, 128), (2048, 10_000, 4, 20, 32),
)  # fmt: skip
"""(B, E, T, L, D) of embedding lookups."""
ROWS = ((2048, 1024), (4096, 512), (16384, 1024), (1024, 50257), (65536, 64), (4096, 1))
"""(B, H) of elementwise operations, reductions, softmax and layer norm."""
IMAGES = ((32, 64, 56 * 56), (32, 256, 56 * 56), (32, 512, 14 * 14), (32, 2048, 7 * 7))
"""(B, C, HW) of batch norm and pooling."""
BYTES = (4096, 1 << 20, 16 << 20)
"""Bytes of copies, concatenations, fills, sorts and index operations."""
LISTS = ((4 << 20, 20), (100 << 20, 160), (400 << 20, 400))
"""(bytes, tensors) of optimizer updates."""

MIN_FACTOR, MAX_FACTOR = 0.25, 4.0
"""Range of the factor by which a dimension is scaled."""

SIZES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(CONVOLUTIONS, ("B", "in_channels", "out_channels", "input_size")),
    **dict.fromkeys(("embedding_forward", "embedding_backward"), ("B", "E", "L")),
    "attention": ("B", "M", "N"), "index": ("B", "E"), "loss": ("B", "H"), "batch_norm": ("B", "C"),
    "pooling": ("B", "C"), "rnn": ("B", "T"), "concat": ("B",),
}  # fmt: skip
"""Dimensions that are scaled independently, where they are not those that the family requires. Dims in bytes follow from
them, or are scaled if a family has no others."""

MAX_WORK_FACTOR = 6.0
"""Largest product of the factors of a sampled call, relative to the call it was sampled around."""

DIMS_WITHOUT_CHOICE = 4
"""Sizes below this are not changed, for example a batch of 1, 3 input channels or 2 heads."""


def seeds() -> Iterator[Spec]:
    """All seeds in fp32, then those of families that also run in TF32 or bf16."""
    plain = [*_matrix(), *_lookups(), *_rows(), *_stated(), *_movement(), *_composite()]
    yield from plain
    for spec in plain:
        for dtype, families in (("tf32", TF32_FAMILIES), ("bf16", BF16_FAMILIES)):
            dims = dict(spec.dims)
            for name in dims.keys() & {"inputs", "outputs"}:
                dims[name] = dims[name] * FLOAT_BYTES[dtype] // 4
            if spec.family in families:
                yield replace(spec, dtype=dtype, dims=dims)


def _matrix() -> Iterator[Spec]:
    for m, n, k in LINEARS:
        yield _spec("gemm", "linear", B=1, M=m, N=n, K=k, trans_a=0, trans_b=1)
        yield _spec("gemm", "mm", "backward", B=1, M=m, N=k, K=n, trans_a=0, trans_b=0)
        yield _spec("gemm", "mm", "backward", B=1, M=k, N=m, K=n, trans_a=1, trans_b=0)
    for b, m, n, k in PRODUCTS:
        yield _spec("bmm", "bmm", B=b, M=m, N=n, K=k, trans_a=0, trans_b=1)
        yield _spec("bmm", "bmm", "backward", B=b, M=m, N=k, K=n, trans_a=0, trans_b=0)
        yield _spec("bmm", "bmm", "backward", B=b, M=n, N=m, K=k, trans_a=1, trans_b=0)
    for sizes in CONVS:
        dims = dict(zip(CONV_DIMS, sizes, strict=True)) | {"groups": 1, "dilation": 1}
        for family in CONVOLUTIONS:
            yield _spec(
                family, "conv", "forward" if family == "conv2d_forward" else "backward", **dims
            )


def _lookups() -> Iterator[Spec]:
    for b, e, t, lookups, d in TABLES:
        for distribution in ("uniform", "zipf:1.05"):
            notes = {"distribution": distribution}
            dims = {"B": b, "E": e, "T": t, "L": lookups, "D": d}
            yield Spec(
                "embedding_forward", "fused" if t > 1 else "bag", "forward", "fp32", dims, notes
            )
            for op in ("fused_sgd",) if t > 1 else ("sparse", "dense"):
                yield Spec("embedding_backward", op, "backward", "fp32", dims, notes)
    for b in (512, 2048, 4096):
        for f in (9, 27):
            yield _spec("tril_index_forward", "index", B=b, F=f)
            yield _spec("tril_index_backward", "index_put", "backward", B=b, F=f)


def _rows() -> Iterator[Spec]:
    for b, h in ROWS:
        size = 4 * b * h
        for op in ("relu", "sigmoid", "gelu", "tanh", "mulu", "addu", "fill"):
            yield _spec(
                "elementwise", op, B=b, H=h, inputs=0 if op == "fill" else size, outputs=size
            )
        for op in ("add", "mul", "div"):
            yield _spec("elementwise", op, B=b, H=h, inputs=2 * size, outputs=size)
        for op in ("relu_backward", "sigmoid_backward", "gelu_backward", "tanh_backward"):
            yield _spec("elementwise", op, "backward", B=b, H=h, inputs=2 * size, outputs=size)
        for op, out in (
            ("sum_rows", 4 * h),
            ("sum_columns", 4 * b),
            ("sum_all", 4),
            ("mean_columns", 4 * b),
        ):
            yield _spec("reduction", op, B=b, H=h, inputs=size, outputs=out)
        yield _spec("loss", "mse_loss", "loss", B=b * h, H=1)
        yield _spec("loss", "mse_loss", "backward", B=b * h, H=1)
        yield _spec("loss", "binary_cross_entropy", "loss", B=b, H=1)
        if h == 1:
            continue
        for phase in ("forward", "backward"):
            yield _spec("layer_norm", "ln", phase, B=b, H=h)
            yield _spec("dropout", "dropout", phase, B=b, H=h)
            yield _spec("loss", "nll_loss", phase, B=b, H=h)
    for b, c, hw in IMAGES:
        for phase in ("forward", "backward"):
            yield _spec("batch_norm", "batch_norm", phase, B=b, C=c, HW=hw)
            yield _spec(
                "pooling", "max", phase, B=b, C=c, HW=hw, kernel_size=3, stride=2, padding=1
            )
            yield _spec("pooling", "adaptive", phase, B=b, C=c, HW=hw)


def _stated() -> Iterator[Spec]:
    """Calls of the families that state what a benchmark runs."""
    for family in FAMILIES.values():
        phases = ("forward",) if family.any_phase else ("forward", "backward")
        for (b, h), phase, op in itertools.product(ROWS, phases, family.runs):
            if h > 1:
                yield _spec(family.name, op, phase, B=b, H=h)


def _movement() -> Iterator[Spec]:
    for size in BYTES:
        yield _spec("concat", "cat", bytes=size, tensors=2)
        yield _spec("concat", "cat", bytes=size, tensors=9)
        yield _spec("copy", "copy", bytes=size)
        yield _spec("copy", "transpose", bytes=size)
        yield _spec("memset", "memset", bytes=size)
        yield _spec("memcpy_d2d", "memcpy", bytes=size)
        yield _spec("sort", "sort", bytes=size)
        yield _spec("index", "gather", bytes=size, H=64)
        yield _spec("index", "index_add", "backward", bytes=size, H=64)
        for kind in ("pinned", "pageable"):
            yield _spec("memcpy_h2d", kind, "data", bytes=size)
            yield _spec("memcpy_d2h", kind, "data", bytes=size)


def _composite() -> Iterator[Spec]:
    for phase in ("forward", "backward"):
        yield _spec("rnn", "lstm", phase, B=64, T=50, I=1024, H=1024, layers=1)
        yield _spec("attention", "flash", phase, B=32, M=512, N=512, K=64)
    for size, tensors in LISTS:
        for op in (
            "foreach_add",
            "foreach_mul",
            "foreach_addcmul",
            "foreach_addcdiv",
            "foreach_sqrt",
            "foreach_lerp",
        ):
            yield _spec("optimizer", op, "optimizer", bytes=size, tensors=tensors)


def _spec(family: str, op: str, phase: str = "forward", **dims: int) -> Spec:
    return Spec(family, op, phase, "fp32", dims)


def distinct(specs: Sequence[Spec]) -> list[Spec]:
    """Each distinct measurement once, in order of first use."""
    return list({spec.key: spec for spec in specs}.values())


def interleaved(specs: Sequence[Spec]) -> list[Spec]:
    """Reorder the calls so that families take turns; each family keeps its order, and any prefix is balanced."""
    families = _by_family(specs)
    longest = max(map(len, families.values()), default=0)
    return [
        members[turn]
        for turn in range(longest)
        for members in families.values()
        if turn < len(members)
    ]


def sizes_around(specs: Sequence[Spec], seed: int) -> Iterator[Spec]:
    """Endless sampled sizes around calls; families and their calls take turns, so that any prefix is balanced."""
    rng, families = random.Random(seed), _by_family(specs)
    for turn in itertools.count() if families else ():
        for members in families.values():
            yield vary(members[turn % len(members)], rng)


def _by_family(specs: Sequence[Spec]) -> dict[str, list[Spec]]:
    families: dict[str, list[Spec]] = {}
    for spec in specs:
        families.setdefault(spec.family, []).append(spec)
    return families


def vary(spec: Spec, rng: random.Random) -> Spec:
    """One call like `spec` with other sizes."""
    required = FAMILIES[spec.family].required
    scaled = SIZES.get(spec.family, tuple(name for name in required if name != "bytes"))
    names = [name for name in scaled if spec.dims.get(name, 0) >= DIMS_WITHOUT_CHOICE]
    if not names and "bytes" in spec.dims:
        # bytes alone are the size of calls without other dims that vary
        stale = () if scaled else ("B", "H")
        dims = {name: size for name, size in spec.dims.items() if name not in stale}
        return _follow(replace(spec, dims=dims), {}, _factor(rng, MAX_FACTOR))
    budget = MAX_WORK_FACTOR
    chosen: dict[str, int] = {}
    for name in rng.sample(names, len(names)):
        old = spec.dims[name]
        new = _rounded(old * _factor(rng, min(MAX_FACTOR, budget)), rng)
        budget = max(budget * old / new, MIN_FACTOR)
        chosen[name] = new
    return _follow(spec, chosen, 1.0)


def _follow(spec: Spec, chosen: Mapping[str, int], factor: float) -> Spec:
    """The call with new sizes; byte counts are adapted."""
    for name, new in chosen.items():
        factor *= new / spec.dims[name]
    dims = {**spec.dims, **chosen}
    element = FLOAT_BYTES.get(spec.dtype, 8)
    # sampled tables have equal size, and sampled copies no stated shape
    stale = {"rows", "shape"}
    if "bytes" in dims:
        if "B" in dims and "widths" in spec.attributes:
            dims["bytes"] = element * dims["B"] * sum(map(int, spec.attributes["widths"]))
        else:
            stale.add("widths")
            dims["bytes"] = max(element * round(dims["bytes"] * factor / element), element)
        factor = dims["bytes"] / spec.dims["bytes"]
    # operand bytes of a B x H call can scale differently: a bias has H elements for any B
    for name in ("inputs", "outputs"):
        if name in dims:
            dims[name] = _operand_bytes(spec, dims, name, factor, element)
    attributes = {name: value for name, value in spec.attributes.items() if name not in stale}
    return replace(spec, dims=dims, attributes=attributes)


def _operand_bytes(
    spec: Spec, dims: Mapping[str, int], name: str, factor: float, element: int
) -> int:
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
