"""What a step that does not fit is told: the largest batch that fits, and the GPUs that its own batch fits on."""

from __future__ import annotations

import pytest

from pipeline import predict
from pipeline.answers.memory_fit import largest_batch, with_what_fits
from pipeline.errors import InputError
from pipeline.hardware.find_gpu import list_gpus, load_gpu
from pipeline.question.question import ask


def test_the_largest_batch_leaves_what_pytorch_cannot_allocate() -> None:
    """A T4 has 16 GiB, of which 0.91 can be allocated: 15.63 GB, 14,633 samples of 1 MB beside 1 GB; 16,179 in the whole."""
    asked = ask(["gpu=T4", "model=dlrm_small"])
    assert largest_batch(asked, lambda _, size: 10**9 + size * 10**6) == 14_000


def test_a_prediction_names_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    answer = predict("P4", model="dcgan", batch_size=16384)
    room = load_gpu("P4").usable_memory_bytes
    assert not answer.fits and answer.largest_batch is not None
    at, above = (
        predict("P4", model="dcgan", batch_size=answer.largest_batch + more) for more in (0, 100)
    )
    assert at.memory_bytes <= room < above.memory_bytes, "down to two digits"
    assert at.fits and at.largest_batch is None and not at.fitting_gpus
    assert set(answer.fitting_gpus) == {
        gpu.name for gpu in list_gpus() if gpu.usable_memory_bytes >= answer.memory_bytes
    }
    text = dict(answer.rows())["what fits"]
    assert (
        f"a batch of {answer.largest_batch:,} on this GPU" in text
        and answer.fitting_gpus[0] in text
    )
    assert answer.as_dict()["fitting_gpus"] == list(answer.fitting_gpus)


@pytest.mark.parametrize(
    ("share", "state"),
    [(0.89, "fits"), (0.91, "tight"), (1.001, "does not fit")],
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


def test_no_batch_fits_where_no_smaller_one_needs_less_or_can_be_built() -> None:
    def memory_bytes(_: object, size: int) -> int:
        if size < 10**6:
            raise InputError("more than one value per channel")
        return 10**12

    asked = ask(["gpu=T4", "model=dlrm_small", "batch_size=1000000"])
    assert largest_batch(asked, lambda _, size: 10**12) is None
    prediction = predict("T4", model="dlrm_small")
    assert with_what_fits(prediction, asked, memory_bytes).largest_batch is None


def test_a_largest_batch_is_sought_until_it_fits_and_no_longer() -> None:
    """Attention over the batch: 382 samples fit a T4. The line through 512 and 1,024 alone says 430."""
    tries: list[int] = []

    def memory_bytes(_: object, size: int) -> int:
        tries.append(size)
        return 10**9 + 100_000 * size**2

    assert largest_batch(ask(["gpu=T4", "model=dlrm_small"]), memory_bytes) == 380
    assert len(tries) <= 5
