"""Output of every command: errors as one line and an exit code, a table or one JSON object, a progress line."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pipeline.completion import COMPLETING, complete_override, join_bash_words
from pipeline.errors import InputError, SteptimeError, show_warning
from pipeline.question.options import GROUPS, OPTIONS
from pipeline.show.tables import Catalogue, console

Item = TypeVar("Item")

Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
"""The option of every command that has a result."""

Timeline = Annotated[
    Path | None, typer.Option(help="write the timeline here: .html, or .json.gz for Perfetto")
]
Plot = Annotated[Path | None, typer.Option(help="draw the result to this .svg or .png file")]
"""Files that several commands draw."""

Csv = Annotated[bool, typer.Option("--csv", help="print the rows as CSV and nothing else")]
"""The option of commands whose result is a table."""

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="gpu=V100 model=dlrm_default batch_size=2048 and any other override",
        metavar="KEY=VALUE...",
        autocompletion=complete_override,
    ),
]
"""The arguments of every command that predicts points."""

Samples = Annotated[
    str | None, typer.Option(help="what to train: samples of an epoch, such as 1.2M")
]
Epochs = Annotated[str | None, typer.Option(help="what to train: epochs of --samples or --tokens")]
Tokens = Annotated[str | None, typer.Option(help="what to train: tokens, such as 300B")]
"""The user's work, of which answers say the hours and the cost."""

OVERRIDES = (*GROUPS, "batch_size", "predict", "edit", "experiment", "results")
"""Keys of overrides, and the sections that keys such as `model.dtype` begin with."""

TAKING_OVERRIDES = ("predict", "compare", "diff", "advise")
"""Commands that take overrides."""

MULTIRUN = {"-m", "--multirun"}
"""Hydra's option for several values, which no command needs."""

NO_MULTIRUN = "several values need no -m: write for example gpu=V100,T4"
"""What to write in its place."""


def examples(*commands: str) -> str:
    """The end of a help page: commands to try, one on each line."""
    return "\n\n".join(("Examples:", *(f"$ steptime {command}" for command in commands)))


SIGNS = dict(zip("µ→★✗█−–×≈’…·", "u>*x#--x~'..", strict=True)) | {"≥": ">="}
"""Signs of our output, and what stands for each in an encoding that lacks it: one character, so that tables stay aligned."""

PLAIN_SIGNS = "steptime-plain-signs"
"""Name of the error handler of encodings that uses `SIGNS`."""


