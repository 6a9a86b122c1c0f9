"""Writes into gradients: heard if and only if another part of the graph gets the changed bytes."""

import gc
import threading
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import noclobber
from noclobber.observe.torch_api.autograd import hook_stack
from noclobber.observe.torch_api.dispatch import modes
from tests.observe.hearing import bare, hear, is_marked
from tests.tensors import all_equal

W = torch.tensor([1.0, 2.0, 3.0])


def function(write):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 10

        @staticmethod
        def backward(ctx, g):
            return write(g)

    return Scaled


def in_place(g):
    return g.mul_(10)  # written


def through_data(g):
    g.data.mul_(10)  # written
    return g.clone()


def by_item(g):
    g[:] = g * 10  # written
    return g


def through_a_view(g):
    g.view(-1)[1:].mul_(10)  # written
    return torch.cat([g[:1] * 10, g[1:]])


def out_of_place(g):
    return g * 10


def the_same_bytes(g):
    g.clamp_(-100, 100)
    return g * 10


def in_a_copy(g):
    return g.clone().mul_(10)


WRITES = [in_place, through_data, by_item, through_a_view]
HARMLESS = [out_of_place, the_same_bytes, in_a_copy]


def by_function(join):
    def make(write):
        def program():
            x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
            join(x, y, function(write).apply).backward()
            return x.grad, y.grad

        return program

    return make


def by_hook(join):
    def apply(write, a):
        b = a * 1
        b.register_hook(write)  # registered
        return b * 1

    def make(write):
        def program():
            x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
            join(x, y, lambda a: apply(write, a)).backward()
            return x.grad, y.grad

        return program

    return make


def sibling_first(x, y, f):
    return ((x * 1 + f(y * 1)) * W).sum()


def sibling_later(x, y, f):
    b = f(y * 1)
    return ((b + x * 1) * W).sum()


def residual(x, y, f):
    h = x * y
    return ((h + f(h)) * W).sum()


def residual_of_a_leaf(x, y, f):
    return ((x + f(x)) * W * y.detach()).sum()


def chain(x, y, f):
    return (f(x * y) * W).sum()


def through_views(x, y, f):
    a, b = (x * 1).view(1, 3), f(y * 1)
    return ((a.view(3) + b.view(3, 1).view(3)) * W).sum()


def halves(x, y, f):
    return (torch.cat([x * 1, f(y * 1)]) * torch.cat([W, W])).sum()


def summed_later(x, y, f):
    h = x * 1
    side = h.exp()
    joined = h + f((side * 0).detach() + y)
    return (joined * W).sum() + side.sum()


JOINS = [sibling_first, sibling_later, residual, residual_of_a_leaf, chain, through_views, halves, summed_later]


@pytest.mark.parametrize("write", WRITES + HARMLESS)
@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("make", [by_function, by_hook])
def test_heard_exactly_where_a_gradient_is_wrong(make, join, write):
    program = make(join)(write)
    heard, gradients = hear(program)
    assert all_equal(gradients_of(gradients), gradients_of(bare(program)))
    right = gradients_of(make(join)(out_of_place)())
    wrong = not all_equal(gradients_of(gradients), right)
    assert [event.by for event in heard.events] == [make.__name__.removeprefix("by_")] * wrong
    for event in heard.events:
        assert is_marked(event.write.site, "written")
        assert event.name == ("Scaled" if make is by_function else write.__name__)
        assert make is by_function or is_marked(event.registered, "registered")
        assert event.read.node
        assert not event.write.in_forward


def gradients_of(gradients):
    return [torch.zeros(3) if one is None else one for one in gradients]


def test_both_kinds_of_programs_are_among_them():
    def is_wrong(make, join):
        right, gradients = gradients_of(make(join)(out_of_place)()), gradients_of(make(join)(in_place)())
        return not all_equal(gradients, right)

    verdicts = {
        (make.__name__, join.__name__): is_wrong(make, join) for make in (by_function, by_hook) for join in JOINS
    }
    assert set(verdicts.values()) == {True, False}


