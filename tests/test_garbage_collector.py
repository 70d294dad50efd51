"""The pause of garbage collection, and what follows it."""

import gc

from pipeline.garbage_collector import collector_paused


def test_objects_made_in_a_pause_count_as_old_and_none_stays_frozen():
    with collector_paused():
        assert not gc.isenabled()
        made = [[number] for number in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    young = {id(each) for generation in (0, 1) for each in gc.get_objects(generation)}
    assert not young & {id(each) for each in made}


def test_a_collector_that_was_off_stays_off_and_frozen_objects_stay_frozen():
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with collector_paused():
            pass
        assert gc.get_freeze_count() >= frozen * 0.9
        gc.disable()
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.unfreeze()
        gc.enable()
