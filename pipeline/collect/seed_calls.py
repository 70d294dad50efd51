"""Calls that every campaign measures and samples around, independent of the workloads.

They cover each family over the range of sizes that models use.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.collect.cases import Spec
from pipeline.collect.device import FLOAT_BYTES

BF16_FAMILIES = {
    "gemm",
    "bmm",
    "elementwise",
    "softmax",
    "layer_norm",
    "attention",
    "conv2d_forward",
    "conv2d_backward_data",
    "conv2d_backward_weight",
    "dropout",
}
"""Families that mixed precision runs in bf16."""
TF32_FAMILIES = {"gemm", "bmm", "conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight"}
"""Families that also run in TF32: products and convolutions."""

LINEARS = (
    (2048, 512, 512),
    (2048, 512, 64),
    (2048, 100, 1024),
    (2048, 1024, 1024),
    (2048, 1024, 1),
    (2048, 479, 1024),
    (2048, 13, 512),
    (1024, 1024, 4096),
    (1024, 4096, 1024),
    (1024, 1024, 1024),
    (1024, 1280, 5120),
    (3200, 512, 2048),
    (3200, 512, 32000),
    (64, 1024, 4096),
    (64, 2048, 1000),
)
"""(rows, reduction, outputs) of linear layers: DLRM's MLPs, BERT, GPT-2, Transformer, LSTM gates, a classifier."""
PRODUCTS = (
    (2048, 9, 64, 9),
    (2048, 27, 128, 27),
    (32, 512, 64, 512),
    (32, 512, 512, 64),
    (20, 1024, 64, 1024),
    (512, 50, 64, 50),
)
"""(B, M, N reduction, K): DLRM's interactions and attention."""
CONVS = (
    (32, 3, 64, 7, 224, 2, 3),
    (32, 64, 64, 1, 56, 1, 0),
    (32, 64, 64, 3, 56, 1, 1),
    (32, 256, 128, 1, 56, 1, 0),
    (32, 128, 128, 3, 28, 1, 1),
    (32, 256, 256, 3, 14, 1, 1),
    (32, 1024, 512, 1, 14, 1, 0),
    (32, 512, 512, 3, 7, 1, 1),
    (32, 256, 512, 1, 56, 2, 0),
    (32, 80, 192, 3, 73, 1, 0),
    (32, 48, 64, 5, 35, 1, 2),
    (64, 64, 128, 4, 32, 2, 1),
)
"""(B, in, out, kernel, size, stride, padding): ResNet-50, Inception v3, DCGAN."""
TABLES = (
    (2048, 1_000_000, 8, 100, 64),
    (2048, 80_000, 8, 10, 128),
    (2048, 1_000_000, 1, 100, 64),
    (2048, 500_000, 1, 1, 128),
    (2048, 10_000, 4, 20, 32),
)
"""(B, E, T, L, D) of embedding lookups."""
ROWS = ((2048, 1024), (4096, 512), (16384, 1024), (1024, 50257), (65536, 64), (4096, 1))
"""(B, H) of elementwise operations, reductions, softmax and layer norm."""
IMAGES = ((32, 64, 56 * 56), (32, 256, 56 * 56), (32, 512, 14 * 14), (32, 2048, 7 * 7))
"""(B, C, HW) of batch norm and pooling."""
BYTES = (4096, 1 << 20, 16 << 20)
"""Bytes of copies, concatenations, fills, sorts and index operations."""


def seeds() -> Iterator[Spec]:
    """All seeds in fp32, then those of families that also run in TF32 or bf16."""
    plain = [*_matrix(), *_lookups(), *_rows(), *_movement(), *_composite()]
    yield from plain
    for spec in plain:
        for dtype in ("tf32",) * (spec.family in TF32_FAMILIES) + ("bf16",) * (spec.family in BF16_FAMILIES):
            size = {
                name: spec.dims[name] * FLOAT_BYTES[dtype] // 4 for name in ("inputs", "outputs") if name in spec.dims
            }
            yield Spec(spec.family, spec.op, spec.phase, dtype, {**spec.dims, **size}, spec.attributes)


