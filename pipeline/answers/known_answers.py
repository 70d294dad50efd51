"""Predictions that are kept between runs: a question that comes again is read, not computed.

The key of an answer holds all that it depends on: question, code, installed packages, step, and the files that models
and specifications are read from. A file counts by its path, size and time of change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from pipeline.answers.engine import engine
from pipeline.answers.who_answers import kernel_source, overhead_source
from pipeline.graph.step_store import graph_key, installed
from pipeline.model_files import DIGEST_KEY, read_json, write_json
from pipeline.paths import Artifacts, config_dir, measurements_dir, packs_dir, user_config_dir
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.user_cache import kept, key_of, module_digest


def known_prediction(question: Question, results: str | Path = "results") -> Prediction:
    """The prediction of a question, without its calls and draws; from the cache where it is known.

    Raises:
        SteptimeError: it cannot be answered.
    """

    def make() -> Prediction:
        return engine(results).predict_one(question, detail=False).whole()

    key = None if question.local else answer_key(question, results)
    return kept("answer.json", key, make, _read, _write)


def answer_key(question: Question, results: str | Path) -> str:
    """Hash of everything that an answer depends on."""
    host = question.host
    return key_of(
        {
            "question": repr(question),
            "steps": [
                graph_key(chunk.workload.plain(), chunk.batch_size, chunk.edit)
                for chunk in question.chunks
            ],
            "code": module_digest("pipeline.answers.engine"),
            "packages": installed(),
            "sources": [kernel_source(question.gpu.name), overhead_source(host.observations)],
            "files": list(_files(question, results)),
        }
    )


def _files(question: Question, results: str | Path) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of change of each file that specifications, models and overheads may be read from."""
    made = Artifacts(str(results))
    folders = [config_dir(), packs_dir(), measurements_dir(), Path(made.kernels(question.gpu.name))]
    folders += filter(None, [user_config_dir()])
    paths = [path for folder in folders for path in folder.rglob("*")]
    for path in sorted({*paths, Path(made.overhead_samples(question.host.observations))}):
        if path.is_file():
            status = path.stat()
            yield str(path), status.st_size, status.st_mtime_ns


def _read(path: Path) -> Prediction:
    stored = read_json(path, "the step is predicted again", (DIGEST_KEY,))
    return msgspec.convert(stored, Prediction)


def _write(prediction: Prediction, path: Path) -> None:
    plain = replace(prediction, stages=None, calls=None, draws_us=None, drawn=None, on_host=None)
    write_json(path, msgspec.to_builtins(plain), sealed=True)
