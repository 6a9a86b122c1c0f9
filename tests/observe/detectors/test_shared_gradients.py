"""Gradients that `torch.autograd.grad` returns in one memory: what PyTorch does, and writes that meet it twice."""

import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

import noclobber
from tests.observe.hearing import hear

WRONG = {
    "a loop": lambda gradients: [g.mul_(0.1) for g in gradients],
    "an operator for lists": lambda gradients: torch._foreach_mul_(list(gradients), 0.1),
    "views of them": lambda gradients: [g.view(-1).sub_(1) for g in gradients],
    "numbers": lambda gradients: [g.__imul__(3) for g in gradients],
}
RIGHT = {
    "the same numbers": lambda gradients: [g.zero_() for g in gradients],
    "the same numbers, by an operator for lists": lambda gradients: torch._foreach_zero_(list(gradients)),
    "bounds": lambda gradients: [g.clamp_(-0.1, 0.1) for g in gradients],
    "bounds, by an operator for lists": lambda gradients: torch._foreach_clamp_max_(list(gradients), 0.1),
    "a factor of one": lambda gradients: torch._foreach_mul_(list(gradients), 1.0),
    "rows of the first": lambda gradients: [row.mul_(2) for row in gradients[0]],
    "the first alone": lambda gradients: gradients[0].mul_(2),
    "new tensors": lambda gradients: [g * 2 for g in gradients],
    "numbers that only rounding changes again": lambda gradients: [g.div_(g.norm()) for g in gradients],
    "clones": lambda gradients: [g.clone().mul_(2) for g in gradients],
}


def events(run):
    """The names of what is heard of a program, but for first writes, which the rule judges by the source."""
    return [type(one).__name__ for one in hear(run)[0].events if not getattr(one, "first", ())]


def leaves():
    return [torch.linspace(start, 1, 4).reshape(2, 2).requires_grad_() for start in (0, -1)]


def of_sum(a, b, **options):
    return torch.autograd.grad(((a + b) ** 2).sum(), (a, b), **options)


# -- what PyTorch does ---------------------------------------------------------------------------------------------


def test_both_inputs_of_an_addition_get_one_tensor():
    first, second = of_sum(*leaves())
    assert first.data_ptr() == second.data_ptr()
    first, second = of_sum(*leaves(), create_graph=True)
    assert first.data_ptr() == second.data_ptr()


def test_what_backward_accumulates_shares_nothing():
    a, b = leaves()
    ((a + b) ** 2).sum().backward()
    assert a.grad.data_ptr() != b.grad.data_ptr()


# -- what is found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRONG.values(), ids=WRONG)
def test_a_write_for_each_gradient_meets_the_memory_twice(write):
    def run():
        a, b = leaves()
        right = [one.clone() for one in of_sum(a, b)]
        found = of_sum(a, b)
        write(right)
        write(found)
        assert not torch.equal(found[0], right[0])
        assert not torch.equal(found[1], right[1])

    assert events(run) == ["SharedGradient"]


@pytest.mark.parametrize("write", RIGHT.values(), ids=RIGHT)
def test_a_write_that_leaves_them_right_is_none(write):
    with warnings.catch_warnings(), noclobber.watch() as report:
        warnings.simplefilter("error", noclobber.ClobberWarning)
        write(of_sum(*leaves()))
    assert report.findings == ()


@pytest.mark.parametrize("bound", [0.1, 1e6])
def test_a_clip_of_gradients_that_were_set_is_told_where_it_clips(bound):
    def run():
        a, b = leaves()
        a.grad, b.grad = of_sum(a, b)
        nn.utils.clip_grad_norm_([a, b], bound)

    assert events(run) == ["SharedGradient"] * (bound < 1)


def one_before_another_is_read(a, b):
    ga, gb = torch.autograd.grad(((a + b) ** 2).sum(), (a, b))
    ga.mul_(0.1)
    return ga, gb * 1


def one_divided_by_its_norm(a, b):
    ga, gb = torch.autograd.grad(((a + b) ** 2).sum(), (a, b))
    gb /= gb.norm()
    return ga * 1, gb


@pytest.mark.parametrize("write", [one_before_another_is_read, one_divided_by_its_norm])
def test_a_write_to_one_gradient_before_another_is_read(write):
    with warnings.catch_warnings(), noclobber.watch() as report:
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        found = write(*leaves())
    assert torch.equal(*found) or found[0].norm() == pytest.approx(1.0)
    (finding,) = report.findings
    assert (finding.code, finding.primary.role) == ("NC206", "write")


