"""What a step that does not fit is told: the largest batch that fits, and the GPUs that its own batch fits on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline import predict
from pipeline.answers.memory_fit import estimated_largest_batch, largest_fitting
from pipeline.errors import InputError
from pipeline.hardware.find_gpu import list_gpus, load_gpu
from pipeline.question.question import ask


@pytest.mark.parametrize(
    ("need", "most"),
    [
        (lambda n: 1000 + 7 * n, 1285),
        (lambda n: 1000 + 7 * n + n * n, 91),
        (lambda n: 1000 + 64 * (n // 64), 9023),
        (lambda n: 1000 + 9001 * (n > 3), 3),
        (lambda n: 20_000 + n, None),
    ],
)
def test_the_largest_batch_is_found_whatever_the_curve(
    need: Callable[[int], int], most: int | None
) -> None:
    tries: list[int] = []

    def memory_of(size: int) -> int:
        tries.append(size)
        return need(size)

    found = largest_fitting(9999, 10_001, 10_000, memory_of)
    assert found == most and (most is None or need(most) <= 10_000 < need(most + 1))
    assert len(tries) <= 40 and len(tries) == len(set(tries))


def test_a_line_takes_few_tries() -> None:
    tries: list[int] = []

    def memory_of(size: int) -> int:
        tries.append(size)
        return 1000 * size + 10**8

    assert largest_fitting(1 << 20, 1000 * (1 << 20) + 10**8, 10**9, memory_of) == 900_000
    assert len(tries) <= 4


def test_the_largest_batch_leaves_what_pytorch_cannot_allocate() -> None:
    """A T4 has 16 GiB, of which 0.91 can be allocated: 15.63 GB, 14,633 samples of 1 MB beside 1 GB; 16,179 in the whole."""
    asked = ask(["gpu=T4", "model=dlrm_small"])
    assert estimated_largest_batch(asked, lambda _, size: 10**9 + size * 10**6) == 14_000


def test_sizes_at_which_the_step_cannot_be_built_do_not_fit() -> None:
    def memory_of(size: int) -> int:
        if size < 2:
            raise InputError("more than one value per channel")
        return 10 * size

    assert largest_fitting(100, 1000, 55, memory_of) == 5
    assert largest_fitting(100, 1000, 15, memory_of) is None


def test_a_prediction_names_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    answer = predict("P4", model="resnet50", batch_size=512)
    room = load_gpu("P4").usable_memory_bytes
    assert not answer.fits and answer.largest_batch is not None
    at, above = (
        predict("P4", model="resnet50", batch_size=answer.largest_batch + more) for more in (0, 1)
    )
    assert at.memory_bytes <= room < above.memory_bytes
    assert at.fits and at.largest_batch is None and not at.fitting_gpus
    assert set(answer.fitting_gpus) == {
        gpu.name for gpu in list_gpus() if gpu.usable_memory_bytes >= answer.memory_bytes
    }
    text = dict(answer.rows())["what fits"]
    assert (
        f"a batch of {answer.largest_batch:,} on this GPU" in text
        and answer.fitting_gpus[0] in text
    )
    assert answer.as_dict()["largest_batch"] == answer.largest_batch
    assert answer.as_dict()["fitting_gpus"] == list(answer.fitting_gpus)


@pytest.mark.parametrize(
    ("share", "state"),
    [(0.8, "fits"), (0.89, "fits"), (0.91, "tight"), (0.999, "tight"), (1.001, "does not fit")],
)
def test_a_step_near_the_usable_memory_is_tight(
    share: float, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    need = predict("T4", model="dlrm_small", batch_size=65536).memory_bytes
    gib = need / share / load_gpu("T4").usable_memory_share / 2**30
    answer = predict("T4", model="dlrm_small", batch_size=65536, gpu__memory_gib=gib)
    assert (answer.memory_state, answer.fits, answer.tight) == (
        state,
        state != "does not fit",
        state == "tight",
    )


def test_a_largest_batch_is_sought_until_it_fits_and_no_longer() -> None:
    """Attention over the batch: 382 samples fit a T4. The line through 512 and 1,024 alone says 430."""
    tries: list[int] = []

    def memory_bytes(_: object, size: int) -> int:
        tries.append(size)
        return 10**9 + 100_000 * size**2

    assert estimated_largest_batch(ask(["gpu=T4", "model=dlrm_small"]), memory_bytes) == 380
    assert len(tries) <= 5
