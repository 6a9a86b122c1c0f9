"""What the pages say that operations keep, asked of the installed torch: overwrite it, and backward raises."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

KEEPS = {
    "sigmoid": (torch.sigmoid, {"result"}),
    "exp": (torch.exp, {"result"}),
    "tanh": (torch.tanh, {"result"}),
    "sqrt": (torch.sqrt, {"result"}),
    "softmax": (lambda h: torch.softmax(h, 0), {"result"}),
    "relu": (torch.relu, {"result"}),
    "sin": (torch.sin, {"input"}),
    "log": (torch.log, {"input"}),
    "gelu": (F.gelu, {"input"}),
    "a power by a number": (lambda h: h**2.5, {"input"}),
    "a number to a power": (lambda h: 2**h, {"input", "result"}),
    "a power by a tensor": (lambda h: h ** (h.detach() + 1).requires_grad_(), {"input", "result"}),
    "linear": (lambda h: F.linear(h, torch.ones(3, 3, requires_grad=True)), {"input"}),
    "linear with a fixed weight": (lambda h: F.linear(h, torch.ones(3, 3)), set()),
    "convolution": (lambda h: F.conv1d(h[None], torch.ones(3, 3, 1, requires_grad=True)), {"input"}),
    "convolution with a fixed weight": (lambda h: F.conv1d(h[None], torch.ones(3, 3, 1)), {"input"}),
    "norm": (lambda h: h.norm(dim=0), {"input", "result"}),
    "std": (lambda h: h.std(0), {"input", "result"}),
    "amax": (lambda h: h.amax(0), {"input", "result"}),
    "prod": (lambda h: h.prod(0), {"input", "result"}),
    "cumprod": (lambda h: h.cumprod(0), {"input", "result"}),
    "logsumexp": (lambda h: h.logsumexp(0), {"input", "result"}),
    "a product": (lambda h: h * torch.ones(3, requires_grad=True), {"input"}),
}


@pytest.mark.parametrize(("operation", "keeps"), KEEPS.values(), ids=KEEPS)
@pytest.mark.parametrize("overwritten", ["input", "result"])
def test_backward_raises_where_what_an_operation_keeps_is_overwritten(operation, keeps, overwritten):
    h = torch.rand(3, 3).add(1).requires_grad_() * 1
    result = operation(h)
    loss = result.sum() if overwritten == "input" else (result * 1).sum()
    with torch.no_grad():
        (h if overwritten == "input" else result).zero_()
    if overwritten in keeps:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    else:
        loss.backward()


def test_a_tensor_and_its_views_have_one_counter_and_data_has_its_own():
    t = torch.zeros(4)
    t[:2].add_(1)
    t.detach().add_(1)
    assert t._version == 2
    t.data.add_(1)
    assert t._version == 2
