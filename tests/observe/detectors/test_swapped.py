"""`torch.utils.swap_tensors` does what it does without noclobber, and what it takes from under a reader is told."""

import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import swap_tensors
from torch.utils.checkpoint import checkpoint

import noclobber
from tests.observe.hearing import bare, hear
from tests.observe.used_again import until_used_again


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.kept = [a]
        return a * a

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.kept[0] * gradient


def other(x):
    return torch.full_like(x, 7)


def nothing(x):
    return x.sum(), []


def a_result(x):
    y = x.exp()
    return y.sum(), [y]


def a_result_written_before(x):
    y = (x * 1).exp_()
    return y.sum(), [y]


def a_result_of_a_view_that_was_written(x):
    view = x[:]
    with torch.no_grad():
        view.mul_(2)
    y = view.exp()
    return y.sum(), [y]


def a_result_and_an_input(x):
    y = x.exp()
    return (y * y).sum(), [y]


def an_input(x):
    y = x * 1
    return (y * y).sum(), [y]


def an_input_twice(x):
    y = x * 1
    return (y * y).sum() + y.sin().sum(), [y]


def a_leaf(x):
    return (x * x).sum(), [x]


def a_leaf_of_a_graph_that_saves_nothing(x):
    return (x + 1).sum(), [x]


def a_constant(x):
    c = torch.ones(3)
    return (x * c).sum(), [c]


def what_was_saved_by_a_view(x):
    y = x * 1
    return (y[1:] ** 2).sum(), [y]


def a_view_that_is_a_result(x):
    y = (x * 1)[1:].exp_()
    return y.sum(), [y]


def an_argument_of_a_region(x):
    y = x * 1
    return checkpoint(torch.sin, y, use_reentrant=False).sum(), [y]


def an_argument_of_a_reentrant_region(x):
    y = x * 1
    return checkpoint(torch.sin, y, use_reentrant=True).sum(), [y]


def read_by_a_region(x):
    c = torch.ones(3)
    return checkpoint(lambda y: (y * c).sin(), x, use_reentrant=False).sum(), [c]


def read_by_a_reentrant_region(x):
    c = torch.ones(3)
    return checkpoint(lambda y: (y * c).sin(), x, use_reentrant=True).sum(), [c]


def in_the_graph_read_by_a_reentrant_region(x):
    c = x * 2
    return checkpoint(lambda y: (y * c).sin(), x, use_reentrant=True).sum(), [c]


def on_a_ctx(x):
    y = x * 1
    return Keeps.apply(y).sum(), [y]


def under_own_hooks(x):
    y = x * 1
    with saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        return (y * y).sum(), [y]


def referred_to_by_the_program(x):
    y = x.exp()
    return y.sum(), [y, weakref.ref(y)]


def what_was_freed(x):
    y = x * 1
    (y * y).sum().backward()
    return x.sum(), [y]


HELD = [
    nothing, a_result, a_result_written_before, a_result_of_a_view_that_was_written, a_result_and_an_input,
    an_input, an_input_twice, a_leaf, a_leaf_of_a_graph_that_saves_nothing, a_constant, a_view_that_is_a_result,
    an_argument_of_a_region, an_argument_of_a_reentrant_region, referred_to_by_the_program, what_was_freed,
]  # fmt: skip
READ = [
    read_by_a_region,
    read_by_a_reentrant_region,
    in_the_graph_read_by_a_reentrant_region,
    on_a_ctx,
    under_own_hooks,
]
"""What gets other values by a swap, unseen: nobody counts these as holders of the tensor."""


def swapped(hold, *, swap=True):
    def program():
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        loss, tensors = hold(x)
        said = []
        for tensor in tensors[: 1 if swap else 0]:
            try:
                swap_tensors(tensor, other(tensor))
            except RuntimeError as error:
                said.append(str(error))
        loss.backward()
        return [*(one for one in (x.grad, *tensors) if isinstance(one, torch.Tensor)), *said]

    return program


def alike(ones, others):
    return len(ones) == len(others) and all(
        torch.equal(one, another)
        if isinstance(one, torch.Tensor) and isinstance(another, torch.Tensor)
        else one == another
        for one, another in zip(ones, others, strict=True)
    )


def outcome(program):
    try:
        return program()
    except RuntimeError as error:
        return [str(error)]


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("hold", HELD)
def test_what_is_held_is_refused_and_nothing_else_is(hold, contents):
    program = swapped(hold)
    heard, result = hear(lambda: outcome(program), contents)
    assert alike(result, bare(lambda: outcome(program)))
    assert heard.clobbers == []
    assert heard.events == []


