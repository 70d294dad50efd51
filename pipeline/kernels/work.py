"""Arithmetic and memory traffic of kernel calls, as functions of their dimensions.

`Dims` gives every function the same view of a calls or samples table: float64 columns by name, with defaults for absent
dimensions. A multiply-add counts as two FLOPs. Traffic is the number of bytes that must cross DRAM if no data is
cached. Broadcast operands count once, and so do tensors that are changed in place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Array = npt.NDArray[np.float64]

ELEMENT_BYTES = {
    "fp64": 8, "int64": 8, "fp32": 4, "tf32": 4, "int32": 4, "fp16": 2, "bf16": 2, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "fp8": 1,
}  # fmt: skip
"""Bytes of one element, by dtype name. An unknown dtype counts as fp32."""

SECTOR_BYTES = 32.0
"""Bytes of a sector, the smallest unit that DRAM and L2 move (Lin et al., section on embedding lookup)."""

TWO_OPERAND_OPS = ("add", "mul", "div", "pow", "sub", "maximum", "minimum")
"""Element-wise ops that read two tensors of the output's size. `addu`, `mulu` and similar ops take a scalar instead."""


def values_of(keys: npt.NDArray[np.object_], values: Mapping[str, float], default: float) -> Array:
    """The value of each key, or `default`, shape (rows,). Each distinct key is looked up only once."""
    if _one_text(keys):
        return np.full(len(keys), values.get(keys[0], default), dtype=np.float64)
    codes, distinct = pd.factorize(keys)
    return np.array([*(values.get(key, default) for key in distinct), default], dtype=np.float64)[
        codes
    ]


def is_one_of(keys: npt.NDArray[np.object_], wanted: Collection[str]) -> npt.NDArray[np.bool_]:
    """Whether each key is in `wanted`, shape (rows,)."""
    if _one_text(keys):
        return np.full(len(keys), keys[0] in wanted)
    return np.asarray(values_of(keys, dict.fromkeys(wanted, 1.0), 0.0) > 0)


def _one_text(keys: npt.NDArray[np.object_]) -> bool:
    """Whether the keys are a column of one text, from `Dims.text`."""
    return keys.strides == (0,) and len(keys) > 0