def one_after_another_is_read(a, b):
    ga, gb = torch.autograd.grad(((a + b) ** 2).sum(), (a, b))
    a.data -= gb
    ga.mul_(0.1)
    return ga


def one_that_has_its_own_memory(a, b):
    ga, gb = torch.autograd.grad(((a + b) ** 2).sum(), (a, b))
    gb = gb.clone()
    ga.mul_(0.1)
    return ga, gb * 1


def both_bounded(a, b):
    ga, gb = torch.autograd.grad(((a + b) ** 2).sum(), (a, b))
    ga.clamp_(-0.1, 0.1)
    gb.clamp_(-0.1, 0.1)
    return ga, gb


def of_a_product(a, b):
    ga, gb = torch.autograd.grad((a * b).sum(), (a, b))
    ga.mul_(0.1)
    return ga, gb * 1


@pytest.mark.parametrize("write", [one_after_another_is_read, one_that_has_its_own_memory, both_bounded, of_a_product])
def test_a_write_to_one_gradient_that_spoils_none(write):
    with warnings.catch_warnings(), noclobber.watch() as report:
        warnings.simplefilter("error", noclobber.ClobberWarning)
        write(*leaves())
    assert report.findings == ()


def one_in_turns(gradients):
    for _ in range(3):
        gradients[0].mul_(0.5)


def one_under_a_name(gradients):
    first, _ = gradients
    for factor in (2.0, 3.0):
        first *= factor


def one_that_is_filled(gradients):
    for factor in (2.0, 3.0):
        torch.mul(torch.ones(2, 2), factor, out=gradients[0])


@pytest.mark.parametrize("write", [one_in_turns, one_under_a_name, one_that_is_filled])
def test_one_gradient_that_is_written_several_times_is_no_finding(write):
    with warnings.catch_warnings(), noclobber.watch(contents=True) as report:
        warnings.simplefilter("error", noclobber.ClobberWarning)
        write(of_sum(*leaves()))
    assert report.findings == ()


def test_each_thread_has_its_own():
    def run():
        found = []

        def work(scaled):
            for _ in range(50):
                gradients = of_sum(*leaves())
                for one in gradients if scaled else ():
                    one.mul_(0.5)
                found.append(gradients[0])

        threads = [threading.Thread(target=work, args=(at == 0,)) for at in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(found) == 150

    assert set(events(run)) == {"SharedGradient"}


def test_each_call_is_looked_at_for_itself():
    def run():
        a, b = leaves()
        for _ in range(3):
            first, _ = of_sum(a, b)
            first.mul_(0.1)

    assert events(run) == []


def test_gradients_apart_are_quiet():
    def run():
        a, b = leaves()
        for one in torch.autograd.grad((a * b).sum(), (a, b)):
            one.mul_(2)
        for one in torch.autograd.grad(torch.cat([a, b]).pow(2).sum(), (a, b)):  # two parts of one memory
            one.mul_(2)

    assert events(run) == []


# -- what it leaves as it is ---------------------------------------------------------------------------------------


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = Kept()
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class Kept:
    """What lives as long as the graph does."""


def test_gradients_and_graphs_live_as_long_as_without_it():
    def alive():
        a, b = leaves()
        out = Square.apply(a + b)
        graph = weakref.ref(out.grad_fn.kept)
        gradients = torch.autograd.grad(out.sum(), (a, b))
        del out
        memory = weakref.ref(gradients[0].untyped_storage())
        gradients[0].mul_(2)
        del gradients
        return graph() is not None, memory() is not None

    assert hear(alive)[1] == alive() == (False, False)


def test_the_finding_names_both_lines():
    a, b = leaves()
    with warnings.catch_warnings(), noclobber.watch(contents=True) as report:
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        gradients = of_sum(a, b)
        for one in gradients:
            one.mul_(0.1)
    (finding,) = report.findings
    assert finding.code == "NC206"
    assert {label.role: label.source[0].strip() for label in finding.labels} == {
        "write": "one.mul_(0.1)",
        "create": "return torch.autograd.grad(((a + b) ** 2).sum(), (a, b), **options)",
    }
