"""An error inside the transforms of torch.func is explained like any other."""

import pytest
import torch

import noclobber
from tests.observe.hearing import hear, is_marked


def loss(w, x):
    h = torch.sigmoid(x @ w.t())
    h.mul_(2)  # write
    return h.pow(2).sum()


@pytest.mark.parametrize("transform", [torch.func.grad, lambda f: torch.func.vmap(torch.func.grad(f), (None, 0))])
def test_the_write_is_blamed(transform):
    def refused():
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as raised:
            transform(loss)(torch.ones(4, 4), torch.ones(4, 4))
        return str(raised.value)

    said = refused()
    heard, told = hear(refused)
    assert told == said
    assert {is_marked(clobber.writes[0].site, "write") for clobber in heard.clobbers} == {True}
    with noclobber.watch() as seen:
        refused()
    assert [one.code for one in seen.findings] == ["NC101"]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (lambda: torch.vmap(lambda a: torch.zeros(3).add_(a))(torch.ones(2, 3)), "NC310"),
        (lambda: torch.vmap(torch.func.grad(lambda a: torch.zeros(3).add_(a).sum()))(torch.ones(2, 3)), "NC310"),
        (lambda: torch.vmap(lambda a: torch.zeros(1).add_(torch.ones(3)) + a)(torch.ones(2, 3)), "NC308"),
        (lambda: torch.vmap(lambda a: a[:1].add_(a))(torch.ones(2, 3)), "NC308"),
    ],
)
def test_a_shape_that_is_too_small_for_what_vmap_maps_is_told_from_any_other(program, code):
    with pytest.raises(RuntimeError, match=r"broadcast shape|Bad in-place call"), noclobber.watch() as seen:
        program()
    assert [one.code for one in seen.findings] == [code]
