"""Right gradients where an operator overwrites what it has itself just saved: against the same program out of place."""

import pytest
import torch

import noclobber

pytestmark = pytest.mark.usefixtures("either_size")


def squared(h):
    return h.mul_(h)


def by_its_operator(h):
    return h.addcmul_(h, h)


def through_a_view(h):
    part, same = h[1:], h[1:]
    part.mul_(same)
    return h


def twice(h):
    return h.mul_(h).mul_(h)


def in_lists(h):
    torch._foreach_mul_([h], [h])
    return h


def with_a_later_write(h):
    return h.mul_(h).add_(1).exp_()


def outside_of_the_graph(h):
    return torch.linspace(0.1, 0.9, h.numel(), dtype=h.dtype).reshape(h.shape).addcmul_(h, h)


def beside_itself(h):
    t = torch.full_like(h, 0.5, requires_grad=False)
    return t.addcmul_(t, h)


def in_a_function(h):
    return torch.lerp(h, h * 2, 0.5).atan2_(h)


OUT_OF_PLACE = {
    squared: lambda h: h * h,
    by_its_operator: lambda h: torch.addcmul(h, h, h),
    through_a_view: lambda h: torch.cat([h[:1], h[1:] * h[1:]]),
    twice: lambda h: (h * h) * (h * h),
    in_lists: lambda h: h * h,
    with_a_later_write: lambda h: (h * h + 1).exp(),
    outside_of_the_graph: lambda h: torch.linspace(0.1, 0.9, h.numel(), dtype=h.dtype).reshape(h.shape).addcmul(h, h),
    beside_itself: lambda h: torch.addcmul(torch.full_like(h, 0.5), torch.full_like(h, 0.5), h),
    in_a_function: lambda h: torch.lerp(h, h * 2, 0.5).atan2(h),
}


def gradient(program):
    x = torch.linspace(0.5, 1.5, 36, dtype=torch.float64).reshape(6, 6).requires_grad_()
    y = program(x * 2)
    (first,) = torch.autograd.grad((y * y.detach()).sum(), x)
    return y.detach().clone(), first


@pytest.mark.parametrize("program", OUT_OF_PLACE)
def test_the_gradient_is_that_of_the_program_out_of_place(program):
    right = gradient(OUT_OF_PLACE[program])
    with noclobber.preserve():
        ours = gradient(program)
    torch.testing.assert_close(ours, right)


def test_the_copy_is_reported():
    with noclobber.preserve() as report:
        gradient(squared)
    assert [kept.op for kept in report.kept] == ["aten::mul_"]


def test_nothing_is_copied_for_an_operator_that_gets_other_memory():
    with noclobber.preserve() as report:
        h = torch.ones(3, 4, requires_grad=True) * 2
        h.mul_(torch.ones(3, 4))
        h[:, 0].add_(h[:, 1])
        h.sum().backward()
    assert not report.kept


def test_without_gradients_nothing_is_copied():
    t = torch.ones(3)
    with noclobber.preserve() as report, torch.no_grad():
        t.mul_(t)
    assert not report.kept