def test_the_engine_lets_a_node_begin_with_the_modes_of_the_call():
    """Between a node and the next one it adds up what nodes get, under the modes that the node has left."""
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def leave(made, given):
        modes.push_mode(Mode())

    x = torch.ones(3, requires_grad=True)
    h = x * 1
    last = h.exp()
    depths = []
    last.grad_fn.register_hook(leave)
    h.grad_fn.register_prehook(lambda given: depths.append(torch._C._len_torch_dispatch_stack()))
    (h + last).sum().backward()
    assert seen == [torch.ops.aten.add.Tensor]
    assert depths == [0]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_gradient_that_only_the_call_still_holds():
    """The root's gradient is kept by the call of backward, and by a reentrant region's own call; nobody reads it."""

    def at_the_root():
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        h = x * 1
        y = function(in_place).apply(x.norm())
        (h.square().sum() + y).backward()
        return x.grad

    def in_a_region():
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        x.register_hook(in_place)
        h = checkpoint(lambda a: a * y, x, use_reentrant=True)
        (checkpoint(lambda a: torch.stack([W, x]), h, use_reentrant=True).sin() * W).sum().backward()
        return x.grad

    for program in (at_the_root, in_a_region):
        heard, gradient = hear(program)
        assert heard.events == []
        assert torch.equal(gradient, bare(program))


def test_what_a_backward_makes_itself_may_be_written_by_the_functions_it_calls():
    def scan(values):
        left, right = values[:, 1:], values[:, :-1]
        left.add_(right.clone())

    class Scan(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 10

        @staticmethod
        def backward(ctx, g):
            made = torch.nn.functional.pad(g, (0, 1)).t()
            scan(made)
            return made.t()[:, :3]

    def program():
        x = torch.ones(2, 3, requires_grad=True)
        h = x * 2
        y = Scan.apply(h)
        ((y + h.exp()) * W).sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert heard.events == []
    assert torch.equal(gradient, bare(program))


def kept(g):
    KEPT.append((g.detach(), g.view(-1)))
    return g.mul_(10)


KEPT = []


def as_twins(x, f):
    return f(x * 2) * 3 + f(x * 2) * 3


def added_later(x, f):
    """What the hook scales is passed on, and waits there for the rest of a sum."""
    side = x.exp()
    return f(x * 1) * 2 + side


def beside_one_that_does_the_same(x, f):
    """The product has run when the gradient of the other summand is written, and both have the same bytes then."""
    return f(x) * 1 + x * 10


def of_three(x, f):
    h = x * 1
    return h.sin() + f(h) + h


def of_two_that_get_the_same(x, f):
    h, other = x * 1, x * 2
    return f(h) * 2 + (h + other).exp()


def made_again(x, f):
    h = f(x * 1) * 2
    h.grad_fn.register_hook(lambda made, given: tuple(None if one is None else one + 0 for one in made))
    return h + x.exp()


@pytest.mark.parametrize("write", [in_place, through_data, kept])
@pytest.mark.parametrize(
    "join", [as_twins, added_later, beside_one_that_does_the_same, of_three, of_two_that_get_the_same, made_again]
)
@pytest.mark.parametrize("make", [by_function, by_hook])
@pytest.mark.parametrize("asked", [False, True])
def test_sums_of_what_was_written_and_of_what_was_not(asked, make, join, write):
    def program(write):
        def joined(x, y, f):
            return (join(x * 1, f) * W).sum()

        if not asked:
            return make(joined)(write)()[0]

        def given_back(x, y, f):
            h = x * 1
            given_back.gradient = torch.autograd.grad((join(h, f) * W).sum(), h)[0]
            return (x + y).sum()

        make(given_back)(write)()
        return given_back.gradient

    heard, gradient = hear(lambda: program(write))
    assert torch.equal(gradient, bare(lambda: program(write)))
    assert bool(heard.events) == (not torch.equal(gradient, program(out_of_place)))


def test_a_hook_that_is_registered_in_the_backward_which_runs_it_is_named_in_the_coverage(monkeypatch):
    monkeypatch.setattr(hook_stack, "program_has_hooks", lambda: False)  # as in a program without earlier ones

    def program():
        x = torch.ones(3, requires_grad=True)

        def write(g):
            x.register_hook(lambda gradient: gradient.mul_(10))
            return g * 2

        function(write).apply(x).sum().backward()
        return x.grad

    with noclobber.watch() as seen:
        gradient = program()
    assert seen.findings == ()
    assert torch.equal(gradient, bare(program))
    assert seen.report.coverage.unseen == ("hooks in the backward call that registered them",)


def test_several_parts_that_one_node_gives():
    """The node passes its gradient on to the leaf as it is, and two products as well."""

    def program(write):
        w = torch.ones(3, requires_grad=True)
        h = torch.addcmul(w, w, w)
        h.register_hook(write)
        (h * W).sum().backward()
        return w.grad

    heard, gradient = hear(lambda: program(in_place))
    assert torch.equal(gradient, program(out_of_place))
    assert heard.events == []


@pytest.mark.parametrize("used", [lambda h: torch.cdist(h, h + 2).sin(), torch.sin, lambda h: h.sin() + h * 2])
@pytest.mark.parametrize("joined", [torch.stack, torch.cat, lambda both: torch.cat([*both, both[0] * 2])])
def test_parts_of_a_written_gradient_that_one_leaf_gets(used, joined):
    def program(write):
        w = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).requires_grad_()
        h = joined([w, w])
        h.register_hook(write)
        used(h).sum().backward()
        return w.grad

    heard, gradient = hear(lambda: program(in_place))
    assert torch.equal(gradient, program(out_of_place))
    assert heard.events == []


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_a_node_that_gets_the_same_gradient_several_times_and_had_it_before(parts, shared):
    """A sum hands the written gradient on once for each part. Only the one from before the write is wrong."""

    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, write):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return (g.mul_(2) if write else g * 2), None

    def program():
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = x * W
        part = y
        for _ in range(parts - 1):
            part = part + y
        z = Doubles.apply(part, write)
        ((y + z if shared else z) ** 2).sum().backward()
        return x.grad

    write = False
    right = program()
    write = True
    heard, gradient = hear(program)
    assert torch.equal(gradient, right) == (not shared)
    assert len(heard.events) == shared


