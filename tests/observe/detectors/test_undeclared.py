"""Writes that an operator or a Function does not declare: heard where a gradient is wrong for them, and only there."""

import numpy as np
import pytest
import torch

from noclobber.observe.core import write_kernels
from tests.observe.hearing import bare, hear, is_marked


def function(write, give):
    class Overwriting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            write(x)
            return give(x)

        @staticmethod
        def backward(ctx, g):
            return g * 3

    return Overwriting


def times_three(x):
    x.mul_(3)  # written


def times_three_through_data(x):
    x.data.mul_(3)  # written


def times_three_by_numpy(x):
    array = x.detach().numpy()
    np.multiply(array, 3, out=array)


def plus_one(x):
    x.add_(1)


def there_and_back(x):
    x.mul_(2)
    x.div_(2)


def nothing(x):
    pass


COPY, SAME, VIEW = torch.clone, lambda x: x, lambda x: x.view(-1)


def used_after(h, y):
    return (h * 2).sum() + 0 * y.sum()


def used_after_in_place(h, y):
    return h.mul_(2).sum()


def both_used(h, y):
    return (h + y).sum()


def only_the_result(h, y):
    return y.sum()


def overwritten_whole(h, y):
    h.zero_()
    return h.sum() + y.sum()


def shape_only(h, y):
    return (y * h.shape[0]).sum()


def program_of(write, give, use):
    def program():
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        h = x * 1
        y = function(write, give).apply(h)  # called
        use(h, y).backward()
        return x.grad

    return program


WRONG = [
    (times_three, COPY, used_after),
    (times_three, SAME, used_after),
    (times_three, VIEW, used_after_in_place),
    (times_three, COPY, both_used),
    (times_three_through_data, COPY, both_used),
    (times_three_by_numpy, COPY, used_after),
]
RIGHT = [
    (times_three, COPY, only_the_result),
    (times_three, SAME, only_the_result),
    (times_three, COPY, shape_only),
    (times_three, COPY, overwritten_whole),
    (plus_one, COPY, both_used),
    (there_and_back, COPY, both_used),
    (nothing, COPY, both_used),
]


@pytest.mark.parametrize(("write", "give", "use"), WRONG)
def test_an_input_that_is_used_after_an_undeclared_write(write, give, use):
    heard, gradient = hear(program_of(write, give, use))
    assert torch.equal(gradient, bare(program_of(write, give, use)))
    (event,) = heard.events
    assert event.function == "Overwriting"
    assert is_marked(event.call, "called")
    assert event.write.via == "undeclared"
    assert is_marked(event.write.site, "called" if write is times_three_by_numpy else "written")


@pytest.mark.parametrize("overwrites", [True, False])
def test_a_backward_that_stops_at_what_the_same_write_changed_names_both(overwrites):
    def program():
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        h = x.exp() if overwrites else x * 1
        function(times_three, COPY).apply(h)
        stopped = (h * 2).sum() if overwrites else Stopping.apply(h * 2).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation" if overwrites else "stopped"):
            stopped.backward()

    heard, _ = hear(program)
    assert [event.function for event in heard.events] == ["Overwriting"] * overwrites
    assert len(heard.clobbers) == overwrites


class Stopping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("stopped")


@pytest.mark.parametrize(("write", "give", "use"), RIGHT)
@pytest.mark.parametrize("contents", [True, False])
def test_undeclared_writes_that_harm_nothing(write, give, use, contents):
    heard, gradient = hear(program_of(write, give, use), contents)
    assert torch.equal(gradient, bare(program_of(write, give, use)))
    assert not heard.events
    assert not heard.clobbers


def test_the_gradient_that_passes_by_is_wrong():
    x = torch.ones(3, requires_grad=True)
    (right,) = torch.autograd.grad((x * 1 * 3 * 2).sum(), x)
    assert torch.equal(program_of(times_three, COPY, used_after)(), right / 3)


class Declared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, g):
        return g * 3


@pytest.mark.parametrize("asked", ["all", "elsewhere"])
def test_what_is_declared_or_not_asked_for(asked):
    def program():
        x, other = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        h = x * 1
        if asked == "all":
            Declared.apply(h)
        else:
            function(times_three, COPY).apply(h)
        return torch.autograd.grad((h * 2 * other).sum(), other if asked == "elsewhere" else x)

    heard, (gradient,) = hear(program)
    assert torch.equal(gradient, torch.full((3,), 6.0))
    assert not heard.events


def operator(name, body):
    return torch.library.custom_op(f"nc_test::{name}", body, mutates_args=())


def _scale_raw(x: torch.Tensor) -> torch.Tensor:
    array = x.detach().numpy()
    array *= 3
    return x + 1


def _list_raw(xs: list[torch.Tensor]) -> torch.Tensor:
    array = xs[1].detach().numpy()
    array *= 3
    return xs[0] + 1


def _clean(x: torch.Tensor) -> torch.Tensor:
    return x + 1


SCALE, LIST, CLEAN = operator("scale_raw", _scale_raw), operator("list_raw", _list_raw), operator("clean", _clean)
LIBRARY = torch.library.Library("nc_test_low", "DEF")
LIBRARY.define("scale(Tensor x, *, float by) -> Tensor")


def _scale_low(x, *, by):
    array = x.detach().numpy()
    array *= by
    return x + 1


LIBRARY.impl("scale", _scale_low, "CPU")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda w: SCALE(w), "nc_test::scale_raw"),
        (lambda w: LIST([torch.zeros(3), w]), "nc_test::list_raw"),
        (lambda w: torch.ops.nc_test_low.scale(w[1:], by=3.0), "nc_test_low::scale"),
    ],
)
def test_an_operator_that_writes_what_was_saved(call, name):
    def program(call):
        x, w = torch.ones(3, requires_grad=True), torch.ones(3)
        y = (x * w).sum()
        call(w)  # called
        y.backward()
        return x.grad

    heard, gradient = hear(lambda: program(call))
    assert not torch.equal(gradient, bare(lambda: program(CLEAN)))
    (clobber,) = heard.clobbers
    write = clobber.writes[-1]
    assert (write.op, write.via) == (name, "undeclared")
    assert clobber.message is None


def test_an_operator_that_tells_the_truth():
    def program():
        x, w = torch.ones(3, requires_grad=True), torch.ones(3)
        y = (x * w).sum() + CLEAN(x * w.detach()).sum().detach()
        torch.ops.nc_test_low.scale(torch.ones(3), by=2.0)
        y.backward()
        return x.grad

    heard, gradient = hear(program)
    assert torch.equal(gradient, bare(program))
    assert not heard.clobbers
    assert not heard.events


def test_operators_defined_while_watching():
    def program():
        late = operator("late_raw", _scale_raw)
        x, w = torch.ones(3, requires_grad=True), torch.ones(3)
        y = (x * w).sum()
        late(w)  # called
        y.backward()

    heard, _ = hear(program)
    assert [clobber.writes[-1].op for clobber in heard.clobbers] == ["nc_test::late_raw"]
    assert is_marked(heard.clobbers[0].writes[-1].site, "called")


def test_the_stand_in_mode_sees_operators_too(monkeypatch):
    monkeypatch.setattr(write_kernels, "key_answers", lambda: False)
    test_an_operator_that_writes_what_was_saved(lambda w: SCALE(w), "nc_test::scale_raw")
    test_an_input_that_is_used_after_an_undeclared_write(times_three, COPY, used_after)
