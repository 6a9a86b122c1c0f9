"""The live table of saves: what is there is found, what died is dropped, memory stays bounded."""

from weakref import ref

from noclobber.model.live_saves import FEWEST_BEFORE_SWEEP, LiveSaves


class Handle:
    def __init__(self, storage):
        self.alias = storage


def table():
    return LiveSaves(lambda storage: storage)


def test_live_handles_are_found_by_storage():
    live, one, two, other = table(), Handle(1), Handle(1), Handle(2)
    live.unsorted.extend(map(ref, (one, two, other)))
    assert set(live.at(1)) == {one, two}
    assert live.at(2) == [other]
    assert live.at(3) == []


def test_a_released_save_is_gone():
    live, one, two = table(), Handle(1), Handle(1)
    live.unsorted.extend(map(ref, (one, two)))
    assert len(live.at(1)) == 2
    del one
    assert live.at(1) == [two]
    del two
    assert live.at(1) == []
    assert live.by_storage == {}


def test_a_save_that_moves_is_found_where_it_is():
    live, moves, stays = table(), Handle(1), Handle(1)
    live.unsorted.extend(map(ref, (moves, stays)))
    for storage in (2, 2, 3, 1):
        was = moves.alias
        assert moves in live.at(was)
        moves.alias = storage
        live.moved(moves, was)
        assert live.at(storage).count(moves) == 1
        assert (moves in live.at(was)) == (was == storage)
        assert stays in live.at(1)
    moves.alias = None
    live.moved(moves, 1)
    assert live.at(1) == [stays]


def test_a_long_run_keeps_what_one_step_keeps():
    live = table()
    for _ in range(20):
        step = [Handle(n) for n in range(1000)]
        for handle in step:
            live.unsorted.append(ref(handle))
            if len(live.unsorted) > live.limit:
                live.sweep()
        live.at(5)
    assert sum(map(len, live.by_storage.values())) + len(live.unsorted) <= FEWEST_BEFORE_SWEEP + 1000


def test_the_limit_grows_with_what_is_alive():
    live, kept = table(), [Handle(n) for n in range(3 * FEWEST_BEFORE_SWEEP)]
    sweeps = 0
    for handle in kept:
        live.unsorted.append(ref(handle))
        if len(live.unsorted) > live.limit:
            live.sweep()
            sweeps += 1
    assert sweeps <= 3
    assert len(live.at(0)) == 1
