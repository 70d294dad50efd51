"""The errors that users may see: one line each, saying what was wrong, where, and what to do."""

from __future__ import annotations


class SteptimeError(Exception):
    """A failure with a message meant for users; the command line prints it alone and exits with `exit_code`."""

    exit_code = 1


class InputError(SteptimeError):
    """Something the user gave cannot be used: a wrong name, value, file or table."""

    exit_code = 2


class UnknownNameError(InputError):
    """A GPU, model, family or option that does not exist; the message lists the choices."""

    def __init__(self, kind: str, name: object, choices: list[str]) -> None:
        super().__init__(f"unknown {kind} {name!r}: choose one of {', '.join(sorted(choices))}")


class ConfigError(InputError):
    """The composed configuration holds a value that makes no sense."""


class TraceError(InputError):
    """A trace file is damaged, cut off, or holds something that no profiler writes."""


class TableError(InputError):
    """A table misses columns, holds values out of range, or cannot be read as parquet."""


class PackError(InputError):
    """A shipped pack is incomplete or damaged."""


class MeasurementError(SteptimeError):
    """A measurement on this machine did not work or cannot be trusted."""
