"""The step of a job of Snakemake, from the files that its rule declares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from pipeline.answers.engine import STEPS
from pipeline.graph.graph_file import read_graph
from pipeline.graph.step_modules import AS_WRITTEN
from pipeline.graph.step_store import between_ranks
from pipeline.graph.table import Graph
from pipeline.question.question import Question
from pipeline.schemas import read_table


@dataclass(frozen=True)
class StepFiles:
    """The step of one question, from the files that a rule declares. Other batch sizes come from the process's steps."""

    graph_file: str
    calls_file: str

    @cached_property
    def _captured(self) -> Graph:
        return read_graph(self.graph_file)

    def _is_other(self, question: Question) -> bool:
        """Whether a step is not that of the file: a further piece of a model (`Question.chunks`), or compiled for its GPU."""
        workload = question.workload
        if "placed" in workload:
            return bool(workload["placed"]["rank"] != question.roles[0])
        if workload.get("part", "whole") not in ("whole", "first") or workload.get("compile"):
            return True
        return self._captured.computed.get("compiled") == AS_WRITTEN

    def graph(self, question: Question) -> Graph:
        """The graph in the file; that of a further piece of a model, or of a compiled step, is one of the process's steps."""
        return STEPS.graph(question) if self._is_other(question) else self._captured

    def calls(self, question: Question) -> pd.DataFrame:
        """The calls in the file, with collectives between the GPUs of the question."""
        if self._is_other(question):
            return STEPS.calls(question)
        return between_ranks(read_table(self.calls_file, "calls"), question)

    def memory_bytes(self, question: Question, batch_size: int | None = None) -> int:
        """As `StepStore.memory_bytes`."""
        return STEPS.memory_bytes(question, batch_size)
