"""Arguments of a region that were detached in place, or told to require no gradient, since forward."""

import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint

from noclobber.model.seen.silent import Drift
from noclobber.observe.describe import refusals
from tests.observe.hearing import bare, hear

MODES = pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
WITNESSES = pytest.mark.parametrize("contents", [True, False], ids=["contents", "versions"])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a.square()

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return 2 * a * g


def outcome(program):
    """What a program returns, or the kind and text of what it raises."""
    try:
        return program()
    except RuntimeError as error:
        return CheckpointError if isinstance(error, CheckpointError) else RuntimeError, str(error)


def region(reentrant):
    return lambda given: checkpoint(lambda h: h.sin() * h, given, use_reentrant=reentrant)


USES = {
    "region": region(False),
    "reentrant": region(True),
    "function": Square.apply,
    "sine": torch.sin,
    "exp": torch.exp,
}
EDITS = {
    "detach_": lambda one: one.detach_(),
    "detach_ and write": lambda one: one.detach_().add_(1),
    "detach_ and a new node": lambda one: one.detach_().mul_(torch.ones(3, requires_grad=True)),
    "assigned": lambda one: setattr(one, "data", torch.full((3,), 0.5)),
    "nothing": lambda one: None,
}


@WITNESSES
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("between", [False, True], ids=["", "a node between"])
def test_what_is_raised_is_what_bare_raises(use, edit, between, contents):
    def program():
        x = torch.ones(3, requires_grad=True)
        given = x * 2
        if between:
            x.tan()
        y = use(given)
        edit(given)
        y.sum().backward()
        return [] if x.grad is None else x.grad.tolist()

    _, watched = hear(lambda: outcome(program), contents)
    assert watched == bare(lambda: outcome(program))


@WITNESSES
@MODES
@pytest.mark.parametrize("edit", [torch.Tensor.detach_, lambda one: one.requires_grad_(False)])
def test_a_leaf_that_requires_no_gradient_any_more(edit, reentrant, contents):
    def program():
        x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        y = checkpoint(lambda a, b: a.sin() * b, x, w, use_reentrant=reentrant)
        edit(w)
        y.sum().backward()
        return x.grad.tolist(), w.grad

    _, watched = hear(lambda: outcome(program), contents)
    assert watched == bare(lambda: outcome(program))


@pytest.mark.parametrize("made", ["x * 2", "x"])
def test_an_argument_that_is_cut_off_is_told_where_a_gradient_is_lost(made):
    """A leaf that requires no gradient any more is handed none, in a region or not."""

    def program():
        x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        given = x * 2 if made == "x * 2" else x
        y = checkpoint(lambda a, b: a.sin() * b, given, w, use_reentrant=True)
        given.detach_()
        y.sum().backward()

    heard, _ = hear(program)
    assert [type(one) for one in heard.events] == [Drift] * (made == "x * 2")


@MODES
@WITNESSES
def test_a_view_is_not_asked_for_its_node(reentrant, contents):
    """PyTorch refuses to say what made one of several views once their base is written, which must not be written."""

    def program():
        x, t = torch.ones(3, 4, requires_grad=True), torch.ones(3, 4)
        first, *_ = t.unbind()
        t.mul_(x)
        checkpoint(lambda h: x.exp(), first, use_reentrant=reentrant)
        first.pow_(2)

    _, watched = hear(lambda: outcome(program), contents)
    assert watched == bare(lambda: outcome(program))
    assert watched[0] is RuntimeError


@MODES
def test_a_region_gets_the_very_arguments_again(reentrant):
    """Programs keep marks as attributes of tensors."""
    marks = []

    def program():
        x = torch.ones(3, requires_grad=True)
        x.mark = "mine"
        checkpoint(lambda h: marks.append(h) or h.exp(), x, use_reentrant=reentrant).sum().backward()
        return [getattr(one, "mark", None) for one in marks]

    assert hear(program)[1] == (["mine", None] if reentrant else ["mine", "mine"])


def test_the_refusal_names_the_lines():
    """Torch 2.10 and 2.11 refuse later: run anew with what was detached, the region saves nothing."""
    old = torch.__version__ < "2.12"

    def program():
        x = torch.ones(3, requires_grad=True) * 2
        y = checkpoint(torch.exp, x, use_reentrant=False)
        x.detach_()
        with pytest.raises(RuntimeError, match="different number of tensors" if old else "detached in-place") as caught:
            y.sum().backward()
        return refusals.remembered(caught.value)

    _, refusal = hear(program)
    if old:
        assert [write.op for write in refusal.writes] == ["aten::detach_"]
        return
    assert refusal.call == "backward"
    assert refusal.written is not None
    assert refusal.saved is not None


@WITNESSES
def test_an_argument_that_was_assigned_is_told(contents):
    def program():
        x = torch.ones(3, requires_grad=True)
        given = x * 2
        y = checkpoint(torch.sin, given, use_reentrant=False)
        given.data = torch.zeros(3)
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program, contents)
    assert gradient.tolist() == [2, 2, 2]
    assert torch.equal(gradient, bare(program))
    assert [write.via for clobber in heard.clobbers for write in clobber.writes] == ["set_data"]
    assert heard.events == []


@WITNESSES
def test_one_of_several_views_whose_base_was_written(contents):
    """A region may take it as long as it does not ask autograd for its place in the graph; on torch 2.10 and 2.11
    itself asks."""

    def program():
        first, second = torch.ones(4, requires_grad=True).mul(2).chunk(2)
        with torch.no_grad():
            first.mul_(3)
        made = outcome(lambda: checkpoint(lambda h: h.data * 2, second, use_reentrant=False).tolist())
        return made, outcome(lambda: second.sum())

    made, text = hear(program, contents)[1]
    assert (made, text) == program()
    assert "is a view and its base" in text[1]
    assert made == (text if torch.__version__ < "2.12" else [4.0, 4.0])


@WITNESSES
def test_a_view_that_was_written_and_can_not_be_detached(contents):
    def program():
        x = torch.ones(3, requires_grad=True) * 2
        y = checkpoint(lambda h: h[..., 0], x, use_reentrant=True)
        y.sin()
        with torch.no_grad():
            y.mul_(2)
        y.detach_()

    text = outcome(program)
    assert "Can't detach views in-place" in text[1]
    assert hear(lambda: outcome(program), contents)[1] == text


@WITNESSES
def test_an_argument_is_kept_by_the_region_and_by_no_node(contents):
    """What reads it in backward runs inside of the region, and saves something else."""

    def program():
        x = torch.ones(3, requires_grad=True)
        given = x * 2
        y = region(False)(given)
        given += 1
        y.sum().backward()

    heard, _ = hear(lambda: outcome(program), contents)
    (clobber,) = heard.clobbers
    assert (clobber.save.node, clobber.save.field) == ("", "argument")
    assert clobber.save.tensor.name == "given"
    assert clobber.read.node == "MulBackward0"
