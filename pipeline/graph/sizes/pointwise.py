"""Sizes of kernels that touch each element once: elementwise operators, fills, copies, losses, Fourier transforms."""

from __future__ import annotations

import math
from dataclasses import replace

from pipeline.families.dims import SECTOR_BYTES
from pipeline.graph.sizes.vocabulary import (
    Rule,
    Work,
    copied,
    element_bytes,
    filled,
    main_dtype,
    on_device,
    over,
    plain_result,
    read_by_host,
    read_bytes,
    scattered,
    size,
)
from pipeline.graph.table import DTYPE_BYTES, Node, Tensor, contiguous_strides

REAL = {"complex64": "fp32", "complex128": "fp64"}
"""Complex dtype -> dtype of its real and imaginary parts."""


@size("elementwise")
def elementwise(node: Node, rule: Rule) -> Work | None:
    """One kernel over the result; option `scalar` is the op if the second operand is a plain number."""
    result = _largest(node)
    if not result.numel:
        return None
    inputs = on_device(node.tensors())
    written = sum(t.bytes for t in node.results()) or result.bytes
    read = read_bytes(inputs)
    op = rule.op
    if "scalar" in rule.options and sum(t.numel > 1 or not t.host for t in node.tensors()) < 2:
        op = str(rule.options["scalar"])
    flops = result.numel * float(rule.options.get("flops", 1))
    strided = any(t.numel > 1 and not _same_layout(t, result) for t in inputs)
    attributes = {"strided": True} if strided else {}
    return over(
        result, flops, read, written, rule.family, op, main_dtype(node), attributes=attributes
    )


@size("triton")
def triton(node: Node, rule: Rule) -> Work:
    """A kernel that PyTorch's compiler writes: what it reads, writes and computes stands in its attributes."""
    told = node.attributes
    return over(
        (told["rows"], told["width"]),
        told["rows"] * told["width"],
        told["read"],
        told["written"],
        rule.family,
        told["op"],
        told["dtype"],
    )


