"""Reading of files that others published: one error for each that is not there or not in its known form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def full_precision(gpu: str) -> str:
    """Precision that a GPU used where a page says fp32: TF32 if the GPU has it, because the containers enable it."""
    return "tf32" if has_tf32(load_gpu(gpu)) else "fp32"
