"""Tensors whose dimensions have names, which torch has up to 2.12: they work under noclobber, unwatched."""

import pytest
import torch

import noclobber
from noclobber.observe.transparent import named_tensors
from tests.observe.alike import differing

HAVE_NAMES = hasattr(torch.Tensor, "refine_names")
pytestmark = [
    pytest.mark.skipif(not HAVE_NAMES, reason="this release has no names"),
    pytest.mark.filterwarnings("ignore:Named tensors"),
]


def ones():
    return torch.ones(3, 2, requires_grad=True).clone()


def assigned():
    y = ones()
    y.names = ("N", "C")
    return y


NAMING = {
    "refine_names": lambda: ones().refine_names("N", "C"),
    "rename": lambda: ones().rename("N", "C"),
    "rename_": lambda: ones().rename_("N", "C"),
    "names": assigned,
}


def written(x):
    y = x.exp()
    x.mul_(2)
    x[0] = 3
    first, *_ = x.unbind("N")
    first.add_(1)
    torch.sin(x.detach(), out=x.detach())
    y.sum().backward()
    return x.names, x.tolist(), y.names, y.tolist()


def stale(x):
    y = x.exp()
    y.mul_(2)
    y.sum().backward()


@pytest.mark.parametrize("use", [written, stale])
@pytest.mark.parametrize("make", NAMING.values(), ids=NAMING)
def test_a_tensor_with_names_is_as_without_noclobber(make, use):
    assert differing(lambda: use(make()), ("install", "versions", "contents")) == {}


@pytest.mark.parametrize("make", NAMING.values(), ids=NAMING)
def test_a_tensor_named_before_is_as_without_noclobber(make):
    x = make().detach()
    assert differing(lambda: x.zero_().add_(1).tolist()) == {}


def test_what_is_not_seen_is_said():
    with noclobber.watch() as seen:
        ones().refine_names("N", "C").mul_(2)
    assert any(named_tensors.UNSEEN in one for one in seen.report.coverage.unseen)


def test_writes_are_seen_again_in_the_next_block():
    with noclobber.watch():
        ones().refine_names("N", "C").mul_(2)
    with pytest.raises(noclobber.ClobberError), noclobber.watch() as seen:
        stale(ones())
    (finding,) = seen.report.findings
    assert [write.op for write in finding.writes] == ["aten::mul_"]


def test_writes_are_seen_where_a_tensor_with_names_is_garbage():
    with noclobber.watch():
        cycle = [ones().refine_names("N", "C")]
        cycle.append(cycle)
        del cycle
    with pytest.raises(noclobber.ClobberError), noclobber.watch() as seen:
        stale(ones())
    (finding,) = seen.report.findings
    assert [write.op for write in finding.writes] == ["aten::mul_"]


def test_a_kernel_written_in_python_gets_no_tensor_with_names():
    """What this rests on."""
    seen = []
    with torch.library._scoped_library("noclobber_named", "FRAGMENT") as library:
        library.define("look(Tensor x) -> ()")
        library.impl("look", seen.append, "CPU")
        with pytest.raises(RuntimeError, match="Named tensors are currently unsupported in TorchScript"):
            torch.ops.noclobber_named.look(ones().rename("N", "C"))
    assert seen == []
