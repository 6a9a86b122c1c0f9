"""Programs that write, or run backward, in inference mode: what noclobber makes there can be used anywhere."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import noclobber
from tests.observe.alike import differing
from tests.observe.hearing import bare, hear

inference = torch.inference_mode


def made_there(*shape):
    with inference():
        return torch.ones(shape)


def leaf():
    return torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()


def squared(write, *, inside):
    """A program that saves `h`, writes it, and runs backward, `inside` inference mode or not."""

    def program(writes):
        x = leaf()
        h = x * 2
        loss = (h * h).sum() + (h[:, 1:] ** 3).sum()
        if writes:
            write(h)
        with inference(inside):
            loss.backward()
        return x.grad

    return program


@inference()
def into_storage(h):
    torch.empty(0).set_(h.untyped_storage()).mul_(5)


WRITES = {
    "whole": inference()(lambda h: h.mul_(5)),
    "through data": inference()(lambda h: h.data.mul_(5)),
    "a row": inference()(lambda h: h[1].mul_(5)),
    "a row, then all": inference()(lambda h: (h[0].data.mul_(2), h.data.mul_(5))),
    "as an output": inference()(lambda h: torch.mul(torch.ones(3), 3, out=h.data[1])),
    "several": inference()(lambda h: torch._foreach_mul_([h, h.data], 5)),
    "the storage": into_storage,
    "other data": lambda h: setattr(h, "data", made_there(2, 3)),
    "other data, there": inference()(lambda h: setattr(h, "data", torch.ones(3, 2).t())),
    "other data of another type": lambda h: setattr(h, "data", made_there(2, 3).double()),
    "other data, of what had been written": lambda h: (h.data.add_(1), setattr(h, "data", made_there(2, 3))),
    "other data, then that": lambda h: (setattr(h, "data", made_there(2, 3)), inference()(h.mul_)(5)),
    "other data, then that, outside": lambda h: (setattr(h, "data", made_there(2, 3)), h.mul_(5)),
}


def closing_over(constant, **how):
    """A program with a checkpointed region that reads a tensor which is written in inference mode."""

    def program(writes):
        x, c = leaf(), constant(3)
        loss = checkpoint(lambda h: (h + c).sin() * 2, x, **how).sum()
        if writes:
            with inference():
                torch._foreach_add_([c], 1.0)
        loss.backward()
        return x.grad

    return program


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.b = b
        return a * b

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.b, None


def on_ctx(constant):
    def program(writes):
        x, c = leaf(), constant(3)
        loss = Keeps.apply(x, c).sum()
        if writes:
            inference()(c.mul_)(2)
        loss.backward()
        return x.grad

    return program


def under_own_hooks(writes):
    x = leaf()
    with saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        y = x.exp()
    if writes:
        inference()(y.data.mul_)(2)
    with inference():
        y.backward(torch.ones(2, 3))
    return x.grad


PROGRAMS = {
    **{f"{name}, backward outside": squared(write, inside=False) for name, write in WRITES.items()},
    **{f"{name}, backward there": squared(write, inside=True) for name, write in WRITES.items()},
    "read by a region": closing_over(torch.ones, use_reentrant=False),
    "read by a reentrant region": closing_over(torch.ones, use_reentrant=True),
    "made there, read by a region": closing_over(made_there, use_reentrant=False),
    "made there, read by a reentrant region": closing_over(made_there, use_reentrant=True),
    "on a ctx": on_ctx(torch.ones),
    "made there, on a ctx": on_ctx(made_there),
    "under the program's own hooks": under_own_hooks,
}


def outcome(program):
    """What a program returns, or what it raises."""
    try:
        return program()
    except RuntimeError as error:
        return str(error).partition("\n")[0]


def alike(one, other):
    return (
        torch.equal(one, other) if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) else one == other
    )


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_watching_changes_nothing_and_finds_the_write(name, contents):
    program = PROGRAMS[name]
    alone = bare(lambda: outcome(lambda: program(True)))
    heard, result = hear(lambda: outcome(lambda: program(True)), contents)
    assert alike(result, alone)
    if contents:
        assert heard.clobbers or heard.events


@pytest.mark.parametrize("name", PROGRAMS)
def test_preserved_gradients_are_right(name):
    with noclobber.preserve():
        gradient = PROGRAMS[name](True)
    assert torch.equal(gradient, PROGRAMS[name](False))


def test_what_is_made_there_has_no_version_unless_the_mode_is_left():
    x = leaf()
    with inference():
        assert x.clone().is_inference()
        assert not x.detach().is_inference()
        with inference(False), torch.no_grad():
            copy = x.clone()
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
    assert not copy.is_inference()
    assert not copy.requires_grad
    with pytest.raises(RuntimeError, match="do not track version counter"):
        made_there(1)._version  # noqa: B018


def test_a_tensor_given_what_was_made_there_keeps_its_counter_and_its_detach_has_another():
    x = torch.zeros(3)
    x.add_(1)
    x.data = made_there(3)
    assert (x.is_inference(), x._version, x.detach()._version) == (True, 1, 0)
    with inference():
        alias = x.detach()
    with pytest.raises(RuntimeError, match="do not track version counter"):
        alias._version  # noqa: B018


def test_the_engine_takes_no_alias_of_what_was_made_there_from_a_hook():
    with saved_tensors_hooks(lambda saved: saved, lambda saved: made_there(2, 3).detach()):
        y = leaf().exp()
    with pytest.raises(RuntimeError, match="Cannot set version_counter for inference tensor"):
        y.sum().backward()


def test_a_leaf_given_what_was_made_there_may_be_asked_for_its_gradient():
    """No node leads to it (the first part); a gradient hook that writes has noclobber look for that node."""

    def program():
        x, y = leaf(), leaf()
        y.data = made_there(3)
        x.register_hook(lambda gradient: gradient.mul_(2))
        return torch.autograd.grad((x * 1).sum(), [x, y], allow_unused=True)

    y = leaf()
    y.data = made_there(3)
    with pytest.raises(AttributeError, match="next_functions"):
        torch.autograd.graph.get_gradient_edge(y)
    assert differing(lambda: str(program())) == {}


def test_a_leaf_given_what_was_made_there_after_forward_has_a_node():
    def program():
        x = leaf()
        y = x * 3
        x.data = made_there(2, 3)
        x.register_hook(lambda gradient: gradient.mul_(2))
        return torch.autograd.grad(y.sum(), [x])

    heard, (gradient,) = hear(program)
    assert torch.equal(gradient, torch.full((2, 3), 6.0))
    assert not heard.events


@pytest.mark.parametrize("contents", [True, False])
def test_an_input_that_is_saved_again_and_was_given_data_of_inference(contents):
    """PyTorch refuses to save it once more, in the midst of the backward with `create_graph`."""

    def program():
        x = torch.ones(3, 4, requires_grad=True)
        y = torch.cosine_similarity(x, torch.ones(3, 4), -1)
        with torch.inference_mode():
            x.data = x.data.clone()
        try:
            torch.autograd.grad(y.sum(), [x], create_graph=True)
        except RuntimeError as error:
            return str(error)

    assert hear(program, contents)[1] == program()
    assert "Inference tensors cannot be saved for backward" in program()


@pytest.mark.parametrize("contents", [True, False])
def test_a_view_of_an_input_that_was_given_data_of_inference_is_refused_too(contents):
    """The backward of a product reads the transposed input, and saves that."""

    def program():
        x, w = torch.ones(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True)
        y = x @ w
        with torch.inference_mode():
            w.data = w.data * 0.5
        try:
            torch.autograd.grad(y.sin().sum(), [x], create_graph=True)
        except RuntimeError as error:
            return str(error)

    assert hear(program, contents)[1] == program()
    assert "Inference tensors cannot be saved for backward" in program()