class Dims:
    """Columns of a table as float64 arrays, with defaults where a dimension is absent or null."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        self.rows = len(table)

    def __call__(self, name: str, default: float | Array = np.nan) -> Array:
        """Column `name` as float64 of length `rows`; `default` where it is missing or null."""
        if name not in self.table.columns:
            return np.broadcast_to(np.asarray(default, dtype=np.float64), (self.rows,)).copy()
        column = self.table[name]
        if column.dtype != np.float64:
            if not pd.api.types.is_numeric_dtype(column):
                column = pd.to_numeric(column, errors="coerce")
            column = column.astype(np.float64)
        values = column.to_numpy()
        missing = np.isnan(values)
        return np.where(missing, default, values) if missing.any() else values.copy()

    def text(self, name: str, default: str = "") -> npt.NDArray[np.object_]:
        """Column `name` as text; `default` where it is missing or null.

        The text of a column with a single one is stored once, in an array that cannot be changed.
        """
        if name not in self.table.columns:
            return np.broadcast_to(np.array(default, dtype=object), (self.rows,))
        column = self.table[name].array
        if isinstance(column, pd.Categorical):
            kinds, codes = np.array([*column.categories, default], dtype=object), column.codes
            one = len(codes) > 0 and bool((codes == codes[0]).all())
            return np.broadcast_to(kinds[codes[:1]], (self.rows,)) if one else kinds[codes]
        values = column.to_numpy(dtype=object)
        missing = pd.isna(values)
        return (
            np.where(missing, np.array(default, dtype=object), values)
            if missing.any()
            else values.copy()
        )

    def element_bytes(self) -> Array:
        """Bytes of one element, from the `dtype` column; 4 where it is missing."""
        return values_of(self.text("dtype", "fp32"), ELEMENT_BYTES, 4.0)

    def backward(self) -> npt.NDArray[np.bool_]:
        """Whether each call belongs to the backward pass, shape (rows,)."""
        return np.asarray(self.text("phase", "forward") == "backward", dtype=bool)

    def flag(self, name: str) -> npt.NDArray[np.bool_]:
        """Whether `name` is true in `attributes` (JSON), shape (rows,)."""
        codes, texts = pd.factorize(self.text("attributes"))
        flags = [f'"{name}":true' in str(text).replace(" ", "") for text in texts]
        return np.asarray(np.array(flags, dtype=bool)[codes])

    def channels_last(self) -> npt.NDArray[np.bool_]:
        """Whether images have the channels innermost (`layout` in `attributes`), shape (rows,)."""
        return (
            pd.Series(self.text("attributes"))
            .str.contains('"layout":"nhwc"', regex=False)
            .to_numpy(dtype=bool)
        )

    def op_in(self, names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        """Whether the op of each call is one of `names`, shape (rows,)."""
        return is_one_of(self.text("op"), names)


@dataclass(frozen=True)
class Work:
    """Arithmetic and traffic per call: `flops`, bytes `read` and `written`, each of shape (rows,)."""

    flops: Array
    read: Array
    written: Array

    @property
    def bytes(self) -> Array:
        """Traffic in both directions."""
        return self.read + self.written


def sectors(size: Array) -> Array:
    """Bytes rounded up to whole sectors."""
    return np.asarray(np.ceil(size / SECTOR_BYTES) * SECTOR_BYTES)


def matrix_product(d: Dims) -> Work:
    """Product of (B x) M x N and N x K, where N is the reduction length; `linear` adds a bias of K elements."""
    b, m, n, k, size = d("B", 1.0), d("M"), d("N"), d("K"), d.element_bytes()
    bias = np.where(d.op_in(("linear", "addmm")), k, 0.0)
    return Work(2.0 * b * m * n * k, size * (b * (m * n + n * k) + bias), size * b * m * k)


def output_size(
    size: Array, window: Array, stride: Array, padding: Array, dilation: Array | float = 1.0
) -> Array:
    """Positions of a convolution or pooling window along one axis, at least 1."""
    reach = dilation * (window - 1.0) + 1.0
    return np.asarray(np.maximum(np.floor((size + 2.0 * padding - reach) / stride) + 1.0, 1.0))


@dataclass(frozen=True)
class ConvShape:
    """A convolution's derived sizes, each of shape (rows,): output height and width, window area, group sizes."""

    batch: Array
    in_channels: Array
    out_channels: Array
    height: Array
    width: Array
    out_height: Array
    out_width: Array
    window: Array
    groups: Array

    @classmethod
    def of(cls, d: Dims) -> ConvShape:
        """Read the convolution dims of a table; `_w` columns default to the square case."""
        kernel, size, stride, padding = (
            d("kernel_size"),
            d("input_size"),
            d("stride", 1.0),
            d("padding", 0.0),
        )
        dilation = d("dilation", 1.0)
        kernel_w, width = d("kernel_size_w", kernel), d("input_size_w", size)
        return cls(
            d("B"),
            d("in_channels"),
            d("out_channels"),
            size,
            width,
            output_size(size, kernel, stride, padding, dilation),
            output_size(width, kernel_w, d("stride_w", stride), d("padding_w", padding), dilation),
            kernel * kernel_w,
            np.maximum(d("groups", 1.0), 1.0),
        )

    @property
    def inputs(self) -> Array:
        """Elements of the input image."""
        return self.batch * self.in_channels * self.height * self.width

    @property
    def outputs(self) -> Array:
        """Elements of the output image."""
        return self.batch * self.out_channels * self.out_height * self.out_width

    @property
    def weights(self) -> Array:
        """Elements of the filter."""
        return self.out_channels * self.in_channels / self.groups * self.window

    @property
    def flops(self) -> Array:
        """Direct-convolution FLOPs; the same for forward, data gradient and weight gradient."""
        return 2.0 * self.outputs * self.in_channels / self.groups * self.window


def implicit_product(name: str, d: Dims) -> tuple[Array, Array, Array, Array]:
    """The matrix product that equals a convolution: (rows, reduction, columns, groups), each of shape (rows,)."""
    c = ConvShape.of(d)
    inside, outside = c.in_channels / c.groups, c.out_channels / c.groups
    if name == "conv2d_backward_data":
        # with a stride, each input pixel meets only a part of the window's taps; libraries skip the zeros between them
        taps = np.maximum(
            np.rint(outside * c.window * c.out_height * c.out_width / (c.height * c.width)), 1.0
        )
        return c.batch * c.height * c.width, taps, inside, c.groups
    if name == "conv2d_backward_weight":
        return inside * c.window, c.batch * c.out_height * c.out_width, outside, c.groups
    return c.batch * c.out_height * c.out_width, inside * c.window, outside, c.groups


