"""Memory that the program frees while a save is on it, and fills again: what an activation that is moved to the host
for a while goes through."""

import warnings
from functools import partial

import pytest
import torch

import noclobber

SIZE = 48


def elsewhere(storage):
    """Give a storage other memory than it had."""
    size, address, others = storage.size(), storage.data_ptr(), []
    storage.resize_(0)
    while True:
        storage.resize_(size)
        if storage.data_ptr() != address:
            return
        storage.resize_(0)
        others.append(torch.empty(SIZE))


def at_the_same_place(storage):
    size = storage.size()
    storage.resize_(0)
    storage.resize_(size)


@pytest.fixture(params=[elsewhere, at_the_same_place])
def program(request):
    """A step whose activation leaves for the host and comes back, which `write` then changes."""

    def program(write):
        w = torch.ones(SIZE, requires_grad=True)
        h = w * 3.0
        loss = h.pow(2).sum()
        host = h.data.clone()
        request.param(h.untyped_storage())
        h.data.copy_(host)
        loss = loss + h.pow(2).sum()
        write(h)
        loss.backward()
        return w.grad

    return program


RIGHT = torch.full((SIZE,), 36.0)


def doubled(h):
    h.data.mul_(2.0)


def left(h):
    pass


def test_what_is_filled_again_is_quiet(program):
    with warnings.catch_warnings(), noclobber.watch() as watched:
        warnings.simplefilter("error", noclobber.ClobberWarning)
        assert torch.equal(program(left), RIGHT)
    assert not watched.findings


def test_what_changes_it_after_that_is_found(program):
    assert not torch.equal(program(doubled), RIGHT)
    with warnings.catch_warnings(), noclobber.watch() as watched:
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        program(doubled)
    assert {finding.code for finding in watched.findings} == {"NC201"}


def test_only_what_changes_saved_bytes_is_stopped(program):
    stopping = partial(noclobber.watch, on_write="raise", contents=True)
    with stopping():
        assert torch.equal(program(left), RIGHT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        with pytest.raises(noclobber.ClobberError, match="stopped"), stopping():
            program(doubled)


def test_what_is_saved_there_is_preserved(program):
    with noclobber.preserve():
        assert torch.equal(program(doubled), RIGHT)
