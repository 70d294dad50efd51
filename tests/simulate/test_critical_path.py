"""Every rule of the recurrence on steps that can be added up by hand; the pictures count microseconds."""

from __future__ import annotations

import numpy as np

from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program_changes import as_published
from pipeline.simulate.ranks import Role, simulate_ranks
from tests.simulate.programs import HOST, SYNC, program, row


def test_t2_t4_t3_of_an_op_with_one_call() -> None:
    # host  |T2=3|T4=2|T3=4|          done at 9
    #             3  5
    # s0         [1 latency] kernel 10 from 4 to 14
    t = simulate(program(row(gap=3, api=2, tail=4)), [10.0])
    assert (t.host_us[0], t.device_start[0, 0], t.step_us[0], t.active_us[0]) == (9, 4, 14, 10)


def test_t5_lies_between_two_calls_and_kernels_queue_on_a_stream() -> None:
    # host  |T4=2|T5=3|T4=2|            call 0 at 0, call 1 at 5
    # s0     .[0: 1---11][1: 12--16]    the second waits for the first, plus the gap of 1
    t = simulate(program(row(api=2, item=0), row(gap=3, api=2, item=0)), [10.0, 4.0])
    assert t.device_start[:, 0].tolist() == [1, 12] and t.step_us[0] == 16 and t.host_us[0] == 7


def test_t1_lies_between_ops_and_an_idle_stream_starts_a_call_after_the_latency() -> None:
    # host  |T4=2|T1=8|T4=2|            call 1 at 10
    # s0     .[1-3]        .[11-14]
    t = simulate(program(row(api=2), row(lead=8, api=2)), [2.0, 3.0])
    assert t.device_start[:, 0].tolist() == [1, 11] and t.step_us[0] == 14 and t.idle_us[0] == 9


def test_the_published_form_adds_half_of_t4_and_one_microsecond_between_kernels() -> None:
    # host |T2=3|T4=4 |T5=1|T4=4 |
    # s0         .[5--------15][16--21]     5 = 3 + 4/2; 16 = max(15 + 1, 8 + 4/2)
    step = program(row(gap=3, api=4, item=0), row(gap=1, api=4, item=0))
    t = simulate(as_published(step), [10.0, 5.0])
    assert t.device_start[:, 0].tolist() == [5, 16] and t.step_us[0] == 21


def test_two_streams_run_at_once_and_an_event_makes_one_wait() -> None:
    # s0  .[1-------21]
    # s1   .[2-----12]      without an event
    # s1                .[22-----32]  waiting for call 0
    free = simulate(program(row(api=1), row(api=1, stream=1)), [20.0, 10.0])
    assert free.device_start[1, 0] == 2 and free.active_us[0] == 20
    tied = simulate(program(row(api=1), row(api=1, stream=1, waits=(0,))), [20.0, 10.0])
    assert tied.device_start[1, 0] == 22 and tied.step_us[0] == 32


def test_a_host_wait_for_one_stream_ignores_the_others() -> None:
    # host |T4|T4|sync s1.|+2|              done at 9; a wait for all streams is done at 53
    # s0    .[1-------------------------51]
    # s1      .[2----7]
    rows = row(api=1), row(api=1, stream=1), row(SYNC, api=1, stream=1)
    assert simulate(program(*rows), [50.0, 5.0]).row_end[2, 0] == 9  # 2 + 5 + 2
    everything = row(api=1), row(api=1, stream=1), row(SYNC, api=1, stream=-1)
    assert simulate(program(*everything), [50.0, 5.0]).row_end[2, 0] == 53


def test_a_blocking_copy_holds_the_host_until_its_own_end() -> None:
    # host |copy..............|+2|op 5|     the copy returns at 21 + 2, the op is done at 28
    # s0    .[1-----------21]
    t = simulate(program(row(api=1, blocking=True), row(HOST, gap=5)), [20.0])
    assert t.row_end[0, 0] == 23 and t.host_us[0] == 28


def test_a_full_launch_queue_blocks_the_launch_until_the_device_catches_up() -> None:
    # host |L0|L1|L2|...........|L3|        two places: L2 needs call 0 to have begun (at 1), L3 call 1 (at 12)
    # s0    .[1------11][12-----22][23-24][25-26]
    t = simulate(program(*[row(api=1) for _ in range(4)], queue_depth=2), [10.0, 10.0, 1.0, 1.0])
    assert t.row_start[:, 0].tolist() == [0, 1, 2, 12]


def test_two_threads_the_main_thread_goes_on_when_the_backward_thread_is_done() -> None:
    # main      [0-5]                     [18-20]
    # autograd       . [8-----------16]   each switch costs its own T1 (3, then 2)
    t = simulate(
        program(row(HOST, gap=5), row(HOST, thread=1, lead=3, gap=8), row(HOST, lead=2, gap=2)),
        np.empty(0),
    )
    assert t.row_end[:, 0].tolist() == [5, 16, 20]


def test_threads_that_follow_the_same_op_run_at_the_same_time() -> None:
    # main      [0-5][5----15]
    # worker         [5--8]    follows row 0 as well
    t = simulate(
        program(row(HOST, gap=5), row(HOST, gap=10), row(HOST, thread=1, gap=3, previous=0)),
        np.empty(0),
    )
    assert t.row_end[:, 0].tolist() == [5, 15, 8] and t.step_us[0] == 15


def test_a_kernel_that_fills_the_device_holds_up_another_stream() -> None:
    # s0  .[1: fills------------21]
    # s1                            [21--24]  could start at 2, has no room
    fills, rows = np.array([True, False]), (row(api=1), row(api=1, stream=1))
    for competes, begin in ((True, 21), (False, 2)):  # a copy needs no room
        step = program(*rows, fills=fills, competes=np.array([True, competes]))
        assert simulate(step, [20.0, 3.0]).device_start[1, 0] == begin


def test_stages_of_a_pipeline_meet_in_pairs() -> None:
    # stage 0  .[1: 10][send 11-13]
    # stage 1                      [recv -13][2: 10, 14-24][send 25-27]
    # stage 2                                                          [recv -27][3: 10]
    def stage(*meetings: int) -> Role:
        rows = [row(api=0, kernel_gap=1.0) for _ in meetings]
        times = np.array([10.0 if number < 0 else 2.0 for number in meetings])
        return Role(program(*rows), times, np.array(meetings))

    stages = simulate_ranks([stage(-1, 0), stage(0, -1, 1), stage(1, -1)])
    assert stages[0].device_end[1, 0] == stages[1].device_end[0, 0] < stages[1].device_end[1, 0]
    assert stages[1].device_end[2, 0] == stages[2].device_end[0, 0] < stages[2].step_us[0]
    alone = simulate_ranks([stage(-1, -1)])
    assert alone[0].step_us[0] == simulate(program(row(api=0), row(api=0)), [10, 10]).step_us[0]


def test_the_cpu_as_device_runs_calls_on_the_calling_thread() -> None:
    # host = device |T2=2|call 10|T3=1|
    cpu = program(
        row(gap=2, tail=1, latency=0, kernel_gap=0, blocking=True), row(HOST, lead=1, gap=4)
    )
    t = simulate(cpu, [10.0])
    assert t.step_us[0] == 18 and t.active_us[0] == 10 and t.device_start[0, 0] == 2
