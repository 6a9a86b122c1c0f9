"""`tensor.data = other` with another layout: the saved bytes are compared as numbers, wherever and however they lie."""

import threading

import pytest
import torch

from tests.observe.hearing import bare, hear

SAME = {
    "closed up": lambda y: y.data.clone(),
    "the other way round": lambda y: y.data.t().contiguous().t(),
    "the same": lambda y: y.data,
}
OTHER = {
    "closed up, twice as much": lambda y: y.data * 2,
    "the other way round, twice as much": lambda y: (y.data * 2).t().contiguous().t(),
    "rounded": lambda y: y.data.float(),
    "of another type, with bytes that read the same": lambda y: y.data.view(torch.int64).view(torch.float64) + 1e-9,
}


def squared(assign, changed_before=False):
    def program():
        x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        y = x[..., 1:]
        z = torch.fmax(y, y) * y
        if changed_before:
            x.data.mul_(3)
        y.data = assign(y)
        z.sum().backward()
        return x.grad

    return program


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("assign", SAME.values(), ids=SAME)
def test_the_same_numbers_are_no_clobber(assign, contents):
    heard, gradient = hear(squared(assign), contents)
    assert torch.equal(gradient, bare(squared(assign)))
    assert heard.clobbers == []


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("assign", OTHER.values(), ids=OTHER)
def test_other_numbers_are(assign, contents):
    heard, gradient = hear(squared(assign), contents)
    assert torch.equal(gradient, bare(squared(assign)))
    assert {write.via for clobber in heard.clobbers for write in clobber.writes} == {"set_data"}


def test_numbers_that_had_changed_before_are():
    heard, _ = hear(squared(SAME["closed up"], changed_before=True))
    assert heard.clobbers


def test_numbers_that_are_given_back_are_not():
    """An input is read where it lies by then, so what became of the memory that it left does not matter."""

    def program():
        x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        y = x[..., 1:]
        z = torch.fmax(y, y) * y
        before = y.detach().clone()
        y.detach().numpy()[...] *= 2
        y.data = before
        z.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert torch.equal(gradient, bare(program))
    assert heard.clobbers == []


MARKED = {
    "conjugated": (torch.complex64, lambda c: c.conj()),
    "negated": (torch.complex64, lambda c: c.conj().imag),
    "both": (torch.complex64, lambda c: torch._neg_view(c.conj())),
}
MARKS = pytest.mark.parametrize(("dtype", "mark"), MARKED.values(), ids=MARKED)


def product_of_marked(dtype, mark, assign, strided):
    def program():
        t = mark(torch.linspace(1, 3, 3, dtype=torch.float32).to(dtype) * (1 + 2j))
        x = torch.ones(3, dtype=t.dtype, requires_grad=True)
        y = x * t
        given = torch.zeros(6, dtype=t.dtype)[::2] if strided else torch.zeros(3, dtype=t.dtype)
        given.copy_(assign(t))
        t.data = given
        torch.view_as_real(y).sum().backward() if y.is_complex() else y.sum().backward()
        return x.grad

    return program


@MARKS
@pytest.mark.parametrize("strided", [False, True])
def test_marks_do_not_hide_other_numbers(dtype, mark, strided):
    program = product_of_marked(dtype, mark, lambda t: t.conj() if t.is_complex() else -t, strided)
    heard, gradient = hear(program)
    assert torch.equal(gradient, bare(program))
    assert heard.clobbers


@MARKS
@pytest.mark.parametrize("strided", [False, True])
def test_the_same_numbers_without_marks_are_no_clobber(dtype, mark, strided):
    program = product_of_marked(dtype, mark, lambda t: t, strided)
    heard, gradient = hear(program)
    assert torch.equal(gradient, bare(program))
    assert heard.clobbers == []


SAVED_AGAIN = {
    "a leaf": (lambda x: x, lambda y: y**3),
    "an input": (lambda x: x * 1, lambda y: y**3),
    "a view": (lambda x: (x * 1)[:, 1:], lambda y: y**3),
    "a result": (lambda x: x.sigmoid(), lambda y: y * 1),
    "a result that is an input too": (lambda x: x.sigmoid(), lambda y: y**3),
    "an alias": (lambda x: x * 1, lambda y: (y.detach() * y) ** 3),
}


@pytest.mark.parametrize(("make", "use"), SAVED_AGAIN.values(), ids=SAVED_AGAIN)
def test_what_create_graph_saves_again_is_read_as_bare_reads_it(make, use):
    """An input is that tensor again, with the bytes that it was given since; a result or an alias is not."""

    def program():
        x = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
        y = make(x)
        (g,) = torch.autograd.grad(use(y).sum(), x, create_graph=True)
        y.data = torch.full_like(y, 5)
        g.square().sum().backward()
        return x.grad

    gradient = hear(program)[1]
    assert torch.equal(gradient, bare(program))


def test_an_input_saved_in_another_thread_follows_where_its_tensor_is_given_other_memory():
    """Each thread numbers its nodes for itself: that of the one which saves is that of the one which made the input."""

    def program():
        b, made = torch.full((4,), 0.3, requires_grad=True), []
        for step in (lambda: b * 1.0, lambda: made[0].clamp(-0.5, 0.5)):
            thread = threading.Thread(target=lambda step=step: made.append(step()))
            thread.start()
            thread.join()
        made[0].data = torch.full_like(made[0], 2.0)
        made[1].sum().backward()
        return b.grad.tolist()

    assert hear(program)[1] == program() == [0.0] * 4
