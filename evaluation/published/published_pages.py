"""Reader of published pages of measurements: their text, and the sections for each machine in NVIDIA's pages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import TableError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import has_tf32


def read_page(file: Path, source_page: str = "docs/accuracy.md") -> str:
    """Text of a file that the user places under the datasets folder.

    Args:
        file: path of the file.
        source_page: the document that says where to get the file.

    Raises:
        TableError: the file is missing or is not text.
    """
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise missing(file, source_page) from None
    except (UnicodeDecodeError, OSError):
        raise TableError(f"{file}: not a readable text file; {source_page} says where it comes from") from None


@contextmanager
def numbers_of(file: Path) -> Iterator[None]:
    """Context that reads the numbers of a file; one that is none becomes a `TableError` with the name of the file."""
    try:
        yield
    except (ValueError, ZeroDivisionError, OverflowError, IndexError):
        raise TableError(f"{file}: a size, rate or time is not a positive number; use the file as published") from None


def positive(text: str) -> float:
    """`2,880,000` or `494k` as a number.

    Raises:
        ValueError: the text is not a positive number.
    """
    plain = text.replace(",", "").strip()
    number = 1e3 * float(plain[:-1]) if plain.endswith("k") else float(plain)
    if not 0 < number < math.inf:
        raise ValueError(f"{text} is not a positive number")
    return number


def missing(file: Path, source_page: str = "docs/accuracy.md") -> TableError:
    """The error of a file that is not there."""
    return TableError(f"{file}: no such file; {source_page} says where it comes from")


def sections(text: str, what: str, gpu_names: Mapping[str, str]) -> list[tuple[str, str]]:
    """(our name of the GPU, text) of each section of a page on one kind of performance.

    Args:
        text: a page of NVIDIA's examples.
        what: `Training` or `Inference`.
        gpu_names: our name of the GPU in each machine; sections on other machines are left out.
    """
    parts = re.split(r"^#{2,5} ", text, flags=re.MULTILINE)
    title = f"{what} performance: "
    named = [(part.splitlines()[0].removeprefix(title).strip(), part) for part in parts if part.startswith(title)]
    return [(gpu_names[name], part) for name, part in named if name in gpu_names]


def full_precision(gpu: str) -> str:
    """Precision that a GPU used where a page says fp32: TF32 if the GPU has it, because the containers enable it."""
    return "tf32" if has_tf32(load_gpu(gpu)) else "fp32"
