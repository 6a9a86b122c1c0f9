"""A closure runs inside the step of an optimizer: what it writes itself is not what the step writes."""

from __future__ import annotations

import pytest
import torch

import noclobber

OPTIMIZERS = [lambda given: torch.optim.SGD(given, 0.1), lambda given: torch.optim.LBFGS(given, max_iter=2)]


class Wrapping(torch.optim.SGD):
    """An optimizer of the user's own, whose step the log does not skip."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("make", [*OPTIMIZERS, lambda given: Wrapping(given, 0.1)])
def test_a_write_of_a_closure_is_blamed_on_its_line(make):
    weight = torch.ones(3, requires_grad=True)
    optimizer = make([weight])

    def closure():
        optimizer.zero_grad()
        h = (weight * 2).exp()
        h.data.mul_(2)
        loss = h.sum()
        loss.backward()
        return loss

    with pytest.warns(noclobber.ClobberWarning), noclobber.watch(contents=True) as seen:
        optimizer.step(closure)
    assert {finding.code for finding in seen.findings} == {"NC201"}
    assert all("h.data.mul_(2)" in finding.primary.source[0] for finding in seen.findings)


def test_a_step_with_a_closure_still_is_a_step():
    weight, other = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)

    def closure():
        loss = (weight * 3).sum()
        loss.backward()
        return loss

    with noclobber.watch() as seen:
        early = (weight * other).sum()
        optimizer.step(closure)
        with pytest.raises(RuntimeError):
            early.backward()
    assert [finding.code for finding in seen.findings] == ["NC103"]
