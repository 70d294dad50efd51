"""Reading of files that others published: one error for each that is not there or not in its known form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import TableError

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
        raise TableError(f"{file}: no such file; {source_page} says where it comes from") from None
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise TableError(
            f"{file}: not in its published form ({reason}); {source_page} says where it comes from"
        ) from None
