"""The line that a refusal names as the one where a view is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import noclobber


class View(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def writes_the_view_of_a_function() -> None:
    x = torch.ones(3, requires_grad=True) * 1
    with torch.no_grad():
        torch.ones(2, 2).unbind()
    View.apply(x).mul_(2)  # type: ignore[no-untyped-call]


def test_views_that_are_made_with_gradients_off_have_no_node() -> None:
    """The next node is not theirs: here it is that of the Function, which is on another line."""
    with pytest.raises(RuntimeError, match="inside a custom Function"), noclobber.watch() as seen:
        writes_the_view_of_a_function()
    (finding,) = seen.findings
    assert finding.code == "NC305"
    assert "create" not in {label.role for label in finding.labels}
