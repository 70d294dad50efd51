"""What a damaged input may do: it is refused in one line, or it is read and the result is what the input truly says."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from pipeline.errors import SteptimeError, SteptimeWarning

ANY: Any = object()
"""`Case.truth` of a case whose result nothing can foretell: a flipped digit in a file without a checksum."""

MAX_LINE = 1000
"""Longest refusal in characters, beside the text that the user gave. A message that lists all GPUs has 600."""

RELATIVE = 1e-9
"""Relative difference up to which two results are equal: sums in another order differ in their last digits."""


@dataclass(frozen=True)
class Case:
    """One damaged input.

    Attributes:
        mutation: what was done to it.
        run: reads it, and returns the result.
        must: `refuse`, `accept`, or `either`.
        truth: the result if it is accepted; `ANY` if nothing foretells it. A callable gets the result and our warnings, and
            returns the fault as text, or nothing.
        named: a refusal names one of these (a file, a key); any refusal is enough if it is empty.
    """

    mutation: str
    run: Callable[[], Any]
    must: Literal["refuse", "accept", "either"] = "either"
    truth: Any = ANY
    named: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`outcome` is refused, accepted, or the name of a failure; `detail` is the refusal or what failed."""

    outcome: str
    detail: str = ""

    @property
    def failed(self) -> bool:
        """Whether this must not happen."""
        return self.outcome not in ("refused", "accepted")


class Done(NamedTuple):
    """A case that has run, and what its worker has held at most."""

    kind: str
    mutation: str
    verdict: Verdict
    peak_bytes: int = 0


def judge(case: Case) -> Verdict:
    """Run a case. Every exception but our own is a failure, as are NumPy's warnings of NaN and overflow."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SteptimeWarning)
        warnings.simplefilter("error", RuntimeWarning)
        try:
            result = case.run()
        except SteptimeError as refusal:
            return _of_refusal(case, str(refusal))
        except AssertionError as error:
            return Verdict("wrong result", str(error)[:MAX_LINE])
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            return Verdict("traceback", _place(error))
    if case.must == "refuse":
        return Verdict("silent", f"accepted: {_short(result)}")
    if case.truth is ANY:
        return Verdict("accepted")
    warned = [str(each.message) for each in recorded]
    fault = case.truth(result, warned) if callable(case.truth) else difference(result, case.truth)
    return Verdict("wrong result", fault) if fault else Verdict("accepted")


def _of_refusal(case: Case, text: str) -> Verdict:
    if case.must == "accept":
        return Verdict("refused harmless", text)
    breaks = (
        "\n" in text and "\n" not in case.mutation
    )  # commands show what the user typed on one line
    if breaks or not text.strip() or len(text) > max(MAX_LINE, 2 * len(case.mutation)):
        return Verdict("message", f"not one line of text: {text[:MAX_LINE]!r}")
    if case.named and not any(name in text for name in case.named):
        return Verdict("message", f"names none of {', '.join(case.named)}: {text}")
    return Verdict("refused", text)


def _place(error: BaseException) -> str:
    """The exception and the innermost lines of this project that it went through."""
    lines, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return f"{type(error).__name__}: {str(error)[:300]} [{' < '.join(reversed(lines[-5:]))}]"


def difference(found: Any, truth: Any, where: str = "result") -> str:
    """Where two results differ, in words; empty if they are equal."""
    if isinstance(found, pd.DataFrame) and isinstance(truth, pd.DataFrame):
        return difference(_columns(found), _columns(truth), where)
    if is_dataclass(found) and not isinstance(found, type) and type(found) is type(truth):
        return difference(vars(found), vars(truth), where)
    if isinstance(found, Mapping) and isinstance(truth, Mapping):
        if set(found) != set(truth):
            return f"{where} has other keys: {sorted(map(str, set(found) ^ set(truth)))}"
        each = (difference(found[key], truth[key], f"{where}.{key}") for key in truth)
        return next((text for text in each if text), "")
    if isinstance(found, np.ndarray) or isinstance(truth, np.ndarray):
        found, truth = np.asarray(found), np.asarray(truth)
        if found.shape != truth.shape:
            return f"{where} has shape {found.shape}, not {truth.shape}"
        if found.dtype.kind in "fiub" and truth.dtype.kind in "fiub":
            same = np.isclose(
                found.astype(float), truth.astype(float), rtol=RELATIVE, atol=0, equal_nan=True
            )
            return (
                "" if same.all() else f"{where} differs at {int(np.flatnonzero(~same.ravel())[0])}"
            )
        return difference(found.tolist(), truth.tolist(), where)
    if isinstance(found, (list, tuple)) and isinstance(truth, (list, tuple)):
        if len(found) != len(truth):
            return f"{where} has {len(found)} parts, not {len(truth)}"
        each = (
            difference(a, b, f"{where}[{i}]")
            for i, (a, b) in enumerate(zip(found, truth, strict=True))
        )
        return next((text for text in each if text), "")
    if isinstance(found, float) and isinstance(truth, (int, float)) and not isinstance(truth, bool):
        same = math.isclose(found, truth, rel_tol=RELATIVE) or (
            math.isnan(found) and math.isnan(truth)
        )
        return "" if same else f"{where} is {found!r}, not {truth!r}"
    return (
        ""
        if found is truth or bool(found == truth)
        else f"{where} is {_short(found)}, not {_short(truth)}"
    )


def _columns(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Columns as plain lists, in which every absent value is None."""
    plain = frame.astype(object).where(frame.notna(), None)
    return {str(name): plain[name].tolist() for name in plain}


def _short(value: Any) -> str:
    return repr(value)[:200]
