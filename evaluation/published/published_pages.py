"""Reading of files that others published: one error for each that is not there or not in its known form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.errors import TableError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import has_tf32

UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    SyntaxError,
)
"""What Python and pandas raise while they read a file of another form."""


@contextmanager
def reading(file: Path, source_page: str = "docs/accuracy.md") -> Iterator[None]:
    """Context that reads a file which the user places under the datasets folder.

    Args:
        file: path of the file.
        source_page: the document that says where to get the file.

    Raises:
        TableError: the file is missing, or has another form; the message is one line with its name.
    """
    try:
        yield
    except FileNotFoundError:
        raise missing(file, source_page) from None
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise TableError(
            f"{file}: not in its published form ({reason}); {source_page} says where it comes from"
        ) from None


def missing(file: Path, source_page: str = "docs/accuracy.md") -> TableError:
    """The error of a file that is not there."""
    return TableError(f"{file}: no such file; {source_page} says where it comes from")


def read_columns(file: Path, key: str, columns: Sequence[str]) -> dict[str, dict[str, float]]:
    """Numbers of a CSV file that are 0 or more: for each value of the key column, the value of each of `columns`.

    Raises:
        ValueError, LookupError, OSError: the file has another form; to be used within `reading`.
    """
    table = pd.read_csv(file)
    values = table[list(columns)].apply(pd.to_numeric).to_numpy(dtype=np.float64)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(f"a value of {', '.join(columns)} is not 0 or a positive number")
    names = table[key].astype(str).tolist()
    return {
        name: dict(zip(columns, row, strict=True))
        for name, row in zip(names, values.tolist(), strict=True)
    }


def positive(text: object) -> float:
    """`2,880,000` or `494k` as a number.

    Raises:
        ValueError: the text is not a positive number.
    """
    plain = str(text).replace(",", "").strip()
    number = 1e3 * float(plain[:-1]) if plain.endswith("k") else float(plain)
    if not 0 < number < math.inf:
        raise ValueError(f"{text} is not a positive number")
    return number


def sections(text: str, what: str, gpu_names: Mapping[str, str]) -> list[tuple[str, str]]:
    """(our name of the GPU, text) of each section of a page on one kind of performance.

    Args:
        text: a page of NVIDIA's examples.
        what: `Training` or `Inference`.
        gpu_names: our name of the GPU in each machine; sections on other machines are left out.
    """
    parts = re.split(r"^#{2,5} ", text, flags=re.MULTILINE)
    title = f"{what} performance: "
    named = [
        (part.splitlines()[0].removeprefix(title).strip(), part)
        for part in parts
        if part.startswith(title)
    ]
    return [(gpu_names[name], part) for name, part in named if name in gpu_names]


def full_precision(gpu: str) -> str:
    """Precision that a GPU used where a page says fp32: TF32 if the GPU has it, because the containers enable it."""
    return "tf32" if has_tf32(load_gpu(gpu)) else "fp32"
