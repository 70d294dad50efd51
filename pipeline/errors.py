"""The errors that users may see. Each message is one line: what was wrong, where, and what to do."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from typing import Any


class SteptimeError(Exception):
    """A failure with a message meant for users; the command line prints only the message and exits with `exit_code`."""

    exit_code = 1


_OPTION = re.compile(
    r"(?<![\w/.\-])(model|gpu|parallel|predict|kernels|overheads|collect|edit|price)\."
    r"(?!(?:csv|gz|html|json|onnx|parquet|pdf|png|pt2?|py|svg|ya?ml)\b)"
    r"([a-zA-Z_][\w.]*)(?:=([\w.\-:/]+))?"
)
"""An option with a dot, and its value, as messages name it; no name of a file, such as 'model.yaml'."""


def in_python(text: str) -> str:
    """A message with its options as Python's arguments: `model__dtype="bf16"` in place of `model.dtype=bf16`."""

    def argument(found: re.Match[str]) -> str:
        section, name, value = found.groups()
        ended = name.rstrip(".")
        key = f"{section}__{ended.replace('.', '__')}{name[len(ended) :]}"
        if value is None:
            return key
        dots = value[len(value.rstrip(".:")) :]
        if not (plain := value.rstrip(".:")):
            return f"{key}={value}"
        word = {"true": "True", "false": "False", "null": "None"}.get(plain, f'"{plain}"')
        return f"{key}={plain if plain[:1].isdigit() else word}{dots}"

    return _OPTION.sub(argument, text)


@contextmanager
def python_messages() -> Iterator[None]:
    """While the body runs, errors name options as Python's arguments."""
    try:
        yield
    except SteptimeError as error:
        error.args = (in_python(str(error)), *error.args[1:])
        raise


class InputError(SteptimeError):
    """Something the user gave cannot be used: a wrong name, value, file or table."""

    exit_code = 2


class UnknownNameError(InputError):
    """A GPU, model, family or option that does not exist; the message names the nearest and lists the choices."""

    def __init__(
        self, kind: str, name: object, choices: list[str], nearest: str = "", remedy: str = ""
    ) -> None:
        nearest = nearest or did_you_mean(name, choices)
        super().__init__(
            f"unknown {kind} {shown(name)}: {nearest}choose one of"
            f" {', '.join(sorted(choices))}{remedy}"
        )


class SteptimeWarning(UserWarning):
    """Something that a user should know beside the result; commands and jobs print it as one line."""


def warn(text: str) -> None:
    """Tell the user something, on behalf of the caller of the function that calls this."""
    warnings.warn(text, SteptimeWarning, stacklevel=3)


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Replacement of `warnings.showwarning`: shows our warnings as one line, and hides libraries' own warnings."""
    if issubclass(category, SteptimeWarning):
        print("steptime: warning: " + " ".join(str(message).split()), file=sys.stderr, flush=True)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect the texts of our warnings while the body runs, each once, instead of showing them.

    Warnings of libraries are shown when the body ends.
    """
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", SteptimeWarning)
        yield texts
    texts += dict.fromkeys(
        " ".join(str(each.message).split()) for each in said if each.category is SteptimeWarning
    )
    for each in said:
        if each.category is not SteptimeWarning:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


LONGEST_SHOWN = 120
"""Largest number of characters of a value in a message; a longer one is cut."""


def shown(value: object) -> str:
    """A value as a message shows it: in quotes, on one line, and cut if it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def first_line(error: BaseException) -> str:
    """The first line of an error's text; its kind where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def name_of(given: object) -> str:
    """The name of an object that a user gave: its own, or that of its class; of a compiled module, that of the module."""
    given = given.func if isinstance(given, partial) else getattr(given, "_orig_mod", given)
    return str(getattr(given, "__name__", type(given).__name__))


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """A suggestion such as `did you mean 'V100'? `, or an empty text.

    The suggestion is the choice with the spelling closest to `name`, upper or lower case, else the first choice that begins
    with `name`. Of a dotted name, the part behind the last dot is compared with those of its section. A plain name, or one of
    no section, is compared with whole choices, too.
    """
    text, known = str(name).lower(), {choice.lower(): choice for choice in choices}
    section, dot, last = text.rpartition(".")
    own = {
        each.rpartition(".")[2]: known[each]
        for each in reversed(known)
        if not dot or each.rpartition(".")[0] == section
    }
    if not dot or not own:
        own, last = own | known, text
    close = get_close_matches(last, own, n=1, cutoff=0.6)
    close += [each for each in sorted(own) if len(last) > 2 and each.startswith(last)]
    return f"did you mean {own[close[0]]!r}? " if close else ""


class ConfigError(InputError):
    """The composed configuration holds a value that makes no sense."""


class LayoutError(ConfigError):
    """GPUs cannot share a step in the way that is asked for. In a grid, such points are left out."""


class TraceError(InputError):
    """A trace file is damaged, cut off, or holds something that no profiler writes."""


class TableError(InputError):
    """A table misses columns, holds values out of range, or cannot be read as parquet."""


class PackError(InputError):
    """A shipped pack is incomplete or damaged."""


class MeasurementError(SteptimeError):
    """A measurement on this machine did not work or cannot be trusted."""