def conv_forward(d: Dims) -> Work:
    """Read image and filter, write the output image."""
    c, size = ConvShape.of(d), d.element_bytes()
    return Work(c.flops, size * (c.inputs + c.weights), size * c.outputs)


def conv_backward_data(d: Dims) -> Work:
    """Read the output's gradient and the filter, write the image's gradient."""
    c, size = ConvShape.of(d), d.element_bytes()
    return Work(c.flops, size * (c.outputs + c.weights), size * c.inputs)


def conv_backward_weight(d: Dims) -> Work:
    """Read image and output's gradient, write the filter's gradient."""
    c, size = ConvShape.of(d), d.element_bytes()
    return Work(c.flops, size * (c.outputs + c.inputs), size * c.weights)


def rows_by_width(
    d: Dims, reads: Array | float, writes: Array | float, flops_per_element: float
) -> Work:
    """`reads` and `writes` passes over B x H elements. Columns `inputs` and `outputs` (bytes) take precedence."""
    elements = d("B", 1.0) * d("H")
    size = d.element_bytes()
    return Work(
        flops_per_element * elements,
        d("inputs", size * elements * np.asarray(reads)),
        d("outputs", size * elements * np.asarray(writes)),
    )


def elementwise(d: Dims) -> Work:
    """Read one or two operands, write one. A backward reads the gradient and the tensor that the forward saved."""
    two = d.op_in(TWO_OPERAND_OPS) | d.backward()
    return rows_by_width(d, np.where(two, 2.0, 1.0), 1.0, 1.0)


def normalised_rows(d: Dims) -> Work:
    """Softmax and layer norm: read a tensor, write a tensor. A backward reads the gradient and the saved tensor."""
    return rows_by_width(d, np.where(d.backward(), 2.0, 1.0), 1.0, 8.0)


def dropout(d: Dims) -> Work:
    """Read a tensor, write a tensor and a mask of one byte per element. A backward reads gradient and mask."""
    elements, size, back = d("B", 1.0) * d("H"), d.element_bytes(), d.backward()
    read = np.where(back, size + 1.0, size) * elements
    written = np.where(back, size, size + 1.0) * elements
    return Work(2.0 * elements, d("inputs", read), d("outputs", written))


def reduction(d: Dims) -> Work:
    """Read B x H, write B."""
    b, h, size = d("B", 1.0), d("H"), d.element_bytes()
    return Work(b * h, d("inputs", size * b * h), d("outputs", size * b))


LIKELIHOODS = ("nll_loss", "nll_loss2d")
"""Ops of the negative log-likelihood: of samples, and of the pixels of images."""


def loss(d: Dims) -> Work:
    """Read prediction and target, write the loss. The backward writes a gradient of the prediction's size.

    A likelihood touches a label, and a sector of the prediction, of each of B samples. Another kernel clears its gradient.
    """
    b, h, size, back = d("B", 1.0), d("H", 1.0), d.element_bytes(), d.backward()
    read, written = (
        d("inputs", 2.0 * size * b * h),
        d("outputs", np.where(back, size * b * h, size)),
    )
    one = d.op_in(LIKELIHOODS)
    read = np.where(one, b * np.where(back, 8.0, 8.0 + SECTOR_BYTES), read)
    return Work(
        4.0 * b * np.where(one, 1.0, h),
        read,
        np.where(one, np.where(back, b * SECTOR_BYTES, size), written),
    )


def batch_norm(d: Dims) -> Work:
    """Batch norm: one pass for statistics, which inference knows, one to normalise. A backward reads gradient and input twice."""
    elements, size = d("B", 1.0) * d("C") * d("HW", 1.0), d.element_bytes()
    passes = np.where(d.backward(), 4.0, np.where(d.op_in(("batch_norm_inference",)), 1.0, 2.0))
    return Work(
        8.0 * elements, d("inputs", passes * size * elements), d("outputs", size * elements)
    )


def pooling(d: Dims) -> Work:
    """Pooling over HW input positions. Without column `outputs`, the window is 2 x 2, so a quarter is written."""
    elements, size, back = d("B", 1.0) * d("C") * d("HW", 1.0), d.element_bytes(), d.backward()
    small = elements / 4.0
    read, written = np.where(back, small, elements), np.where(back, elements, small)
    return Work(elements, d("inputs", size * read), d("outputs", size * written))


