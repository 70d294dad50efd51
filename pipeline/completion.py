"""Completion of overrides in a shell: names of options, and their values, as in `gpu=V100,A100`.

`steptime --install-completion` asks typer to install it. Typer completes commands and options itself.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, MutableMapping, Sequence

import typer

from pipeline.errors import InputError
from pipeline.hardware.clusters import AUTO
from pipeline.hardware.hosts import USUAL
from pipeline.paths import config_files
from pipeline.question.checks import SECTION_TYPES
from pipeline.question.compose import NAMES, choices, default_choices
from pipeline.question.options import (
    GROUPS,
    NAMED_BY,
    OPTIONS,
    option_of,
    words_of,
    workload_values,
)
from pipeline.question.question import LOCAL_GPU
from pipeline.show.catalogue import option_rows
from pipeline.work import ELECTRICITY, OVERRIDE
from pipeline.workloads.model_names import names_in
from pipeline.yaml_text import load_yaml

BATCH_SIZES = tuple(str(2**power) for power in range(4, 14))
"""Batch sizes that are offered: 16 to 8192. Any other whole number is accepted as well."""

BESIDE_FILES = {"gpu": (LOCAL_GPU,), "host": (USUAL,), "cluster": (AUTO,)}
"""Values of options that name a file, beside the names of files."""

COMPLETING, UNFINISHED = "_STEPTIME_COMPLETE", "_STEPTIME_UNFINISHED"
"""Environment variables: the shell that asks (set by typer's script), and the override that is being typed in bash."""


def join_bash_words(environment: MutableMapping[str, str]) -> None:
    """Give typer whole overrides. Bash takes `gpu=V1` for three words, and replaces only the last of them.

    The override that is being typed goes into `UNFINISHED`, because typer drops completions of other words than the last.
    """
    if environment.get(COMPLETING) != "complete_bash" or "=" not in environment.get(
        "COMP_WORDS", ""
    ):
        return
    try:
        words = shlex.split(environment["COMP_WORDS"])[: int(environment["COMP_CWORD"]) + 1]
    except (KeyError, ValueError):  # a quote that is still open
        return
    joined: list[str] = []
    for word in words:
        if joined and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    if "=" in words[-2:]:
        environment[UNFINISHED] = joined.pop()
    environment["COMP_WORDS"], environment["COMP_CWORD"] = shlex.join(joined), str(len(joined))
    if UNFINISHED not in environment:
        environment["COMP_CWORD"] = str(len(joined) - 1)


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Overrides that continue the text before the cursor.

    A single option is completed with its values, so that the shell adds no blank behind `gpu=`.
    """
    given = [
        str(word)
        for words in ctx.params.values()
        if isinstance(words, (list, tuple))
        for word in words
    ]
    word, model = os.environ.get(UNFINISHED, incomplete), _chosen("model", given)
    if "=" in word:
        key, _, text = word.partition("=")
        before = "" if UNFINISHED in os.environ else f"{key}="
        return [f"{before}{value}" for value in _continued(text, values(key, model))]
    prices = (f"{OVERRIDE}{name}" for name in choices("gpu"))
    settings = [*keys_of(model, _chosen("parallel", given)), ELECTRICITY[:-1]]
    keys = [
        key for key in (prices if word.startswith(OVERRIDE) else settings) if key.startswith(word)
    ]
    offered = values(keys[0], model) if len(keys) == 1 else ()
    return [f"{keys[0]}={value}" for value in offered] or [f"{key}=" for key in keys]


def complete_gpu(incomplete: str) -> list[str]:
    """Names of GPUs, for options such as `--gpu`."""
    return [name for name in choices("gpu") if name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Names of workloads."""
    return [name for name in choices("model") if name.startswith(incomplete)]


def keys_of(model: str, parallel: str) -> list[str]:
    """Keys of overrides for a workload and a way to use several GPUs."""
    named = [key for library, key in NAMED_BY.items() if library == model]
    options = dict.fromkeys([*named, *(str(row["option"]) for row in option_rows(model))])
    of_way = load_yaml(config_files("parallel")[parallel].read_text(encoding="utf-8"))
    settings = [
        key
        for key in OPTIONS
        for section, _, name in (key.partition("."),)
        if section in (*SECTION_TYPES, "edit") and (section != "parallel" or name in of_way)
    ]
    others = (OVERRIDE, "host", "cluster", "devices", "nodes", "experiment", "results")
    return [*GROUPS, *others, *options, *settings]


def values(key: str, model: str) -> Sequence[str]:
    """Values to offer for an option; none where any number or name may stand."""
    if key in NAMES:
        return [*choices(key), *BESIDE_FILES.get(key, ())]
    if key == "batch_size":
        return BATCH_SIZES
    if NAMED_BY.get(model) == key:
        return names_of_library(model)
    section, _, name = key.partition(".")
    if section == "edit":
        return option_of(key).words
    if section in SECTION_TYPES:
        return words_of(key, SECTION_TYPES[section].get(name) is bool)
    return words_of(key, isinstance(workload_values(model).get(name), bool))


def names_of_library(library: str) -> Sequence[str]:
    """Names of the models of a library; none if it is not installed. A list that is not kept yet takes a second."""
    try:
        return names_in(library)
    except InputError:
        return ()


def _continued(text: str, offered: Iterable[str]) -> list[str]:
    """Lists of values that continue a list: `V100,A` becomes `V100,A100-PCIE-40GB` and so on."""
    before, comma, last = text.rpartition(",")
    taken = before.split(",")
    return [
        f"{before}{comma}{value}"
        for value in offered
        if value.startswith(last) and value not in taken
    ]


def _chosen(group: str, given: Sequence[str]) -> str:
    """The file of a group whose options are offered: that of the other overrides, else the default."""
    named = [word.partition("=")[2] for word in given if word.startswith(f"{group}=")]
    known = [name for name in named if name in choices(group)]
    return known[-1] if known else str(dict(default_choices())[group])
