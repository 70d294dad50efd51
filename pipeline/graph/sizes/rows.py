"""Sizes of kernels over rows or channels: softmax, norms, pooling, fused attention, recurrent layers."""

from __future__ import annotations

import math

from pipeline.graph.sizes.vocabulary import (
    Rule,
    Work,
    computing_dtype,
    image_attributes,
    main_dtype,
    over,
    read_bytes,
    size,
)
from pipeline.graph.table import Node, Tensor


@size("softmax")
def softmax(node: Node, rule: Rule) -> Work | None:
    """softmax and log_softmax along a dimension; option `dim` is the position of the dimension among the arguments."""
    x = node.tensor(0)
    if not x.numel:
        return None
    axis = node.value(int(rule.options.get("dim", 1)), -1) if x.shape else 0
    width = x.shape[axis] if x.shape else 1
    result = node.result() or x
    read = read_bytes(node.tensors())
    return over((x.numel // width, width), 5 * x.numel, read, result.bytes, dtype=x.dtype)


@size("layer_norm")
def layer_norm(node: Node, rule: Rule) -> Work:
    """Layer norm, forward: x (rows, H), normalised shape, weight, bias."""
    x = node.tensor(0)
    width = math.prod(node.value(1, None) or [x.shape[-1]])
    dims = {"B": x.numel // width, "H": width, "inputs": x.bytes, "outputs": x.bytes}
    return Work(dims, 8.0 * x.numel, read_bytes(node.tensors()), x.bytes, x.dtype)


@size("layer_norm_backward")
def layer_norm_backward(node: Node, rule: Rule) -> list[Work]:
    """Gradient of the input in one kernel, of weight and bias in another (ATen/native/cuda/layer_norm_kernel.cu)."""
    x = node.tensor(1)
    width = math.prod(node.value(2, None) or [x.shape[-1]])
    rows = (x.numel // width, width)
    parts = (
        ("layer_norm_input", 8 * x.numel, x.bytes),
        ("layer_norm_weight", 4 * x.numel, 8 * width),
    )
    return [
        over(rows, flops, 2 * x.bytes, written, op=op, dtype=x.dtype)
        for op, flops, written in parts
    ]


@size("group_norm")
def group_norm(node: Node, rule: Rule) -> list[Work]:
    """native_group_norm(x, weight, bias, N, C, HxW, groups, eps), in three steps.

    1. The moments of the groups.
    2. With a weight: a factor and an addend for every channel.
    3. One pass that applies them.
    """
    x = node.tensor(0)
    batch, count, groups = (
        int(node.value(3, x.shape[0])),
        int(node.value(4, x.shape[1])),
        int(node.value(6, 1)),
    )
    rows = batch * groups
    moments = over(
        (rows, x.numel // rows), 4 * x.numel, x.bytes, 8 * rows, "reduction", "var_columns", x.dtype
    )
    return [moments, *_per_channel(node, batch * count), _applied(x, reads=1)]


@size("group_norm_backward")
def group_norm_backward(node: Node, rule: Rule) -> list[Work]:
    """Group norm, backward: sums over the pixels of every channel, factors from these sums, and the gradients."""
    x = node.tensor(1)
    rows = x.shape[0] * x.shape[1]
    sums = over(
        (rows, x.numel // rows),
        4 * x.numel,
        2 * x.bytes,
        8 * rows,
        "reduction",
        "sum_columns",
        x.dtype,
    )
    factors = _per_channel(node, rows)
    return [sums, *factors, _applied(x, reads=2), *factors]


def _per_channel(node: Node, count: int) -> list[Work]:
    """A small kernel over the channels of all samples; none if the norm has no weight."""
    if all(len(tensor.shape) != 1 for tensor in node.tensors()):
        return []
    return [over((1, count), 2 * count, 8 * count, 8 * count, "elementwise", "addcmul", "fp32")]


def _applied(x: Tensor, reads: int) -> Work:
    """One pass over all elements."""
    return over(x, 2 * x.numel, reads * x.bytes, x.bytes, "elementwise", "addcmul")


@size("channel_sums")
def channel_sums(node: Node, rule: Rule) -> Work | None:
    """Sums of each channel over samples and pixels: reads the images (and their gradients) once."""
    images = [tensor for tensor in node.tensors() if len(tensor.shape) > 1]
    x = images[0]
    if not x.numel:
        return None
    rows, written = (
        (x.numel // x.shape[1], x.shape[1]),
        sum(result.bytes for result in node.results()),
    )
    return over(rows, 2 * x.numel, read_bytes(images), written, dtype=x.dtype, op=f"{rule.op}_rows")


@size("channel_rows")
def channel_rows(node: Node, rule: Rule) -> Work:
    """A small kernel over one row of numbers per channel, such as the sums of each rank."""
    received = node.tensors()[-1]
    return over(
        (1, received.numel),
        4 * received.numel,
        received.bytes,
        sum(t.bytes for t in node.results()),
        dtype=received.dtype,
    )


@size("logsumexp")
def logsumexp(node: Node, rule: Rule) -> list[Work]:
    """logsumexp: maxima (infinite ones become zero), the sum of the exponentials of the differences, and its logarithm.

    These are two reductions, five kernels over the results, and two kernels over all elements (`logsumexp_out_impl`).
    """
    x = node.tensor(0)
    result = node.result() or x
    rows = (x.numel // max(x.shape[-1], 1), x.shape[-1])

    def passed(family: str, *ops: str) -> list[Work]:
        written = result.bytes if family == "reduction" else x.bytes
        flops = float(rows[0] * rows[1])
        return [over(rows, flops, x.bytes, written, family, op, x.dtype) for op in ops]

    few = [
        over(
            (1, result.numel), result.numel, result.bytes, result.bytes, "elementwise", op, x.dtype
        )
        for op in ("abs", "compare", "masked_fill", "log", "add")
    ]
    return [
        *passed("reduction", "max_columns"),
        *few[:3],
        *passed("elementwise", "sub", "exp"),
        *passed("reduction", "sum_columns"),
        *few[3:],
    ]


@size("channels")
def channels(node: Node, rule: Rule) -> Work | None:
    """batch_norm and pooling: B samples, C channels, HW pixels of the larger tensor (input or output).

    Options:
        passes: number of passes over the images (batch norm sums over a channel before it can scale it).
        reads: number of tensors of this size that each further pass reads. The default is one; a backward pass reads
            the gradient and the input.
        training: position of the argument that says whether batch norm computes statistics. With known statistics it
            passes over the images once.
    """
    tensors = [t for t in (*node.tensors(), *node.results()) if len(t.shape) >= 3]
    big = max(tensors or node.tensors()[:1], key=lambda tensor: tensor.numel)
    if not big.numel:
        return None
    batch, count = (big.shape[0], big.shape[1]) if len(big.shape) > 1 else (1, big.numel)
    written = float(sum(t.bytes for t in node.results() if len(t.shape) >= 3) or big.bytes)
    known = node.value(int(rule.options.get("training", -1)), True) is False
    again = (
        0.0
        if known
        else (float(rule.options.get("passes", 1)) - 1) * float(rule.options.get("reads", 1))
    )
    read = read_bytes(node.tensors()) + again * big.bytes
    dims = {
        "B": batch,
        "C": count,
        "HW": big.numel // (batch * count),
        "inputs": int(read),
        "outputs": int(written),
    }
    return Work(
        {**dims, **_window(node, rule)},
        4.0 * big.numel,
        read,
        written,
        main_dtype(node),
        op="batch_norm_inference" if known else None,
        attributes=image_attributes(node),
    )


@size("attention")
def attention(node: Node, rule: Rule) -> Work:
    """Fused attention: q, k, v (B, heads, T, D).

    Dims are the number of heads of all samples, of queries and of keys, and the head width. Option `backward` adds the
    products of the gradient. Options `causal`, `dropout` and `mask` are the positions of these arguments.

    Kernels skip keys that a causal flag hides: PyTorch's mem_eff_attention/kernel_forward.h shortens `num_keys` by
    blocks of queries, and FlashAttention-2 shortens its loop. With a mask they compute everything and also read the
    mask.
    """
    first = int(bool(rule.options.get("backward")))
    q, k, v = (node.tensor(first + i) for i in range(3))
    batch, heads, tokens, width = q.shape
    widths = 3 * width + 2 * v.shape[-1] if first else width + v.shape[-1]
    causal = _flag(node, int(rule.options["causal"]))
    flops = 2.0 * batch * heads * tokens * k.shape[2] * widths * (0.5 if causal else 1.0)
    written = float(sum(t.bytes for t in node.results() if len(t.shape) == 4) or q.bytes)
    dims = {"B": batch * heads, "M": tokens, "N": k.shape[2], "K": width}
    at = int(rule.options.get("mask", -1))
    mask = node.inputs[at] if 0 <= at < len(node.inputs) else None
    said = {"mask": mask.stored_bytes} if isinstance(mask, Tensor) else {}
    # a stand-in for `F.scaled_dot_product_attention`, whose kernel PyTorch chooses; its last argument is the dropout
    stand_in = len(node.inputs) <= 6 + 2 * first
    if rule.op == "flash" and stand_in:
        said["chosen"] = True
    dropout = node.value(len(node.values) - 1 if stand_in else int(rule.options["dropout"]), 0.0)
    if isinstance(dropout, float) and dropout > 0.0:
        said["dropout"] = True
    return Work(
        dims,
        flops,
        read_bytes(node.tensors()),
        written,
        q.dtype,
        attributes={"causal": causal, **said},
    )


@size("jagged_attention")
def jagged_attention(node: Node, rule: Rule) -> Work:
    """HSTU's attention: q, k, v (tokens, heads x width), offsets, pairs of tokens, heads; then gradients in the backward pass."""
    q, _, v = (node.tensor(at) for at in range(3))
    pairs, heads = int(node.value(4)), int(node.value(5))
    (tokens, keys), values = q.shape, v.shape[1]
    dims = {"B": heads, "M": tokens, "N": pairs, "K": keys // heads, "H": values // heads}
    widths = 3 * keys + 2 * values if rule.options.get("backward") else keys + values
    return Work(dims, 2.0 * pairs * widths, read_bytes(node.tensors()), v.bytes, q.dtype)


@size("triton_norm")
def triton_norm(node: Node, rule: Rule) -> Work | list[Work]:
    """A Triton kernel that norms rows, with what surrounds it; backward, a second one sums 256 parts of weights' gradients."""
    x = node.tensor(int(bool(rule.options.get("backward"))))
    written = sum(each.bytes for each in node.results())
    main = over(x, 10 * x.numel, read_bytes(node.tensors()), written)
    if not rule.options.get("backward"):
        return main
    rows, parts = (256, x.shape[1]), 2048.0 * x.shape[1]
    return [main, over(rows, parts / 4, parts, 8.0 * x.shape[1], op="columns", dtype="fp32")]


def _flag(node: Node, at: int) -> bool:
    """Boolean argument `at`; a stand-in has fewer arguments, so its only boolean is used."""
    flag = node.value(at)
    return flag if isinstance(flag, bool) else any(value is True for value in node.values)


@size("rnn")
def rnn(node: Node, rule: Rule) -> Work:
    """cuDNN's LSTM or GRU as one call: x (T, B, I) or (B, T, I), all weights, hidden width H.

    FLOPs are 2·gates·(I + H)·H per step, direction and layer; the backward pass has twice as many. An LSTM with an
    output projection to width P passes P values to the next step and layer, and needs 2·H·P more FLOPs.
    """
    x = node.tensor(1 if rule.options.get("backward") else 0)
    shape = node.attributes["rnn"]
    gates, width, layers, directions = (
        shape[key] for key in ("gates", "hidden", "layers", "directions")
    )
    weights = float(shape["weight_bytes"])
    projected = int(shape.get("projected", 0))
    fed = projected or width
    per_layer = [x.shape[-1], *[fed * directions] * (layers - 1)]
    steps = shape["tokens"] * shape["batch"] * directions
    flops = sum(2.0 * width * (gates * (inputs + fed) + projected) for inputs in per_layer) * steps
    out = steps * fed * (x.bytes // max(1, x.numel))
    sizes = (shape["batch"], shape["tokens"], x.shape[-1], width, layers)
    dims = dict(zip(("B", "T", "I", "H", "layers"), sizes, strict=True))
    factor = 2.0 if rule.options.get("backward") else 1.0

    said = {"directions": directions, "gates": gates}
    said |= {"projected": projected} if projected else {}
    read, written, dtype = (
        factor * (x.bytes + weights),
        factor * layers * out,
        computing_dtype(node, x),
    )
    return Work(dims, factor * flops, read, written, dtype, attributes=said)


def _window(node: Node, rule: Rule) -> dict[str, int]:
    """Kernel and stride of a pooling window, read from the arguments that start at position `window` (an option)."""
    at = rule.options.get("window")
    names = ("kernel_size", "stride", "padding") if at is not None else ()
    sides = zip(names, node.values[at : (at or 0) + 3], strict=False)
    return {name: int(side[0]) for name, side in sides if isinstance(side, list) and side}