def moved_bytes(d: Dims) -> Work:
    """Copies, concat, transposes: `bytes` are read, and the same number is written."""
    size = d("bytes", d("outputs", d("B", 1.0) * d("H") * d.element_bytes()))
    return Work(np.zeros(d.rows), d("inputs", size), d("outputs", size))


def written_bytes(d: Dims) -> Work:
    """Memset: `bytes` are written, and none are read."""
    return Work(np.zeros(d.rows), np.zeros(d.rows), d("bytes", d("outputs")))


def optimizer(d: Dims) -> Work:
    """Optimiser step on `bytes` of parameters.

    SGD reads parameter and gradient, and writes the parameter. Other optimisers also read and write their state.
    """
    op = pd.Series(d.text("op")).str.lower()
    state = np.where(op.str.contains("adagrad|momentum|rms"), 1.0, 0.0)
    state = np.where(op.str.contains("adam"), 2.0, state)
    size = d("bytes", d("inputs"))
    return Work(
        size / 4.0 * (2.0 + 4.0 * state),
        d("inputs", size * (2.0 + state)),
        d("outputs", size * (1.0 + state)),
    )


def tril_index(d: Dims) -> Work:
    """Lower triangle of B matrices F x F gathered to (or scattered from) B rows of F(F-1)/2.

    A gather reads the sectors that hold the triangle, which are about the whole lower half. A backward first sets
    all F x F elements to zero.
    """
    b, f, size, back = (
        d("B"),
        d("F"),
        d.element_bytes(),
        d.backward() | (d.text("family") == "tril_index_backward"),
    )
    triangle = b * f * (f - 1.0) / 2.0
    square = b * f * f
    read = np.where(back, triangle, (square + triangle) / 2.0) + 16.0 / size * f * (f - 1.0) / 2.0
    written = np.where(back, square + triangle, triangle)
    return Work(np.zeros(d.rows), d("inputs", size * read), d("outputs", size * written))


def interaction(d: Dims) -> Work:
    """Dot products of all pairs of F vectors of D elements, for each of B rows; written after the first vector.

    A backward reads the vectors and the gradient of the result. It writes a gradient of all vectors, and a separate
    gradient of the first vector.
    """
    b, f, dim, size, back = d("B"), d("F"), d("D"), d.element_bytes(), d.backward()
    pairs = f * (f - 1.0) / 2.0
    vectors, joined = b * f * dim, b * (dim + pairs)
    flops = np.where(back, 2.0, 1.0) * 2.0 * b * pairs * dim
    read = np.where(back, vectors + joined, vectors)
    written = np.where(back, vectors + b * dim, joined)
    return Work(flops, d("inputs", size * read), d("outputs", size * written))


def recurrent(d: Dims) -> Work:
    """LSTM-like cells with 4 gates: each layer and step multiplies the input and the hidden state with weights."""
    b, t, i, h, layers, size = d("B"), d("T"), d("I"), d("H"), d("layers", 1.0), d.element_bytes()
    weights = 4.0 * h * (i + h + 2.0) + (layers - 1.0) * 4.0 * h * (2.0 * h + 2.0)
    scale = np.where(d.backward(), 2.0, 1.0)
    # the recurrent weights are read again at every step
    return Work(
        scale * 2.0 * b * t * weights,
        scale * size * (b * t * i + t * weights),
        scale * size * b * t * h * 6.0,
    )


def attention(d: Dims) -> Work:
    """Fused attention: two products, no score matrix in DRAM.

    B is batch x heads, M the number of queries, N that of keys, and K the head width.

    Causal attention (in `attributes`) computes half of the scores.
    """
    b, m, n, k, size = d("B"), d("M"), d("N"), d("K"), d.element_bytes()
    scale = np.where(d.backward(), 2.5, 1.0)
    return Work(
        np.where(d.flag("causal"), 0.5, 1.0) * scale * 4.0 * b * m * n * k,
        scale * size * b * k * (m + 2.0 * n),
        scale * size * b * m * k,
    )


def given_work(d: Dims) -> Work:
    """Families without a formula: columns `flops`, `bytes_read` and `bytes_written`, else dims that hold bytes."""
    size = d("bytes", d("B", 1.0) * d("H") * d.element_bytes())
    return Work(
        d("flops", 0.0), d("bytes_read", d("inputs", size)), d("bytes_written", d("outputs", size))
    )
