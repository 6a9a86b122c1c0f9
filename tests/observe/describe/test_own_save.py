"""An operator that overwrites what it has itself just saved: it is named as the write, with PyTorch's message."""

import pytest
import torch

import noclobber
from tests.observe.hearing import hear, is_marked


def in_the_graph(x):
    h = x * 2
    h.mul_(h)  # write
    return h.sum(), h


def after_its_result_was_saved(x):
    h = x.exp()
    h.addcmul_(h, h)  # write
    return h.sum(), h


def outside_of_the_graph(x):
    h = torch.ones(3)
    h.addcmul_(h, x)  # write
    return h.sum(), h


def outside_of_the_graph_through_a_view(x):
    h = torch.ones(3)
    part = h[:2]
    part.addcmul_(part, x[:2])  # write
    return h.sum(), part


def with_another_write_before(x):
    h = x * 2
    h.add_(1)
    h.mul_(h)  # write
    return h.sum(), h


def of_a_view(x):
    h = x * 2
    part = h[:2]
    part.mul_(part)  # write
    return h.sum(), part


def followed_by_another(x):
    h = x * 2
    h.mul_(h)  # write
    h.add_(1)
    return h.sum(), h


def of_another_view(x):
    h = x * 2
    part, same = h[:2], h[:2]
    part.mul_(same)  # write
    return h.sum(), same


def by_an_alias_after_its_own_operator(x):
    h = x * 2
    y = h * h
    h.detach().mul_(2)  # write
    return y.sum(), h


PROGRAMS = [
    in_the_graph,
    after_its_result_was_saved,
    outside_of_the_graph,
    outside_of_the_graph_through_a_view,
    with_another_write_before,
    of_a_view,
    followed_by_another,
    of_another_view,
    by_an_alias_after_its_own_operator,
]


def run(program, is_kept):
    loss, kept = program(torch.tensor([0.5, 1.0, 2.0], requires_grad=True))
    if not is_kept:
        del kept
    loss.backward()


def raised_by(program, kind, is_kept=True):
    with pytest.raises(kind) as raised:
        run(program, is_kept)
    return raised.value


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("contents", [False, True])
def test_the_operator_that_saved_is_blamed(program, contents):
    heard, _ = hear(lambda: raised_by(program, noclobber.ClobberError), contents)
    assert heard.clobbers
    for clobber in heard.clobbers:
        assert is_marked(clobber.writes[0].site, "write")
        assert clobber.writes[0].version_before == clobber.save.version
        assert clobber.writes[0].overlaps


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_message_is_pytorchs(program):
    bare = raised_by(program, RuntimeError)
    with noclobber.watch():
        assert str(raised_by(program, noclobber.ClobberError)) == str(bare)


UNKNOWN = (outside_of_the_graph, outside_of_the_graph_through_a_view, followed_by_another)
KNOWN = [one for one in PROGRAMS if one not in UNKNOWN]


@pytest.mark.parametrize("program", KNOWN)
def test_the_message_is_pytorchs_where_the_program_has_dropped_the_tensor(program):
    """PyTorch keeps the tensor and names what made it last. noclobber keeps none: it knows the operator that reads."""
    bare = raised_by(program, RuntimeError, is_kept=False)
    with noclobber.watch():
        assert str(raised_by(program, noclobber.ClobberError, is_kept=False)) == str(bare)
