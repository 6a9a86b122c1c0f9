"""The live table of saves: what is there is found, what died is dropped, memory stays bounded."""

from types import SimpleNamespace
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st

from noclobber.model.seen.live_saves import EVERYWHERE, FEWEST_BEFORE_SWEEP, LiveSaves


class Handle:
    def __init__(self, storage, begin=0, end=4):
        self.lies(storage, begin, end)

    def lies(self, storage, begin=0, end=4):
        self.alias = SimpleNamespace(storage=storage, span=(begin, end))


def table():
    return LiveSaves(lambda alias: alias.storage, lambda alias: alias.span)


def met(live, storage, span):
    found, _ = live.meeting(storage, span, None)
    return found


def test_live_handles_are_found_by_storage():
    live, one, two, other = table(), Handle(1), Handle(1), Handle(2)
    live.unsorted.extend(map(ref, (one, two, other)))
    assert set(live.at(1)) == {one, two}
    assert live.at(2) == [other]
    assert live.at(3) == []
    assert live.has(1)
    assert not live.has(3)


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
        assert moves in live.at(was.storage)
        met(live, was.storage, (0, 4))
        moves.lies(storage)
        live.moved(moves, was)
        assert live.at(storage).count(moves) == 1
        assert (moves in live.at(was.storage)) == (was.storage == storage)
        assert stays in live.at(1)
    was = moves.alias
    moves.lies(None)
    live.moved(moves, was)
    assert live.at(1) == [stays]


def test_a_write_meets_new_saves_once_and_then_those_that_it_may_touch():
    live, rows = table(), [Handle(1, 4 * row, 4 * row + 4) for row in range(8)]
    live.unsorted.extend(map(ref, rows))
    assert set(met(live, 1, (0, 4)).handles) == set(rows)
    found = met(live, 1, (8, 12))
    assert found.handles == [rows[2]]
    assert found.other in rows
    late = Handle(1, 100, 104)
    live.unsorted.append(ref(late))
    assert set(met(live, 1, (6, 10)).handles) == {rows[1], rows[2], late}
    assert met(live, 2, EVERYWHERE) == ([], None)


def test_the_cost_of_a_write_is_that_of_the_saves_that_it_may_touch():
    live, rows = table(), [Handle(1, 4 * row, 4 * row + 4) for row in range(1000)]
    whole = Handle(1, 0, 4000)
    live.unsorted.extend(map(ref, (*rows, whole)))
    met(live, 1, EVERYWHERE)
    looked_at = []

    class Looked(ref):
        def __call__(self):
            looked_at.append(self)
            return super().__call__()

    for row in live.by_storage[1].rows.values():
        row[:] = [(begin, end, Looked(one())) for begin, end, one in row]
    for row in range(0, 1000, 100):
        assert set(met(live, 1, (4 * row, 4 * row + 4)).handles) == {rows[row], whole}
    assert len(looked_at) < 10 * 8


spans = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda one: (one[0], one[0] + one[1])) | st.just(
    EVERYWHERE
)


@given(st.lists(st.tuples(spans, st.booleans()), max_size=30), st.lists(spans, min_size=1, max_size=10))
def test_any_span_meets_what_it_overlaps(saved, written):
    live, handles = table(), [Handle(1, *span) for span, _ in saved]
    live.unsorted.extend(map(ref, handles))
    met(live, 1, (0, 0))
    handles = [handle for handle, (_, lives) in zip(handles, saved, strict=True) if lives]
    for begin, end in written:
        inside = {one for one in handles if one.alias.span[0] < end and begin < one.alias.span[1]}
        found = met(live, 1, (begin, end))
        assert set(found.handles) == inside == set(live.at(1, (begin, end)))
        assert len(found.handles) == len(inside)
        assert (found.other is None) == (len(inside) == len(handles))
        assert found.other is None or found.other in set(handles) - inside


def test_a_long_run_keeps_what_one_step_keeps():
    live = table()
    for _ in range(20):
        step = [Handle(n) for n in range(1000)]
        for handle in step:
            live.unsorted.append(ref(handle))
            if len(live.unsorted) > live.limit:
                live.sweep()
        met(live, 5, (0, 4))
    filed = sum(len(list(bucket.references())) for bucket in live.by_storage.values())
    assert filed + len(live.unsorted) <= FEWEST_BEFORE_SWEEP + 1000


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