def _plain_signs(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks; those that are not in `SIGNS` become question marks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(SIGNS.get(sign, "?") for sign in signs), error.end


codecs.register_error(PLAIN_SIGNS, _plain_signs)

INTERRUPTED = 130
"""Exit code after Ctrl-C, the same as in shells (128 + signal 2)."""


def run_app(app: typer.Typer) -> None:
    """Run the command that the arguments name, and turn errors into one line and an exit code."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    if COMPLETING in os.environ:
        join_bash_words(os.environ)
    warnings.showwarning = show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN_SIGNS)
    try:
        if {"--json", "--csv"} <= set(sys.argv):
            raise InputError("--json and --csv: give one of the two")
        code = app(prog_name="steptime", standalone_mode=False)
        if code == INTERRUPTED:  # newer typer turns the exception into this code
            _fail("interrupted", INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)
    except SteptimeError as error:
        _fail(str(error), error.exit_code)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        _fail("not enough memory for this input", 1)
    except UnicodeEncodeError as error:
        if (
            error.reason != "surrogates not allowed"
        ):  # Python stores undecodable bytes of a name as surrogates
            raise
        encoding = sys.getfilesystemencoding()
        _fail(
            f"a name is not {encoding} text: rename it, or use a UTF-8 locale and leave PYTHONUTF8"
            " unset",
            2,
        )
    except OSError as error:
        _fail(f"{error.filename or 'file'}: {error.strerror or error}", 1)
    except Exception as error:
        message = getattr(
            error, "format_message", None
        )  # a usage error of typer, with any version of click
        if message is None:
            raise
        if not message():  # no arguments: the help was shown
            sys.exit(2)
        asked = getattr(getattr(error, "ctx", None), "command_path", "steptime")
        said = message().replace("Value error, ", "")  # newer typer checks values by pydantic
        _fail(f"{said} ({_written_as_override(error, sys.argv) or f'{asked} --help'})", 2)


def _written_as_override(error: Exception, words: Sequence[str]) -> str | None:
    """What to write instead of an unknown option that is an override or Hydra's own, as in `--gpu V100`; None for other errors.

    `--gpus V100` is taken for the override with the nearest name, and `--dtype fp16` for an option of the model.
    """
    option = str(getattr(error, "option_name", ""))
    if option in MULTIRUN:
        return NO_MULTIRUN
    first = words[1] if len(words) > 1 else ""
    if not option.startswith("-") or not (first.startswith("-") or first in TAKING_OVERRIDES):
        return None
    key = option.lstrip("-").replace("-", "_")
    near = get_close_matches(key, OVERRIDES, n=1, cutoff=0.75)
    of_model = [f"model.{key}"] if f"model.{key}" in OPTIONS else []
    if key.partition(".")[0] not in OVERRIDES:
        if not (known := [*near, *of_model]):
            return None
        key = known[0]
    pairs = zip(words, [*words[1:], "-"], strict=True)
    given = next((pair for pair in pairs if pair[0].partition("=")[0] == option), ("", "-"))
    value = given[0].partition("=")[2] or ("..." if given[1].startswith("-") else given[1])
    return f"overrides have no dashes: write {key}={value}"


def _fail(message: str, code: int) -> None:
    """End with one line on the error; with `--json`, standard output is an object with `error` and `exit_code`."""
    line = " ".join(message.split())
    if "--json" in sys.argv:
        print_json({"error": line, "exit_code": code})
    sys.stdout.flush()
    print(f"steptime: {line}", file=sys.stderr)
    sys.exit(code)


def split_results(given: Sequence[str] | None) -> tuple[list[str], dict[str, Any]]:
    """The overrides without `results=FOLDER`, and that folder: models that a pipeline run left there may answer.

    Raises:
        InputError: a text is no override, or the folder does not exist.
    """
    texts = list(given or [])
    for text in texts:
        if "=" not in text:
            traced = text.endswith((".json", ".json.gz"))
            raise InputError(
                f"{text!r} is not an override: "
                + f"a trace is given as --trace {text} (advise, diff), or to steptime replay {text}"
                if traced
                else f"{text!r} is not an override: write key=value, for example gpu=V100"
            )
    results = [text for text in texts if text.startswith("results=")]
    folders = {"results": results[-1].partition("=")[2]} if results else {}
    if folders and not Path(folders["results"]).is_dir():
        raise InputError(
            f"{results[-1]}: no such folder; give the folder of a pipeline run, whose models are"
            " used"
        )
    return [text for text in texts if text not in results], folders


def work_of(samples: str | None, epochs: str | None, tokens: str | None) -> list[str]:
    """The overrides that the options of the user's work stand for."""
    given = {"samples": samples, "epochs": epochs, "tokens": tokens}
    return [f"{key}={value}" for key, value in given.items() if value is not None]


def print_json(value: Any) -> None:
    """Print one JSON object; NumPy numbers and paths become plain values."""
    print(json.dumps(value, default=_plain, allow_nan=False))


def print_csv(rows: Iterable[Mapping[Any, Any]]) -> None:
    """Print rows as CSV with a line of names; a list or a mapping is one cell, as JSON."""
    import pandas as pd

    table = pd.DataFrame(list(rows))
    cells = table.map(lambda v: json.dumps(v, default=_plain) if isinstance(v, (list, dict)) else v)
    print(cells.to_csv(index=False, lineterminator="\n"), end="")


def printed(as_json: bool, as_csv: bool, facts: Any, rows: Iterable[Mapping[Any, Any]]) -> bool:
    """Print facts as one JSON object, or rows as CSV, where one of them is asked for; whether it was."""
    if as_json:
        print_json(facts)
    elif as_csv:
        print_csv(rows)
    return as_json or as_csv


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


def catalogue(
    rows: list[dict[str, Any]],
    as_json: bool,
    as_csv: bool = False,
    optional: Sequence[str] = Catalogue.optional,
) -> None:
    """Print rows as a table with a column per key, as one JSON object or as CSV."""
    if not printed(as_json, as_csv, {"rows": rows}, rows):
        console().print(Catalogue(rows, optional), crop=False)


@contextmanager
def working(text: str) -> Iterator[Callable[[str], object]]:
    """Show a moving status line during long work, only on a terminal; it is removed afterwards.

    Yields a function that changes the line's text.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update


def progress(items: Iterable[Item], total: int, text: str) -> Iterable[Item]:
    """The items, with a progress bar. It is shown only on a terminal and is removed afterwards."""
    if total < 2 or not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, text, total, console=Console(stderr=True), transient=True)
