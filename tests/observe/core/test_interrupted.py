"""What interrupts noclobber's code and is not its own: signals, and calls that were cut off."""

import signal

import pytest
import torch

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.boundary import Way
from noclobber.observe.torch_api.autograd import hook_stack
from noclobber.observe.torch_api.dispatch import spare_key

INTERRUPTED = "what followed a backward call whose end was interrupted"


class TimeIsUp(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="Windows has no such signal")
def test_what_a_signal_handler_raises_is_for_the_program():
    def handler(number, frame):
        raise TimeIsUp

    lost = []
    way, before = Way("trying", lost.append), signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeIsUp):
            way.guarded(lambda: signal.raise_signal(signal.SIGALRM))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert way.on
    assert not lost


@pytest.mark.filterwarnings("ignore::noclobber.ClobberWarning")
def test_after_a_backward_whose_end_was_interrupted_all_is_seen_from_the_next_one_on(monkeypatch):
    def set_key(on):
        if on:
            monkeypatch.undo()
            raise KeyboardInterrupt
        spare_key.include(spare_key.KEY, on)

    with noclobber.watch() as watched:
        loss = torch.ones(3, requires_grad=True).exp().sum()
        # The log rests in a backward without hooks; other tests may have registered some.
        monkeypatch.setattr(CONTEXT, "python_in_backward", False)
        monkeypatch.setattr(hook_stack, "program_has_hooks", lambda: False)
        monkeypatch.setattr(spare_key, "set_key", set_key)
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
        torch.ones(3, requires_grad=True).exp().sum().backward()
        y = torch.ones(3, requires_grad=True).exp()
        y.data.mul_(2)
        y.sum().backward()
    assert [one.code for one in watched.findings] == ["NC201"]
    assert INTERRUPTED in watched.report.coverage.unseen


def test_a_full_stack_of_the_program_is_no_fault_of_noclobber():
    told = []
    way = Way("some saves and writes", told.append, lasting=True)

    def deeper(left):
        return deeper(left)

    assert way.guarded(deeper, 1) is None
    assert [(one.why, one.internal) for one in told] == [("the program's stack was full", False)]
