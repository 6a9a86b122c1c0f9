"""A save that was detached in place: the `detach_` is blamed, whatever was written after it."""

import pytest
import torch

import noclobber
from noclobber.model.source import source_line
from noclobber.observe.arming import recorder


def made():
    return torch.tanh(torch.ones(3, requires_grad=True) * 2)


def and_written():
    h = made()
    y = h.square()  # saved
    h.detach_()  # blamed
    h.zero_()
    y.sum().backward()


def and_written_often():
    h = made()
    y = h.square()  # saved
    h.detach_()  # blamed
    for _ in range(30):
        h.add_(1)
    y.sum().backward()


def beside_other_writes():
    h, other = made(), made()
    y = h.square()  # saved
    h.detach_()  # blamed
    other.detach_()
    torch.zeros(3).add_(1)
    y.sum().backward()


def a_state_in_a_loop():
    state = torch.zeros(3)
    for _ in range(3):
        state = torch.tanh(state + torch.ones(3, requires_grad=True))
        loss = state.square()  # saved
        state.detach_()  # blamed
        state.mul_(0.5)
        loss.sum().backward()


OVERWRITE = [and_written, and_written_often, a_state_in_a_loop]
PROGRAMS = [and_written, and_written_often, beside_other_writes, a_state_in_a_loop]


def line_of(program, mark):
    code = program.__code__
    lines = range(code.co_firstlineno, code.co_firstlineno + 14)
    return next(line for line in lines if source_line(code.co_filename, line).endswith(f"# {mark}"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_the_detach_is_blamed(program):
    with pytest.raises(RuntimeError, match="detached in-place"), noclobber.watch() as watched:
        program()
    with pytest.raises(RuntimeError, match="detached in-place"):
        program()
    (finding,) = watched.findings
    lines = {one.role: one.span.line for one in reversed(finding.labels)}
    assert (lines["write"], lines["save"]) == (line_of(program, "blamed"), line_of(program, "saved"))
    assert [one.span.line for one in finding.labels if one.primary] == [lines["write"]]
    overwritten = [one.span.line for one in finding.labels if one.text == "and it is overwritten here"]
    assert overwritten == ([lines["write"] + (2 if program is and_written_often else 1)] * (program in OVERWRITE))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_installed_too(program):
    with noclobber.install():
        try:
            program()
        except RuntimeError as error:
            refusal = recorder.event_of(error)
    assert refusal.written.line == line_of(program, "blamed")


def test_a_detach_that_was_not_seen_is_not_guessed():
    h = made()
    y = h.square()
    h.detach_()
    torch.zeros(3).detach_()
    with pytest.raises(RuntimeError, match="detached in-place"), noclobber.watch() as watched:
        y.sum().backward()
    (finding,) = watched.findings
    assert [one.role for one in finding.labels] == ["read"]
    assert any("did not see the write" in note for note in finding.notes)
