"""Right gradients in spite of in-place writes: against the oracle that clones every save."""

import threading
import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.digests import LARGE

pytestmark = pytest.mark.usefixtures("either_size")


def right(program):
    """The right gradient: every save is read back with the bytes that it had."""
    with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor):
        return program()


def leaf(*shape):
    return torch.linspace(0.5, 1.5, torch.Size(shape).numel()).reshape(shape).requires_grad_()


def through(write):
    """A program that saves `h` several times, in part and in whole, writes it, and runs backward."""

    def program():
        x = leaf(4, 6)
        h = x * 2
        total = (h**2).sum() + (h[1:] ** 3).sum() + (h[:, ::2].t() * h[:, 1::2].t()).exp().sum()
        write(h)
        total.backward()
        return [x.grad]

    return program


WRITES = {
    "whole": lambda h: h.mul_(5),
    "a row": lambda h: h[2].mul_(5),
    "from the second row on": lambda h: h[1:].mul_(5),
    "every other column": lambda h: h[:, 1::2].mul_(5),
    "one element": lambda h: h.__setitem__((3, 5), 0.0),
    "a masked part": lambda h: h.__setitem__(h > 2, 0.0),
    "through data": lambda h: h.data.mul_(5),
    "through detach": lambda h: h.detach()[2:].zero_(),
    "under no_grad": torch.no_grad()(lambda h: h.mul_(5)),
    "by two writes": lambda h: (h.mul_(5), h.add_(1)),
    "as an output": lambda h: torch.mul(torch.ones(6), 3, out=h.detach()[1]),
    "as one of several outputs": lambda h: torch.max(
        torch.ones(6, 3), 0, out=(h.detach()[0, :3], torch.empty(3, dtype=torch.long))
    ),
    "with others": lambda h: torch._foreach_mul_([h.detach()[0], h.detach()[1]], 7),
    "another storage": lambda h: h.set_(torch.zeros(4, 6)),
    "other data": lambda h: setattr(h, "data", torch.zeros(4, 6)),
    "other data, then that": lambda h: (setattr(h, "data", torch.zeros(4, 6)), h.mul_(5)),
    "its storage": lambda h: h.untyped_storage().fill_(0),
    "through DLPack": lambda h: torch.from_dlpack(h.detach()).mul_(5),
}


@pytest.mark.smoke
@pytest.mark.parametrize("write", WRITES)
def test_the_gradient_is_right(write):
    program = through(WRITES[write])
    with noclobber.preserve() as kept:
        gradients = program()
    for ours, oracle in zip(gradients, right(through(lambda h: None)), strict=True):
        torch.testing.assert_close(ours, oracle, rtol=1e-6, atol=0)
    assert bool(kept.kept) == (write not in ("another storage", "other data", "other data, then that"))


def other_memory(alias):
    alias.data = alias.data.clone()


def another_storage(alias):
    with torch.no_grad():
        alias.set_(alias.detach().clone())


@pytest.mark.parametrize("written", ["tensor", "alias"])
@pytest.mark.parametrize("move", [other_memory, another_storage])
@pytest.mark.parametrize("alias_of", [lambda tensor: tensor[1:], lambda tensor: tensor.view(2, 3), torch.Tensor.detach])
def test_versions_are_shared_with_an_alias_that_was_given_other_memory_before(alias_of, move, written):
    """A write to either moves the versions of the saves of both, and no byte of the other."""

    def program():
        x = leaf(2, 3)
        alias = alias_of(x)
        move(alias)
        total = (x**2).sum() + (x[:1] * alias).sum()
        with torch.no_grad():
            (x if written == "tensor" else alias).mul_(3)
        total.backward()
        return x.grad

    with noclobber.preserve():
        ours = program()
    assert torch.equal(ours, right(program))


def test_memory_that_a_tensor_left_is_forgotten_with_it():
    with noclobber.preserve():
        x = torch.ones(3, requires_grad=True)
        for _ in range(3):
            x.data = x.data.clone()
        assert list(CONTEXT.contents.moved) == [storages.storage_key(x)]