def _matrix() -> Iterator[Spec]:
    for m, n, k in LINEARS:
        yield _spec("gemm", "linear", B=1, M=m, N=n, K=k, trans_a=0, trans_b=1)
        yield _spec("gemm", "mm", "backward", B=1, M=m, N=k, K=n, trans_a=0, trans_b=0)
        yield _spec("gemm", "mm", "backward", B=1, M=k, N=m, K=n, trans_a=1, trans_b=0)
    for b, m, n, k in PRODUCTS:
        yield _spec("bmm", "bmm", B=b, M=m, N=n, K=k, trans_a=0, trans_b=1)
        yield _spec("bmm", "bmm", "backward", B=b, M=m, N=k, K=n, trans_a=0, trans_b=0)
        yield _spec("bmm", "bmm", "backward", B=b, M=n, N=m, K=k, trans_a=1, trans_b=0)
    for b, c, d, kernel, size, stride, padding in CONVS:
        dims = {
            "B": b,
            "in_channels": c,
            "out_channels": d,
            "kernel_size": kernel,
            "input_size": size,
            "stride": stride,
            "padding": padding,
            "groups": 1,
            "dilation": 1,
        }
        for family, phase in (("forward", "forward"), ("backward_data", "backward"), ("backward_weight", "backward")):
            yield Spec(f"conv2d_{family}", "conv", phase, "fp32", dims)


def _lookups() -> Iterator[Spec]:
    for b, e, t, lookups, d in TABLES:
        for distribution in ("uniform", "zipf:1.05"):
            notes = {"distribution": distribution}
            dims = {"B": b, "E": e, "T": t, "L": lookups, "D": d}
            yield Spec("embedding_forward", "fused" if t > 1 else "bag", "forward", "fp32", dims, notes)
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
            yield _spec("elementwise", op, B=b, H=h, inputs=0 if op == "fill" else size, outputs=size)
        for op in ("add", "mul", "div"):
            yield _spec("elementwise", op, B=b, H=h, inputs=2 * size, outputs=size)
        for op in ("relu_backward", "sigmoid_backward", "gelu_backward", "tanh_backward"):
            yield _spec("elementwise", op, "backward", B=b, H=h, inputs=2 * size, outputs=size)
        for op, out in (("sum_rows", 4 * h), ("sum_columns", 4 * b), ("sum_all", 4), ("mean_columns", 4 * b)):
            yield _spec("reduction", op, B=b, H=h, inputs=size, outputs=out)
        yield _spec("loss", "mse_loss", "loss", B=b * h, H=1)
        yield _spec("loss", "mse_loss", "backward", B=b * h, H=1)
        yield _spec("loss", "binary_cross_entropy", "loss", B=b, H=1)
        if h == 1:
            continue
        for phase in ("forward", "backward"):
            yield _spec("softmax", "softmax", phase, B=b, H=h)
            yield _spec("softmax", "log_softmax", phase, B=b, H=h)
            yield _spec("layer_norm", "ln", phase, B=b, H=h)
            yield _spec("dropout", "dropout", phase, B=b, H=h)
            yield _spec("loss", "nll_loss", phase, B=b, H=h)
    for b, c, hw in IMAGES:
        for phase in ("forward", "backward"):
            yield _spec("batch_norm", "batch_norm", phase, B=b, C=c, HW=hw)
            yield _spec("pooling", "max", phase, B=b, C=c, HW=hw, kernel_size=3, stride=2, padding=1)
            yield _spec("pooling", "adaptive", phase, B=b, C=c, HW=hw)


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
    for size, tensors in ((4 << 20, 20), (100 << 20, 160), (400 << 20, 400)):
        for op in ("foreach_add", "foreach_mul", "foreach_addcmul", "foreach_addcdiv", "foreach_sqrt", "foreach_lerp"):
            yield _spec("optimizer", op, "optimizer", bytes=size, tensors=tensors)


def _spec(family: str, op: str, phase: str = "forward", **dims: int) -> Spec:
    return Spec(family, op, phase, "fp32", dims)
