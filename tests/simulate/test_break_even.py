"""How much faster a host must be for a host-bound step to become device-bound."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline import predict
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program_changes import device_bound_from, on_host
from tests.simulate.programs import HOST, LAUNCH, SYNC, drawn_rows, program, row


def test_a_step_that_can_be_added_up() -> None:
    # host |T2 90|L 0|wait|+2|T3 10|    100 us of host time and a kernel of 40 us on the path: even at 2.5 times the speed
    step = program(row(gap=90), row(SYNC, tail=10))
    assert simulate(step, [40.0]).bound == "host"
    assert device_bound_from(step, [40.0]) == pytest.approx(2.5, abs=0.011)
    assert simulate(on_host(step, 2.52), [40.0]).bound == "device"
    assert simulate(on_host(step, 2.48), [40.0]).bound == "host"


def test_a_device_bound_step_needs_no_faster_host() -> None:
    assert device_bound_from(program(row(gap=5)), [40.0]) == 1.0


def test_a_step_without_device_time_stays_host_bound() -> None:
    assert device_bound_from(program(row(HOST, gap=5)), []) is None


@pytest.mark.parametrize("seed", range(6))
def test_the_speed_is_the_smallest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = drawn_rows(rng, 30, (HOST, LAUNCH, LAUNCH, SYNC), streams=2)
    step = program(*rows)
    kernels = rng.exponential(6, step.call_count)
    speed = device_bound_from(step, kernels)
    assert speed is not None
    assert simulate(on_host(step, speed), kernels).bound == "device"
    assert speed == 1.0 or simulate(on_host(step, speed - 0.011), kernels).bound == "host"


def test_a_prediction_says_so_and_the_faster_host_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_DATASETS", "none")
    asked = {"gpu": "V100", "model": "dlrm_ddp", "batch_size": 512}
    answer = predict(**asked)
    assert answer.bound == "host" and answer.device_bound_from is not None
    assert answer.as_dict()["device_bound_from"] == answer.device_bound_from
    assert answer.as_dict()["host"] == answer.host == "typical-2017"
    rows = dict(answer.rows())
    assert rows["computed with"].startswith(f"host {answer.host}")
    said = f"the GPU is the limit from a host {answer.device_bound_from:.2f} times as fast"
    assert said in rows["limited by"]
    faster, slower = (
        predict(**asked, overheads__host_scale=1 / speed)
        for speed in (answer.device_bound_from + 0.01, answer.device_bound_from - 0.02)
    )
    assert (faster.bound, slower.bound) == ("device", "host")
    assert faster.device_bound_from is None
