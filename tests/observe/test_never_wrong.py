"""A program that raises must raise with noclobber on, and never run on with a wrong number."""

import contextlib
import warnings

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import noclobber


def sigmoid_then_add():
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    h = torch.sigmoid(x)
    h += 1
    h.sum().backward()
    return x.grad


def test_hooks_switch_pytorchs_own_check_off():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        wrong = sigmoid_then_add()
    y = torch.sigmoid(torch.tensor([0.0, 1.0]))
    assert not torch.allclose(wrong, y * (1 - y))


def test_noclobber_raises_where_its_hooks_made_pytorch_silent():
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as bare:
        sigmoid_then_add()
    with pytest.raises(noclobber.ClobberError) as watched, noclobber.watch():
        sigmoid_then_add()
    assert str(watched.value) == str(bare.value)


def through_a_view():
    x = torch.ones(4, requires_grad=True)
    y = x.exp()
    y[1:].view(3).mul_(2)
    y.sum().backward()


def an_input():
    x = torch.ones(4, requires_grad=True)
    y = x * 2
    z = y**2
    y.add_(1)
    z.sum().backward()


def a_weight_by_an_optimizer():
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(1, 2, requires_grad=True)
    loss = net(x).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()


def a_buffer_under_no_grad():
    x = torch.ones(3, requires_grad=True)
    scale = torch.full((3,), 2.0)
    y = x * scale
    with torch.no_grad():
        scale.zero_()
    y.sum().backward()


def by_detach_in_place():
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    z = y.pow(2)
    y.detach_()
    z.sum().backward()


def by_detach_in_place_of_other_memory():
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    z = y.pow(2)
    with torch.no_grad():
        y.set_(torch.ones(3))
    y.detach_()
    z.sum().backward()


def inside_a_function():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    x = torch.ones(3, requires_grad=True)
    y = x * 1
    z = Square.apply(y)
    y.mul_(3)
    z.sum().backward()


def by_out():
    x = torch.ones(3, requires_grad=True)
    w = torch.ones(3)
    y = x * w
    torch.add(torch.ones(3), 1, out=w)
    y.sum().backward()


def by_foreach():
    x = torch.ones(3, requires_grad=True)
    w = torch.ones(3)
    y = x * w
    torch._foreach_add_([w], 1.0)
    y.sum().backward()


def by_set():
    x = torch.ones(3, requires_grad=True)
    w = torch.ones(3)
    y = x * w
    w.set_(torch.zeros(3))
    y.sum().backward()


def in_inference_mode():
    x = torch.ones(3, requires_grad=True)
    w = torch.ones(3)
    y = x * w
    with torch.inference_mode():
        w.add_(1)
    y.sum().backward()


def a_second_backward():
    x = torch.ones(3, requires_grad=True)
    loss = (x**2).sum()
    loss.backward()
    loss.backward()


