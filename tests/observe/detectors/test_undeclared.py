"""Writes that an operator or a Function does not declare: heard where a gradient is wrong for them, and only there."""

import numpy as np
import pytest
import torch

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.detectors.undeclared_writes import KEPT, Writers
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


def times_three_within(x):
    with torch.enable_grad():
        function(nothing, COPY).apply(x.detach().requires_grad_() * 1)
        function(times_three, COPY).apply(x)  # called


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
    (times_three_within, COPY, used_after),
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


def times_three_and_raise(x):
    x.mul_(3)  # written
    raise ValueError("not finite")


def test_an_input_of_a_function_that_raised():
    def program():
        x = torch.ones(3, requires_grad=True)
        h = x * 1
        with pytest.raises(ValueError, match="not finite"):
            function(times_three_and_raise, COPY).apply(h)  # called
        (h * 2).sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert torch.equal(gradient, torch.full((3,), 2.0))  # 6 is right
    (event,) = heard.events
    assert is_marked(event.write.site, "written")


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


def _halve(x: torch.Tensor) -> torch.Tensor:
    x /= 2
    return x + 1


def test_an_operator_with_a_backward_that_writes_its_input():
    """PyTorch makes a Function of it, which nobody knows by its name."""
    halve = operator("halve_it", _halve)
    halve.register_autograd(lambda ctx, gradient: gradient / 2)

    def program():
        h = torch.ones(3, requires_grad=True) * 1
        (halve(h) + h).sum().backward()

    heard, _ = hear(program)
    (event,) = heard.events
    assert (event.function, event.is_operator) == ("nc_test::halve_it", True)


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


# -- memory of an earlier result -----------------------------------------------------------------------------------


def by_numpy(out, rows, start):
    out.numpy()[start : start + len(rows)] = rows.detach().numpy()


def by_a_view_of_the_array(out, rows, start):
    view = memoryview(out.numpy())
    np.asarray(view)[start : start + len(rows)] = rows.detach().numpy()


def rows_function(write, give=lambda out, start, count: out):
    class Rows(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out, rows, start):
            ctx.start, ctx.count = start, len(rows)
            write(out, rows, start)
            return give(out, start, len(rows))

        @staticmethod
        def backward(ctx, g):
            return None, g[ctx.start : ctx.start + ctx.count].clone() if len(g) > ctx.count else g.clone(), None

    return lambda *args: Rows.apply(*args)


def rows_operator(write):
    """The same as an operator of a library, whose schema hides the write."""
    library = torch.library.Library(f"rows{len(_LIBRARIES)}", "DEF")
    _LIBRARIES.append(library)
    library.define("put(Tensor out, Tensor rows, int start) -> Tensor")
    name = f"{library.ns}::put"

    def put(out, rows, start):
        write(out, rows, start)
        return out.view_as(out)

    library.impl("put", put, "CPU")

    def keep(ctx, inputs, output):
        ctx.start, ctx.count = inputs[2], len(inputs[1])

    def backward(ctx, g):
        return None, g[ctx.start : ctx.start + ctx.count].clone(), None

    torch.library.register_autograd(name, backward, setup_context=keep, lib=library)
    return getattr(torch.ops, library.ns).put


_LIBRARIES = []


def leaves():
    return [torch.full((3, 2), float(value), requires_grad=True) for value in (1, 2)]


def used_as_a_whole(put):
    a, b = leaves()
    out = torch.zeros(6, 2)
    pooled = put(out, a * 2, 0)
    put(out, b * 2, 3)
    torch.tanh(pooled).sum().backward()
    return a.grad, b.grad


@pytest.mark.parametrize("make", [rows_function, rows_operator])
@pytest.mark.parametrize("write", [by_numpy, by_a_view_of_the_array])
def test_a_call_that_writes_what_an_earlier_call_returned(make, write):
    put = make(write)
    heard, gradients = hear(lambda: used_as_a_whole(put))
    (event,) = heard.events
    assert event.beside
    assert gradients[1] is None
    assert torch.equal(gradients[0], bare(lambda: used_as_a_whole(put))[0])


def used_before_the_second_call(put):
    a, b = leaves()
    out = torch.zeros(6, 2)
    first = put(out, a * 2, 0) * 3
    second = put(out, b * 2, 3)
    (first.sum() + second[3:].sum()).backward()
    return a.grad


def rows_of_its_own(put):
    a, b = leaves()
    out = torch.zeros(6, 2)
    first, second = put(out, a * 2, 0), put(out, b * 2, 3)
    (first[:3].sin().sum() + second[3:].sin().sum() + second[-1].sum()).backward()
    return a.grad


def memory_used_again(put):
    (a, b), out = leaves(), torch.zeros(6, 2)
    for _ in range(3):
        for leaf in (a, b):
            result = put(out, leaf * 2, 0)
            result.sin().sum().backward()
    return a.grad


def memory_of_its_own(put):
    a, b = leaves()
    (put(torch.zeros(6, 2), a * 2, 0).sin().sum() + put(torch.zeros(6, 2), b * 2, 3).sin().sum()).backward()
    return b.grad


def slices(put):
    a, b = leaves()
    out = torch.zeros(6, 2)
    first, second = put(out, a * 2, 0), put(out, b * 2, 3)
    (first.sin().sum() + second.sin().sum()).backward()
    return b.grad


@pytest.mark.parametrize(
    "program", [used_before_the_second_call, rows_of_its_own, memory_used_again, memory_of_its_own]
)
@pytest.mark.parametrize("make", [rows_function, rows_operator])
def test_a_call_that_writes_other_memory_or_later(make, program):
    put = make(by_numpy)
    heard, gradient = hear(lambda: program(put))
    assert heard.events == heard.clobbers == []
    assert torch.equal(gradient, bare(lambda: program(put)))


def test_calls_that_return_their_own_rows():
    put = rows_function(by_numpy, lambda out, start, count: out[start : start + count])
    heard, gradient = hear(lambda: slices(put))
    assert heard.events == heard.clobbers == []
    assert torch.equal(gradient, bare(lambda: slices(put)))


@pytest.mark.filterwarnings("ignore::noclobber.ClobberWarning")
def test_of_many_overwritten_tensors_the_newest_are_remembered():
    writers, overwriting = CONTEXT.state(Writers), function(times_three, COPY)
    with noclobber.watch() as watched:
        for _ in range(KEPT + 2):
            h = torch.ones(2, requires_grad=True) * 2
            loss = used_after(h, overwriting.apply(h))
        assert len(writers.overwritten) == KEPT
        loss.backward()
    assert [one.code for one in watched.findings] == ["NC207"]
