"""Writes the tables of options in `config/README.md`: `python -m evaluation.pages.option_tables`."""

from __future__ import annotations

from pathlib import Path

from evaluation.pages.markdown import markdown, rewrite
from pipeline.paths import config_dir
from pipeline.question.checks import SECTION_TYPES
from pipeline.question.compose import choices
from pipeline.question.options import NAMED_BY, OPTIONS, workload_values
from pipeline.question.settings import Option

PAGE = config_dir() / "README.md"


def blocks() -> dict[str, str]:
    """The tables by the name of their block: options of workloads, and those of sections."""
    files = [workload_values(name) for name in choices("model")]
    types = {
        f"{name}.{key}": kind for name, of in SECTION_TYPES.items() for key, kind in of.items()
    }
    workloads, others = [], []
    for key, option in OPTIONS.items():
        stated = [file for file in files if key.removeprefix("model.") in file]
        if not key.startswith("model."):
            others.append([f"`{key}`", _values(option, types.get(key) is bool), option.what])
            continue
        if key in NAMED_BY.values():
            having = [library for library, named in NAMED_BY.items() if named == key]
        else:
            having = sorted({str(file["architecture"]) for file in stated})
        flag = any(isinstance(file[key.removeprefix("model.")], bool) for file in stated)
        of = (
            "all"
            if len(stated) == len(files) and len(having) > len(NAMED_BY)
            else ", ".join(having)
        )
        workloads.append([f"`{key}`", of, _values(option, flag), option.what])
    return {
        "options of workloads": markdown(("override", "of", "values", "what it is"), workloads),
        "options": markdown(("override", "values", "what it is"), others),
    }


def _values(option: Option, flag: bool) -> str:
    """The words that an option may be, or an example of what it may be."""
    words = [*option.values, *(["true", "false"] if flag else []), *option.words]
    return ", ".join(f"`{word}`" for word in [*words, option.example] if word)


def main(page: Path = PAGE) -> None:
    """Write the tables into their blocks."""
    rewrite(page, blocks())


if __name__ == "__main__":
    main()