def in_double_backward():
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    (g,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
    y.add_(1)
    g.sum().backward()


def by_reading_a_saved_attribute():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.add_(1)
    return y.grad_fn.next_functions[0][0]._saved_result


RAISING = [
    sigmoid_then_add,
    through_a_view,
    an_input,
    a_weight_by_an_optimizer,
    a_buffer_under_no_grad,
    by_detach_in_place,
    by_detach_in_place_of_other_memory,
    inside_a_function,
    by_out,
    by_foreach,
    by_set,
    in_inference_mode,
    a_second_backward,
    in_double_backward,
    by_reading_a_saved_attribute,
]


@pytest.mark.parametrize("program", RAISING, ids=lambda p: p.__name__)
@pytest.mark.parametrize("around", [noclobber.watch, noclobber.install], ids=["watch", "install"])
def test_what_raises_raises_the_same(program, around):
    with pytest.raises(RuntimeError) as bare:
        program()
    with pytest.raises(RuntimeError) as seen, around():
        program()
    head = str(bare.value).split(", which is")[0].split(" is at version")[0].rstrip(",")
    assert str(seen.value).startswith(head[:80])
    assert isinstance(seen.value, type(bare.value))


def test_version_numbers_of_the_message_are_pytorchs():
    with pytest.raises(RuntimeError) as bare:
        a_buffer_under_no_grad()
    with pytest.raises(RuntimeError) as seen, noclobber.watch():
        a_buffer_under_no_grad()
    assert str(bare.value) == str(seen.value)


def words_of(program):
    """What a program raises, in the same words with noclobber on."""
    with pytest.raises(RuntimeError) as bare:
        program()
    with pytest.raises(RuntimeError) as seen, noclobber.watch():
        program()
    assert str(bare.value) == str(seen.value)
    return str(seen.value)


def test_the_producer_of_the_message_is_pytorchs():
    for program in (through_a_view, an_input, a_weight_by_an_optimizer, by_out, inside_a_function):
        assert words_of(program), program.__name__


OF_VIEWS = {
    "conv": lambda a, b: F.conv1d(a[None], b[None].transpose(0, 2)),
    "batched, added": lambda a, b: torch.baddbmm(torch.zeros(1, 1, 1), a[None], b[None]),
    "batched": lambda a, b: torch.bmm(a[None], b[None]),
    "power": lambda a, b: a.view(1, 3) ** b.view(1, 3),
    "bilinear": lambda a, b: F.bilinear(a.view(1, 3), b.view(1, 3), torch.ones(1, 3, 3)),
    "interpolation": lambda a, b: torch.lerp(a.view(3), b.view(3), a.view(3)),
}


@pytest.mark.parametrize("operation", OF_VIEWS.values(), ids=OF_VIEWS)
@pytest.mark.parametrize("written", [0, 1])
def test_the_producer_of_a_view_that_is_gone_is_pytorchs(operation, written):
    def program():
        inputs = torch.ones(1, 3, requires_grad=True), torch.ones(3, 1, requires_grad=True)
        y = operation(*inputs)
        with torch.no_grad():
            inputs[written].mul_(2)
        y.sum().backward()

    assert words_of(program)


@pytest.mark.parametrize("function", [torch.sigmoid, torch.tanh, lambda x: x.softmax(0), lambda x: x.log_softmax(0)])
@pytest.mark.parametrize("is_there", [True, False])
def test_the_producer_of_a_result_that_a_double_backward_reads_is_pytorchs(function, is_there):
    def program():
        x = torch.ones(3, requires_grad=True)
        y = function(x)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        y.detach().mul_(0.5)
        if not is_there:
            del y
        first.sum().backward()

    assert "is at version 1" in words_of(program)


WITH_SEVERAL_RESULTS = {
    "svd": (lambda x: torch.linalg.svd(x.outer(x) + torch.eye(3), full_matrices=False), "2 of LinalgSvd"),
    "lu": (lambda x: torch.linalg.lu(x.outer(x) + torch.eye(3))[1:], "1 of LinalgLu"),
    "layer norm": (lambda x: torch.native_layer_norm(x, (3,), None, None, 1e-5), ""),
    "batch norm": (lambda x: torch.native_batch_norm(x[:, None], None, None, None, None, True, 0.1, 1e-5), ""),
}
if torch.__version__ >= "2.12":  # before that it has no gradient
    WITH_SEVERAL_RESULTS["aminmax"] = (torch.aminmax, "1 of Aminmax")
"""Operators that keep their last result, and how PyTorch names it; not at all where it has no gradient."""


@pytest.mark.parametrize(("operation", "name"), WITH_SEVERAL_RESULTS.values(), ids=WITH_SEVERAL_RESULTS)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_result_is_counted_among_those_that_have_a_gradient(operation, name, is_there):
    def program():
        results = operation(torch.tensor([1.0, 2.0, 4.0], requires_grad=True))
        loss = sum(one.sum() for one in results if one.requires_grad)
        with torch.no_grad():
            results[-1].mul_(2)
        if not is_there:
            del results
        loss.backward()

    said = words_of(program).replace("Backward0,", ",")  # as torch 2.10 to 2.12 name it
    assert f"which is output {name}," in said if name else "which is" not in said


@pytest.mark.parametrize("many", [lambda w: w.split(1), lambda w: w.unbind(), lambda w: w.chunk(2)])
@pytest.mark.parametrize("view", [lambda part: part, lambda part: part[None].view(-1, 1)], ids=["", "a view of it"])
def test_one_of_several_views_that_is_gone_is_refused_in_pytorchs_words(many, view):
    def program():
        w = torch.ones(2, 3, requires_grad=True)
        y = view(many(w)[0]) ** 2
        with torch.no_grad():
            w.mul_(2)
        y.sum().backward()

    assert "multiple views" in words_of(program)


VIEWS_THAT_GO = {
    "conv": lambda a, b: F.conv1d(a.view(1, 1, 3), b.view(1, 1, 3)),
    "batched": lambda a, b: torch.bmm(a.view(1, 1, 3), b.view(1, 3, 1)),
    "power": lambda a, b: a[None] ** b[None],
    "of the same shape": lambda a, b: a[:] * b[:],
    "turned twice": lambda a, b: a.t().t() * b.t().t(),
}


@pytest.mark.parametrize("operation", VIEWS_THAT_GO.values(), ids=VIEWS_THAT_GO)
@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("written", ["", "a part", "first by its data", "in other memory"])
def test_the_producer_of_a_view_whose_base_entered_the_graph_is_pytorchs(operation, kept, written):
    """The view and its base were made where nothing required a gradient; autograd makes the view a node of its own."""

    def program():
        inputs = [torch.ones(3), torch.ones(3)]
        factor = inputs[1 - kept].requires_grad_()
        y = operation(*inputs)
        if written == "first by its data":
            inputs[kept].data.add_(0)
        elif written == "in other memory":
            inputs[kept].data = inputs[kept].data.clone()
        (inputs[kept][0] if written == "a part" else inputs[kept]).mul_(factor.sum())
        y.sum().backward()

    assert "AsStrided" in words_of(program)


def made_aside(base):
    with torch.no_grad():
        return base[0]


@pytest.mark.parametrize(
    ("make", "words"), [(lambda base: base.unbind()[0], "multiple views"), (made_aside, "both inside the no_grad")]
)
@pytest.mark.parametrize("shown", [lambda view: view, lambda view: view[None]], ids=["", "a view of it"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "gone"])
def test_a_view_outside_of_the_graph_that_pytorch_refuses_once_its_base_enters(make, words, shown, kept):
    def program():
        base, factor = torch.ones(2, 3), torch.ones(3, requires_grad=True)
        views = [shown(make(base))]
        y = factor * views[0]
        if not kept:
            views.clear()
        base.mul_(factor)
        y.sum().backward()

    assert words in words_of(program)


@pytest.mark.parametrize(("shown", "named"), [(lambda h: h, "Div"), (lambda h: h[None], "AsStrided")])
def test_what_entered_the_graph_is_named_though_the_program_lets_it_go(shown, named):
    factor = torch.ones(3, requires_grad=True)

    def local():
        h = torch.ones(3)
        y = torch.minimum(shown(h), factor)
        h.div_(factor.sum())
        return y

    assert named in words_of(lambda: local().sum().backward())


def test_a_detach_that_is_gone_is_no_view():
    def program():
        x, factor = torch.ones(3), torch.ones(3, requires_grad=True)
        y = factor * x.detach()
        x.mul_(factor.sum())
        y.sum().backward()

    assert "output" not in words_of(program)


def test_under_anomaly_mode_the_hint_is_pytorchs():
    with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(RuntimeError) as bare:
            sigmoid_then_add()
        with pytest.raises(RuntimeError) as seen, noclobber.watch():
            sigmoid_then_add()
    assert str(bare.value) == str(seen.value)


def test_an_error_caught_by_the_program_leaves_it_running():
    def carries_on():
        with contextlib.suppress(RuntimeError):
            sigmoid_then_add()
        x = torch.ones(2, requires_grad=True)
        (x * 3).sum().backward()
        return x.grad.tolist()

    with pytest.warns(noclobber.ClobberWarning), noclobber.watch() as seen:
        assert carries_on() == [3.0, 3.0]
    assert [finding.code for finding in seen.findings] == ["NC101"]


def test_what_entered_the_graph_through_data_is_another_tensor():
    def program():
        c, k = torch.ones(3, 4), torch.ones(3, 3, 3, requires_grad=True)
        y = torch.conv_transpose1d(c[None], k)
        c.data.copy_(torch.ones(3, 4, requires_grad=True))
        c.add_(1)
        y.sum().backward()

    assert "AsStrided" not in words_of(program)


def test_a_view_of_what_a_function_returned_as_it_is():
    def program():
        x, factor = torch.ones(3, requires_grad=True) * 1, torch.ones(3, requires_grad=True)
        h = checkpoint(lambda t: t.view_as(t), x, use_reentrant=True)
        y = h[None] * factor[None]
        with torch.no_grad():
            h.zero_()
        y.sum().backward()

    assert "created inside a custom Function" in words_of(program)


def test_a_view_of_what_a_function_was_given():
    def program():
        w = torch.ones(3, 3, requires_grad=True)
        h = checkpoint(lambda t: t.diagonal(), w, use_reentrant=True)
        y = torch.ones(2, 2, requires_grad=True) * w[:2, :2]
        with torch.no_grad():
            h.zero_()
        y.sum().backward()

    assert "which is output 0 of AsStrided" in words_of(program)