def test_outputs_that_are_kept_by_the_operator():
    def program():
        x = leaf(5)
        h = x.sigmoid()
        g = x.exp()
        h += 1
        g[2:] = 0
        (h * 2 + g).sum().backward()
        return x.grad

    with noclobber.preserve():
        ours = program()
    assert torch.equal(ours, right(program))


@pytest.mark.parametrize("how", [{"foreach": True}, {"fused": True}, {"foreach": False}])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_steps_between_forward_and_backward(kind, how):
    def program():
        torch.default_generator.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = kind(net.parameters(), lr=0.1, **how)
        losses = [net(torch.randn(5, 3)).square().sum() for _ in range(3)]
        gradients = []
        for loss in losses:
            optimizer.zero_grad()
            loss.backward()
            gradients += [p.grad.clone() for p in net.parameters()]
            optimizer.step()
        return gradients

    with noclobber.preserve():
        ours = program()
    assert all(torch.equal(a, b) for a, b in zip(ours, right(program), strict=True))


def test_the_statistics_of_batch_norm():
    def program():
        torch.default_generator.manual_seed(0)
        norm, x = nn.BatchNorm1d(3).eval(), torch.randn(8, 3, requires_grad=True)
        loss = (norm(x) ** 3).sum()
        norm.train()
        norm(torch.randn(8, 3) * 100 + 50)
        return torch.autograd.grad(loss, x)[0]

    with noclobber.preserve():
        ours = program()
    assert torch.equal(ours, right(program))


def test_several_backwards_after_the_block_has_ended():
    def forward():
        x = leaf(4)
        h = x.exp()
        return x, h, (h**2).sum()

    x, h, total = forward()
    once, twice = torch.autograd.grad(total, x, create_graph=True)[0], None
    twice = torch.autograd.grad(once.sum(), x)[0]
    with noclobber.preserve():
        x, h, total = forward()
        with torch.no_grad():
            h.mul_(0)
    for _ in range(2):
        assert torch.equal(torch.autograd.grad(total, x, retain_graph=True)[0], once)
    ours = torch.autograd.grad(total, x, create_graph=True)[0]
    assert torch.equal(torch.autograd.grad(ours.sum(), x, retain_graph=True)[0], twice)
    assert torch.equal(torch.autograd.grad(ours.sum(), x)[0], twice)


def test_a_write_after_the_block_raises():
    with noclobber.preserve():
        x = leaf(4)
        h = x.exp()
        total = (h**2).sum()
    with torch.no_grad():
        h.mul_(2)
    with pytest.raises(noclobber.ClobberError, match="modified by an inplace operation"):
        total.backward()


def test_numpy_can_not_be_kept_from_it():
    pytest.importorskip("numpy")
    with noclobber.preserve():
        x = leaf(4)
        h = x.exp()
        h.detach().numpy()[:] = 0
        with pytest.raises(noclobber.ClobberError):
            h.sum().backward()


def test_numpy_before_a_write_that_is_seen():
    pytest.importorskip("numpy")
    with noclobber.preserve():
        x = leaf(4)
        h = x.exp()
        h.detach().numpy()[:] = 0
        with torch.no_grad():
            h.mul_(2)
        with pytest.raises(noclobber.ClobberError):
            h.sum().backward()


def test_an_operator_that_overwrites_what_it_saves_through_data():
    """The write moves no version of the save."""
    with noclobber.preserve():
        x = leaf(4)
        h = x.data
        h.addcmul_(x, x)
        h.sum().backward()
    torch.testing.assert_close(x.grad, 2 * leaf(4).detach())


def test_a_large_save_has_a_fingerprint_once_other_code_may_write_it():
    pytest.importorskip("numpy")

    def digest(tensor):
        [handle] = CONTEXT.live.at(storages.storage_key(tensor))
        return handle.digest

    with noclobber.preserve():
        x = torch.ones(LARGE, requires_grad=True)
        first, second = x.exp(), x.tanh()
        assert digest(first) is digest(second) is None
        first.detach().numpy()
        assert digest(first) is not None
        assert digest(second) is None
        second[:8].detach().numpy()[:] = 0
        with pytest.raises(noclobber.ClobberError):
            second.sum().backward()
        first.sum().backward()


