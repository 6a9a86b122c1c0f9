"""From torch 2.14 on a Function may add to the gradients that others have handed on: as it would without noclobber."""

import functools
import warnings

import pytest
import torch
from torch.autograd.function import FunctionCtx

import noclobber
from tests.observe.hearing import bare

WATCHES = pytest.mark.parametrize(
    "watch",
    [functools.partial(noclobber.watch, contents=False), noclobber.watch, noclobber.preserve],
    ids=["versions", "contents", "preserve"],
)
HAS_BUFFERS = hasattr(FunctionCtx, "input_grad_buffers")


def doubled(gradient):
    return gradient.mul_(2)


class Sent:
    """A Function that adds to what there is, where PyTorch lets it, and how often it could."""

    def __init__(self):
        self.added = []
        added = self.added

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return x * w

            @staticmethod
            def backward(ctx, g):
                x, w = ctx.saved_tensors
                buffer, _ = ctx.input_grad_buffers if HAS_BUFFERS else (None, None)
                added.append(buffer is not None)
                if buffer is None:
                    return g * w, g * x
                buffer.add_(g * w)
                return None, g * x

        self.apply = Scaled.apply


def alone(x, w, sent):
    h = x * 1
    return sent.apply(h, w).sum() + h.sin().sum() + sent.apply(h, w).exp().sum()


def after_a_gradient_was_overwritten(x, w, sent):
    """What was made last runs first in backward."""
    shared = x * 2
    first, second = sent.apply(shared, w), sent.apply(shared, w)
    scaled = shared * 1
    scaled.register_hook(doubled)
    return (scaled + shared).square().sum() + first.sum() + second.sum()


def beside_an_unseen_write(x, w, sent):
    h = sent.apply(x * 1, w)
    with torch.no_grad():
        h.mul_(3)
    return alone(h, w, sent)


@WATCHES
@pytest.mark.parametrize("graph", [alone, after_a_gradient_was_overwritten, beside_an_unseen_write])
def test_as_without_noclobber(graph, watch):
    def program():
        x, w = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
        sent = Sent()
        loss = graph(x, w, sent)
        loss.backward(retain_graph=True)
        loss.backward()
        return sent.added, x.grad.tolist(), w.grad.tolist()

    def seen():
        with watch():
            return program()

    expected = bare(program)
    assert any(expected[0]) == HAS_BUFFERS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        assert bare(seen) == expected