@size("likelihood")
def likelihood(node: Node, rule: Rule) -> Work | None:
    """nll_loss: a label, and the sector that holds its score, for each sample (or pixel)."""
    backward = "backward" in node.name
    scores, labels = (node.tensor(int(backward) + at) for at in range(2))
    if not (count := labels.numel):
        return None
    label_bytes, touched = DTYPE_BYTES.get(labels.dtype, 8) * count, int(SECTOR_BYTES) * count
    read, written = (
        (label_bytes, touched) if backward else (label_bytes + touched, element_bytes(scores))
    )
    dims = {"B": count, "H": scores.numel // count, "inputs": read, "outputs": written}
    return Work(dims, 4.0 * count, read, written, scores.dtype)


@size("unary_in_turn")
def unary_in_turn(node: Node, rule: Rule) -> list[Work] | None:
    """`count` kernels in sequence; each reads and writes the elements of the result once."""
    one = elementwise(node, rule)
    return None if one is None else [one] * int(rule.options["count"])


@size("fill")
def fill(node: Node, rule: Rule) -> Work | None:
    """Writes a constant."""
    result = plain_result(node)
    if not result.numel or result.host:
        return None
    return over(result, 0, 0, result.bytes)


@size("diagonal")
def diagonal(node: Node, rule: Rule) -> Work | None:
    """Writes a constant to the diagonal of the result (`eye`)."""
    result = plain_result(node)
    if not result.numel or result.host:
        return None
    length = min(result.shape[-2:])
    return over((1, length), 0, 0, result.bytes // result.numel * length, dtype=result.dtype)


@size("fill_input")
def fill_input(node: Node, rule: Rule) -> Work | None:
    """Zeros in the shape of the second input: the gradient to which a scatter then writes."""
    return filled(node.tensor(1))


@size("copy")
def copy(node: Node, rule: Rule) -> Work | None:
    """copy_ and operators that copy: a memory copy if both sides have the same layout, else an elementwise kernel.

    Inputs are (target, source) for `copy_`, and (source,) for clone, contiguous and similar operators.
    """
    tensors = node.tensors()
    if not tensors:
        raise LookupError(f"{node.name}: its shapes are unknown")
    source = tensors[1] if node.name == "aten::copy_" and len(tensors) > 1 else tensors[0]
    target = tensors[0] if node.name == "aten::copy_" else (node.result() or source)
    if not target.numel:
        return None
    if source.host and target.host:
        return None
    if source.host or target.host:
        return _host_device_copy(source, target, node)
    alike = source.dtype == target.dtype and _same_layout(source, target)
    if alike and not _expanded(source):
        return copied(target, "memcpy_d2d", "memcpy")
    family, op = "copy", "transpose"
    attributes: dict[str, object] = {
        "shape": list(source.shape),
        "strides": list(source.strides or ()),
    }
    attributes |= {"strided": True, "scattered": scattered(source, target)}
    if source.dtype != target.dtype:
        family, op, attributes = "elementwise", "cast", {}
    elif source.contiguous and target.contiguous:
        family, op, attributes = "elementwise", "copy", {}
    moved = over(
        target,
        0,
        source.stored_bytes,
        target.bytes,
        family,
        op,
        main_dtype(node),
        attributes=attributes,
    )
    return replace(moved, dims={**moved.dims, "bytes": target.bytes}, api="cudaLaunchKernel")


@size("clone")
def clone(node: Node, rule: Rule) -> Work | None:
    """A copy to a new tensor; the layout is kept unless `memory_format` (a number; 0 is contiguous) sets another."""
    source = node.tensors()[0]
    kept = all(value in (None, 1) for value in node.values[1:]) and source.dense
    target = Tensor(
        source.shape,
        source.dtype,
        source.strides if kept else contiguous_strides(source.shape),
        source.host,
    )
    return copy(replace(node, name="aten::copy_", inputs=(target, source), outputs=()), rule)


@size("loss")
def loss(node: Node, rule: Rule) -> list[Work]:
    """An elementwise loss, followed by a mean or a sum unless the loss is not reduced."""
    x = node.tensor(0)
    read = read_bytes(node.tensors())
    works = [over(x, 4 * x.numel, read, x.bytes)]
    if node.value(int(rule.options.get("reduction", 2)), 1) != 0:
        works.append(over(x, x.numel, x.bytes, 4, "reduction", "mean_all"))
    return works


@size("ctc_loss")
def ctc_loss(node: Node, rule: Rule) -> list[Work]:
    """_ctc_loss(log_probs (T, B, C), targets, lengths, target lengths, ..) -> losses (B), alphas (B, T, states).

    The host reads lengths that are on the device. It copies both lengths and the places of the targets to the device. Then
    one kernel computes the alphas, frame by frame (ATen/native/cuda/LossCTC.cu).
    """
    x, targets = node.tensor(0), node.tensor(1)
    alphas = node.outputs[1] if len(node.outputs) > 1 else None
    read = [read_by_host(tensor) for tensor in on_device(node.tensors()[2:])]
    states = alphas.shape[-1] if isinstance(alphas, Tensor) else 2 * targets.shape[-1] + 1
    return [*read, *_lengths_to_device(x), _lattice(x, states, rule)]


@size("ctc_loss_backward")
def ctc_loss_backward(node: Node, rule: Rule) -> list[Work]:
    """_ctc_loss_backward(grad, log_probs, targets, lengths, target lengths, losses, alphas, ..).

    After the betas, which are computed as the alphas are, the gradient is collected from alphas and betas. For large
    problems, blanks are separate element-wise kernels; this is counted as one pass over alphas and betas.
    """
    x, alphas = node.tensor(1), node.tensor(6)
    collected = over(
        x, 4.0 * alphas.numel, x.bytes + 2 * alphas.bytes, x.bytes, "loss", "ctc_loss_gradient"
    )
    padded = over(x, 0, 0, x.bytes, "elementwise", "fill")
    betas = _lattice(x, alphas.shape[-1], rule)
    return [*_lengths_to_device(x), filled(alphas), filled(x), betas, collected, padded]


def _lengths_to_device(log_probs: Tensor) -> list[Work]:
    """The host's lists of lengths, of target lengths and of the targets' places on their way to the device."""
    numbers = Tensor((log_probs.shape[1],), "int64")
    return [copied(numbers, "memcpy_h2d", "pageable", blocking=True)] * 3


def _lattice(x: Tensor, states: int, rule: Rule) -> Work:
    """The kernel over all frames and states of a CTC loss; `T` frames follow each other."""
    frames, batch = x.shape[0], x.shape[1]
    written = batch * frames * states * (x.bytes // max(x.numel, 1))
    work = over(
        (batch * frames, states),
        8.0 * batch * frames * states,
        x.bytes,
        written,
        rule.family,
        rule.op,
        x.dtype,
    )
    return replace(work, dims={**work.dims, "T": frames})


def _host_device_copy(source: Tensor, target: Tensor, node: Node) -> Work:
    """A copy between host and device.

    It blocks the host unless it is non-blocking; host memory is then assumed to be pinned.
    """
    kind = "h2d" if source.host else "d2h"
    waits = not bool(node.value(2, False))
    dims = {"bytes": max(source.bytes, target.bytes)}
    return Work(
        dims,
        0.0,
        source.bytes,
        target.bytes,
        target.dtype,
        f"memcpy_{kind}",
        "pageable" if waits else "pinned",
        "cudaMemcpyAsync",
        waits,
    )


def _largest(node: Node) -> Tensor:
    """The tensor that a kernel runs over: the result, or the largest input if the trace has no result."""
    result = node.result()
    if result is not None and not result.host:
        return result
    inputs = on_device(node.tensors())
    return max(inputs, key=lambda tensor: tensor.numel, default=result or Tensor((), "fp32"))


def _same_layout(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors store their elements in the same order without gaps (unknown strides count as contiguous)."""
    if not a.strides or not b.strides or a.shape != b.shape:
        return a.contiguous and b.contiguous and a.numel == b.numel
    return (
        a.dense
        and b.dense
        and all(a.strides[i] == b.strides[i] for i, size in enumerate(a.shape) if size != 1)
    )


def _expanded(tensor: Tensor) -> bool:
    return tensor.stored_bytes != tensor.bytes


@size("fft")
def fft(node: Node, rule: Rule) -> list[Work]:
    """_fft_r2c, _fft_c2r, _fft_c2c (source: ATen/native/cuda/SpectralOps.cpp).

    * One memory-bound pass over all elements per dimension.
    * One multiplication if the result is normalised.
    * For c2r, a copy of the input, because cuFFT overwrites it.

    FLOPs are the usual 5·n·log2(n) of a complex transform of n elements, or half of this if one side is real.
    """
    x = node.tensor(0)
    result = node.result() or x
    sides = node.value(1)
    dims = [sides] if isinstance(sides, int) else list(sides or [-1])
    larger = x if x.numel >= result.numel else result
    real = x.dtype not in REAL or result.dtype not in REAL
    dtype = REAL.get(x.dtype, x.dtype)
    works = [one_pass(x, x, 0.0, "copy", dtype)] if node.name.endswith("c2r") else []
    for number, dim in enumerate(dims):
        length = max(larger.shape[dim] if larger.shape else 1, 2)
        flops = 5.0 * larger.numel * math.log2(length) * (0.5 if real else 1.0)
        source = x if number == 0 else result
        works.append(one_pass(source, result, flops, rule.op, dtype))
    if node.value(2, 0):
        works.append(one_pass(result, result, 2.0 * result.numel, "mulu", dtype))
    return works


def one_pass(source: Tensor, target: Tensor, flops: float, op: str, dtype: str = "") -> Work:
    """An elementwise kernel that reads one tensor and writes another, whose dtype is the default."""
    return over(target, flops, source.bytes, target.bytes, "elementwise", op, dtype)