class Kept:
    """Lives as long as the node in whose metadata it is."""


def test_the_graph_of_an_overwritten_gradient_is_freed_with_its_tensors():
    """Nothing of it waits for the garbage collector."""

    def step():
        x = torch.ones(3, requires_grad=True)
        side = x.exp()
        h = x * 1
        h.register_hook(lambda gradient: gradient.mul_(0.5))
        ((h + side) * 2).sum().backward()
        kept = h.grad_fn.metadata["kept"] = Kept()
        return weakref.ref(kept)

    with noclobber.watch() as seen:
        gc.collect()
        gc.disable()
        try:
            graph = step()
            assert graph() is None
        finally:
            gc.enable()
    assert [one.code for one in seen.findings] == ["NC206"]


class Sum(torch.nn.Module):
    def forward(self, a, b):
        return a + b


def what_it_gave(module, made, given):
    given[0].mul_(10)


def what_it_makes(module, made, given):
    made[0].mul_(10)


def makes_anew(module, made, given):
    return (made[0] * 10, *made[1:])


def of_tanh(x, y, hook, *, joined):
    f = torch.nn.Tanh()
    f.register_full_backward_hook(hook)
    h = x * y
    return f(h) + h * joined


def of_a_sum(x, y, hook, *, joined):
    f = Sum()
    f.register_full_backward_hook(hook)
    return f(x * 1, y * 1 if joined else y.detach())


class Cat(torch.nn.Module):
    def forward(self, a, b):
        return torch.cat([a, b])


def of_parts(x, y, hook, *, joined):
    f = Cat()
    f.register_full_backward_hook(hook)
    return f(x * 1, y * 1).view(2, 3).sum(0) + x * joined


def of_an_identity(x, y, hook, *, joined):
    f = torch.nn.Identity()
    f.register_full_backward_hook(hook)
    h = x * y
    return f(h) + h if joined else f(h)


@pytest.mark.parametrize("joined", [0, 1])
@pytest.mark.parametrize(
    ("make", "write", "right"),
    [
        (of_tanh, what_it_gave, lambda *_: None),
        (of_tanh, what_it_makes, makes_anew),
        (of_a_sum, what_it_makes, makes_anew),
        (of_an_identity, what_it_makes, makes_anew),
        (of_parts, what_it_makes, makes_anew),
    ],
)
def test_hooks_of_modules(make, write, right, joined):
    """`joined`: whether another part of the graph gets what the hook may write."""

    def program(hook):
        x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        (make(x, y, hook, joined=joined) * W).sum().backward()
        return [one.grad for one in (x, y) if one.grad is not None]

    heard, gradients = hear(lambda: program(write))
    assert all_equal(gradients, bare(lambda: program(write)))
    assert bool(heard.events) == (not all_equal(gradients, program(right)))


def test_a_hook_of_a_module_beside_a_backward_of_another_thread():
    """What ends there is not the end of a hook that waits here, between two writes."""

    def loss(x, hook, joined):
        y = torch.full((3,), 2.0, requires_grad=True)
        return (of_an_identity(x, y, hook, joined=joined) * W).sum()

    def program():
        x, z = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        there = loss(z, what_it_makes, 0)

        def writes_and_waits(module, made, given):
            made[0].mul_(1)
            thread = threading.Thread(target=there.backward)
            thread.start()
            thread.join()
            made[0].mul_(10)

        loss(x, writes_and_waits, 1).backward()
        return x.grad, z.grad

    heard, gradients = hear(program)
    assert len(heard.events) == 1
    assert all_equal(gradients, bare(program))
