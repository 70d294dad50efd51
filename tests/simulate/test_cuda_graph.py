"""Steps launched as CUDA graphs, on programs that can be added up by hand and on a whole step."""

import pytest

from pipeline import predict
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program_changes import GRAPH_LAUNCH_US, as_cuda_graphs
from tests.simulate.programs import HOST, SYNC, program, row


def test_one_call_starts_all_kernels_and_their_gaps_stay():
    # eager  |lead 5|gap 3|api 2| ...  a launch each 10; host-bound
    # graph  |lead 5|api 2.5|          kernels at 5 + latency 1 = 6, then 4 + gap 1 apart
    one = row(lead=5, gap=3, api=2)
    eager = program(one, one, row(HOST, gap=7), one)
    assert simulate(eager, [4.0] * 3).device_start[:, 0].tolist() == [9, 19, 36]
    timeline = simulate(as_cuda_graphs(eager), [4.0] * 3)
    assert timeline.device_start[:, 0].tolist() == [6, 11, 16]
    assert timeline.host_us[0] == 5 + GRAPH_LAUNCH_US and timeline.step_us[0] == 20


def test_a_wait_of_the_host_cuts_the_step_into_two_graphs():
    # host |api 2.5|wait to 11 + 2|lead 3|api 2.5|     the kernel ends at 11, the wait returns at 13
    # s0    .[1-11]                     .[17-20]
    steps = program(row(gap=9, api=2), row(SYNC), row(lead=3, gap=9, api=2))
    timeline = simulate(as_cuda_graphs(steps), [10.0, 3.0])
    assert timeline.device_start[:, 0].tolist() == [1, 17]
    blocking = program(row(gap=9, api=2, blocking=True), row(lead=3, gap=9, api=2))
    assert (
        simulate(as_cuda_graphs(blocking), [10.0, 3.0]).device_start[0, 0] == 10
    )  # launched by itself, as before


def test_copies_of_the_batch_stay_outside():
    steps = program(row(gap=4, api=2), row(lead=3, gap=9, api=2))
    steps.items.phase[0] = "data"
    found = as_cuda_graphs(steps)
    assert found.gap_us.tolist() == [4, 0] and found.api_us.tolist() == [2, GRAPH_LAUNCH_US]


@pytest.mark.parametrize(
    "changes", [{}, {"model.read_loss": "before_backward", "model.copies": "pageable"}]
)
def test_a_graph_leaves_a_small_step_to_its_kernels_and_changes_no_kernel(changes):
    eager, graph = (
        predict("V100", "dlrm_ddp", batch_size=128, **{"predict.cuda_graph": on, **changes})
        for on in (False, True)
    )
    assert graph.active_us == pytest.approx(eager.active_us)
    assert graph.predicted_us < 0.5 * eager.predicted_us and graph.predicted_us > graph.active_us
    assert graph.host_us < eager.host_us and eager.bound == "host"


def test_a_large_step_gains_next_to_nothing():
    eager, graph = (
        predict("V100", "dlrm_default", batch_size=8192, **{"predict.cuda_graph": on})
        for on in (False, True)
    )
    assert 0.95 * eager.predicted_us < graph.predicted_us <= eager.predicted_us