def test_a_tensor_of_which_a_view_alone_was_saved_may_be_swapped_unlike_without_noclobber():
    """Nothing tells that the view, which is gone, was one of this tensor; backward gets what was saved of it."""
    program = swapped(what_was_saved_by_a_view)
    _, result = hear(program)
    assert "use_count" in bare(program)[-1]
    assert torch.equal(result[0], bare(swapped(what_was_saved_by_a_view, swap=False))[0])


@pytest.mark.parametrize("hold", READ)
def test_what_backward_reads_elsewhere_is_told(hold):
    program = swapped(hold)
    heard, result = hear(program)
    right = bare(swapped(hold, swap=False))
    assert alike(result, bare(program))
    assert not torch.equal(result[0], right[0])
    assert {write.via for event in heard.clobbers + heard.events for write in event.writes} == {"swap"}


def by_swap(tensor):
    swap_tensors(tensor, other(tensor))
    return "swap"


def by_data(tensor):
    tensor.data = other(tensor)
    return "set_data"


SIZE = 10_000_000
"""Of numbers: 40 MB have pages of their own, which the system hands out again as a whole."""


def read_by_a_region_alone(x):
    c = torch.ones(SIZE)
    return checkpoint(lambda y: (y * c)[:1].sin(), x, use_reentrant=False).sum(), c


def on_a_ctx_alone(x):
    y = x.expand(SIZE) * 1
    return Keeps.apply(y)[:1].sum(), y


@pytest.mark.parametrize("move", [by_swap, by_data])
@pytest.mark.parametrize("hold", [read_by_a_region_alone, on_a_ctx_alone])
def test_a_write_to_memory_that_was_let_go_is_no_cause(hold, move):
    vias = []

    def program():
        loss, tensor = hold(torch.tensor([2.0], requires_grad=True))
        was = tensor.data_ptr()
        vias.append(move(tensor))
        until_used_again(lambda: torch.empty(SIZE), torch.Tensor.data_ptr, was).add_(1)
        loss.backward()

    heard, _ = hear(program)
    assert [write.via for event in heard.clobbers + heard.events for write in event.writes] == vias


def test_a_write_to_no_element_afterwards_hides_nothing():
    with noclobber.watch() as seen:
        y = torch.full((3,), 2.0, requires_grad=True) * 1
        loss = Keeps.apply(y).sum()
        swap_tensors(y, other(y))
        y[3:].zero_()  # moves the version that the ctx is asked for
        loss.backward()
    assert [one.code for one in seen.findings] == ["NC201"]


@pytest.mark.parametrize("hold", HELD + READ)
def test_preserved_gradients_are_right(hold):
    def program():
        with noclobber.preserve():
            return swapped(hold)()

    kept, alone = outcome(program), bare(lambda: outcome(swapped(hold)))
    right = bare(swapped(hold, swap=False))
    assert torch.equal(kept[0], right[0]) if isinstance(kept[0], torch.Tensor) else kept == alone


def test_a_swap_goes_on_working_in_the_midst_of_a_backward():
    """Weak references to gradients are not to be noticed either."""

    def program():
        x = torch.ones(3, requires_grad=True)
        y = x * 1

        def hook(gradient):
            gradient.mul_(2)
            swap_tensors(gradient, torch.full((3,), 5.0))

        y.register_hook(hook)
        (y.sin() * 2).sum().backward()
        return [x.grad]

    _, result = hear(lambda: outcome(program))
    assert alike(result, bare(lambda: outcome(program)))


def test_pytorch_minds_weak_references_and_saves_of_inputs_only():
    x = torch.ones(3, requires_grad=True)
    y, z = x.exp(), x * 1
    square = z * z
    assert (y._use_count(), z._use_count()) == (1, 3)
    reference = weakref.ref(y)
    with pytest.raises(RuntimeError, match="weakref"):
        swap_tensors(y, other(x))
    del reference
    swap_tensors(y, other(x))
    with pytest.raises(RuntimeError, match="use_count"):
        swap_tensors(z, other(x))
    assert square.requires_grad


def test_what_is_there_of_pytorch_is_put_back():
    before = (torch.utils.weakref, torch.Tensor._use_count, torch._C._swap_tensor_impl)
    with noclobber.watch():
        assert torch.utils.weakref is not before[0]
    assert (torch.utils.weakref, torch.Tensor._use_count, torch._C._swap_tensor_impl) == before
