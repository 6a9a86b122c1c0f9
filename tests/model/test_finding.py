"""Equal findings become one, which counts them and names what each was about."""

from __future__ import annotations

from dataclasses import replace

from noclobber.model.reports.finding import PUT_BACK, Finding, merged
from noclobber.model.seen.clobber import Clobber
from noclobber.model.seen.events import Read, Save, Tensor


def named(name: str | None) -> Finding:
    made = Finding("NC101", "stale-save", "error", "m", ())
    return made.about(Clobber(Save("MulBackward0", "other", Tensor(name=name), 0), (), Read(""), 1))


def joined(*names: str | None) -> Finding:
    (joined,) = merged(map(named, names))
    return joined


def test_one_tensor_that_is_seen_again_is_counted() -> None:
    assert named("h").seen == ""
    assert joined("h", "h", None).seen == "seen 3 times at these lines, shown once"
    assert joined(None, None).seen == "seen 2 times at these lines, shown once"


def test_several_tensors_of_one_line_are_named() -> None:
    found = joined("net.0.mean", "net.2.mean", "net.0.mean")
    assert found.seen == "seen 3 times at these lines, for `net.0.mean` and `net.2.mean`; shown once"
    assert found.names == ("net.0.mean", "net.2.mean")
    assert (
        joined("a", "b", "c", "d", "e").seen
        == "seen 5 times at these lines, for `a`, `b`, `c`, `d` and others; shown once"
    )


def test_that_values_were_put_back_is_said_only_if_it_holds_each_time() -> None:
    put_back, other = replace(named("h"), notes=("why", f"computes; {PUT_BACK}")), replace(named("h"), notes=("why",))
    assert put_back.with_facts_of(put_back).notes == put_back.notes
    assert put_back.with_facts_of(other).notes == ("why",)
    assert other.with_facts_of(put_back).notes == ("why",)
