"""Python and the native part note the same of what a checkpointed region reads from outside and saves."""

from types import SimpleNamespace

import pytest
import torch

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.seen.reads import Reads
from noclobber.observe.takers.checkpoint import regions
from noclobber.observe.takers.checkpoint.regions import CheckpointRegion


@pytest.fixture(autouse=True)
def on():
    with noclobber.watch():
        if CONTEXT.native is None:
            pytest.skip("the native part is off here (make test NATIVE=1)")


KINDS = {
    "plain": lambda: torch.arange(6.0),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "column": lambda: torch.arange(6.0).view(2, 3)[:, 1],
    "expanded": lambda: torch.ones(1, 3).expand(4, 3),
    "empty": lambda: torch.empty(0, 3),
    "large": lambda: torch.arange(40000.0),
    "integers": lambda: torch.arange(5),
    "written": lambda: torch.zeros(3).add_(1).mul_(2),
    "conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "meta": lambda: torch.ones(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "subclass": lambda: torch.ones(3).as_subclass(torch.nn.Buffer),
}


def region_of(*tensors):
    return CheckpointRegion(CONTEXT, Way("", lambda lost: None), None, Reads(list(tensors[1:]), list(tensors[:1])))


def in_python(make, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(CONTEXT, "native", None)
        return make()


def fields(one):
    """What is noted, but for the moment and the instruction: Python 3.11 runs calls of C in another one."""
    found = {name: getattr(one, name) for name in type(one).__slots__ if name not in ("__weakref__", "moment")}
    if "place" in found:
        code, _, inside = found.pop("place")
        found["line"] = code, inside
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_reads_from_outside(kind, monkeypatch):
    tensor, other = KINDS[kind](), torch.ones(2)
    with noclobber.watch():
        found = region_of(tensor, other, tensor).outside
        expected = in_python(lambda: region_of(tensor, other, tensor).outside, monkeypatch)
    assert list(found) == list(expected)
    for one, same in zip(found.values(), expected.values(), strict=True):
        assert one.tensor() is same.tensor() is not None
        assert fields(one) == fields(same)
        assert not one.storage.expired()


@pytest.mark.parametrize("contents", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_it_saves(kind, contents, monkeypatch):
    tensor = KINDS[kind]()
    with noclobber.watch(contents=contents):
        regions = region_of(tensor), region_of(tensor)
        native, python = regions[0].functions(), in_python(regions[1].functions, monkeypatch)
        holders = SimpleNamespace(), SimpleNamespace()
        for (note, _), holder in zip((native, python) * 2, holders * 2, strict=True):
            note(holder, tensor)
        found, expected = holders
        assert [len(one.saves) for one in regions] == [2, 2]
        assert fields(found.noclobber_save) == fields(expected.noclobber_save)
        assert native[1](found, tensor) == python[1](expected, tensor)
        if kind not in ("expanded", "meta", "sparse", "empty"):
            with torch.no_grad():
                tensor.add_(1)
            assert not native[1](found, tensor)
            assert not python[1](expected, tensor)


def test_what_forward_did_not_save_is_for_python():
    with noclobber.watch():
        region = region_of(torch.ones(1))
        assert not region.functions()[1](SimpleNamespace(), torch.ones(1))


def test_what_fails_is_told(monkeypatch):
    """A save that cannot be noted natively is noted by Python, whose failure turns the way off."""
    lost = []
    with noclobber.watch():
        region = CheckpointRegion(CONTEXT, Way("regions", lost.append), None, Reads())
        note, _ = region.functions()

        def fails(*_):
            raise KeyError("planted")

        monkeypatch.setattr(regions, "RegionSave", fails)
        note(SimpleNamespace(), torch.eye(3).to_sparse())
    assert [one.way for one in lost] == ["regions"]
