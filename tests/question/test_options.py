"""Options are described once: lists, completion, checks and the tables of config/README.md read the same place."""

from __future__ import annotations

from dataclasses import fields

import pytest

from evaluation.pages.markdown import block
from evaluation.pages.option_tables import PAGE, blocks
from pipeline.completion import values
from pipeline.errors import InputError
from pipeline.question.compose import choices
from pipeline.question.options import OPTIONS, SECTION_KINDS
from pipeline.question.question import ask
from pipeline.question.several_gpus import FsdpSettings
from pipeline.show.catalogue import option_rows


@pytest.mark.parametrize("model", choices("model"))
def test_every_option_of_a_workload_says_what_it_is(model: str) -> None:
    assert not [row["option"] for row in option_rows(model) if not row["what"]]


def test_every_setting_of_a_section_says_what_it_is() -> None:
    for section, kind in SECTION_KINDS.items():
        named = {name for name in kind.__annotations__ if name != "name"}
        assert {f"{section}.{name}" for name in named} <= OPTIONS.keys()


@pytest.mark.parametrize("name", blocks())
def test_the_page_has_the_tables_that_the_descriptions_give(name: str) -> None:
    assert block(PAGE.read_text(encoding="utf-8"), name) == blocks()[name]


def way_of(key: str) -> list[str]:
    """What chooses the way of being parallel that has an option, if it is not the usual one."""
    of_fsdp = {f"parallel.{option.name}" for option in fields(FsdpSettings)}
    return ["parallel=fsdp", "devices=2"] if key in of_fsdp else []


@pytest.mark.parametrize("key", [key for key, option in OPTIONS.items() if option.values])
def test_the_words_of_an_option_are_offered_and_others_refused(key: str) -> None:
    assert list(values(key, "dlrm_default")) == list(OPTIONS[key].values)
    model = "resnet50" if key == "model.memory_format" else "dlrm_default"
    model = "bert_large" if key == "model.attention" else model
    model = "gpt" if key == "model.activation" else model
    model = "hstu" if key == "model.table_optimizer" else model
    with pytest.raises(
        InputError, match=f"{key.rpartition('.')[2]}.*nonsense.*{OPTIONS[key].values[0]}"
    ):
        ask(["gpu=V100", f"model={model}", *way_of(key), f"{key}=nonsense"])