def test_nothing_is_copied_where_no_byte_is_shared():
    with noclobber.preserve() as kept:
        x = leaf(6)
        h = x * 2
        first = (h[:3] ** 2).sum()
        h[3:].add_(1)
        columns = leaf(4, 4) * 1
        odd = (columns[:, ::2] ** 2).sum()
        columns[:, 1::2].zero_()
        (first + odd).backward()
    assert kept.kept == ()
    assert kept.report == "nothing had to be kept\n"


def test_one_copy_for_all_saves_of_a_version():
    with noclobber.preserve() as kept:
        x = leaf(6)
        h = x * 2
        total = (h**2).sum() + (h**3).sum() + (h[2:] ** 2).sum() + (h.view(2, 3)[1] ** 2).sum()
        h.mul_(0)
        h.mul_(0)
        total.backward()
    [row] = kept.kept
    assert (row.bytes, row.times) == (h.nbytes, 1)
    assert "24 B" in kept.report
    assert "`mul_` overwrites what" in kept.report


def test_a_copy_dies_with_its_saves():
    copies = []
    native = torch.Tensor.clone
    with noclobber.preserve(), pytest.MonkeyPatch.context() as patch:
        x = leaf(6)
        h = x * 2
        total = (h**2).sum()
        patch.setattr(torch.Tensor, "clone", lambda tensor: copies.append(weakref.ref(one := native(tensor))) or one)
        h.mul_(0)
        assert [copy() is None for copy in copies] == [False]
        total.backward()
        assert [copy() is None for copy in copies] == [True]


def test_nested_and_as_a_decorator():
    @noclobber.preserve()
    def program():
        with noclobber.watch(contents=True) as watched, noclobber.preserve() as inner:
            x = leaf(4)
            h = x.exp()
            h.data.add_(1)
            h.sum().backward()
        return x.grad, watched.findings, inner.kept

    gradient, findings, kept = program()
    torch.testing.assert_close(gradient, leaf(4).detach().exp())
    assert findings == ()
    assert len(kept) == 1


def test_a_block_inside_watch_keeps_and_the_rest_is_watched():
    with noclobber.watch():
        x = leaf(4)
        with noclobber.preserve():
            h = x.exp()
            h.mul_(2)
            h.sum().backward()
        h = x.exp()
        h.mul_(2)
        with pytest.raises(noclobber.ClobberError, match="modified by an inplace operation"):
            h.sum().backward()


def test_in_threads():
    gradients = []

    def work():
        x = leaf(4)
        h = x.exp()
        h.data.mul_(0)
        h.sum().backward()
        gradients.append(x.grad)

    with noclobber.preserve():
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(gradients) == 3
    assert all(torch.equal(gradient, leaf(4).detach().exp()) for gradient in gradients)


def test_accumulation_into_a_gradient_that_is_saved():
    def program():
        w = leaf(3)
        w.pow(2).sum().backward(create_graph=True)
        penalty = w.grad.square().sum()
        w.grad.data.zero_()
        w.pow(3).sum().backward()
        return torch.autograd.grad(penalty, w)[0]

    with noclobber.preserve():
        ours = program()
    assert torch.equal(ours, right(program))


@pytest.mark.parametrize("sparse", [torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_coo])
@pytest.mark.parametrize("write", ["matrix.mul_(2)", "matrix.data.mul_(2)", "matrix.values().mul_(2)"])
def test_what_a_sparse_tensor_holds_is_kept(write, sparse):
    def program():
        matrix = sparse(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        x = torch.ones(2, 2, requires_grad=True)
        y = matrix @ x
        exec(write)
        y.sum().backward()
        return x.grad

    with noclobber.preserve():
        kept = program()
    assert torch.equal(kept, torch.tensor([[4.0, 4.0], [2.0, 2.0]]))
