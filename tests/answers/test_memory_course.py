"""Memory over the time of a step: its peak, in time and by module."""

from __future__ import annotations

from pipeline.answers.engine import engine
from pipeline.answers.memory_course import KINDS, memory_course
from pipeline.question.question import ask

STEP = ["gpu=V100", "model=dlrm_small", "batch_size=256", "predict.draws=64"]


def test_memory_stands_on_the_time_of_the_gpu_and_names_the_module_of_its_peak() -> None:
    question = ask(STEP)
    answer = engine().predict_one(question)
    assert answer.timeline is not None and answer.calls is not None
    course = memory_course(question, answer.timeline, answer.calls)
    assert course is not None and " at the peak, in " in course.says
    us, total = course.table["us"], course.table[KINDS].sum(axis=1)
    assert us.is_monotonic_increasing and us.iloc[-1] <= answer.timeline.device_end.max()
    assert len(us) > 50 and "in backward of Dlrm" in course.says, "operators stand in their phase"
    assert total.max() <= answer.whole().memory_bytes <= course.usable_bytes
    assert memory_course(ask([*STEP, "devices=2"]), answer.timeline, answer.calls) is None
