"""Hooks that are lost with a view, and gradients with respect to a tensor that was replaced meanwhile."""

import gc
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.seen.history import Memory
from noclobber.observe.detectors import lost_hooks
from noclobber.observe.torch_api.tensors import storages
from tests.observe.used_again import until_used_again


@pytest.fixture(autouse=True, scope="module")
def no_module_of_another_test():
    """While a module with forward hooks lives, a tensor that is written may be one that a hook holds. A module and its
    hook may hold each other, so that both live until a garbage collection."""
    gc.collect()


def warned(program):
    with warnings.catch_warnings(), noclobber.watch() as watched:
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        program()
    return [finding.code for finding in watched.findings]


def hooked(make, write):
    """Whether the hook ran."""
    ran = []
    x = torch.ones(4, 3, requires_grad=True)
    h = make(x)
    h.register_hook(lambda gradient: ran.append(gradient))
    write(h)
    (h * 2).sum().backward()
    return bool(ran)


def flat(x):
    return (x * 2).flatten()


def whole(x):
    return x * 2


def not_at_all(h):
    pass


def added(h):
    h += 1


def element(h):
    h[0] = 0


def base(h):
    h._base.add_(1)


def without_grad(h):
    with torch.no_grad():
        h.add_(1)


@pytest.mark.parametrize("write", [added, element, base, without_grad])
def test_a_hook_on_a_view_is_lost(write):
    assert not hooked(flat, write)
    assert warned(lambda: hooked(flat, write)) == ["NC210"]


def test_a_hook_is_lost_in_another_block_too():
    def program():
        x = torch.ones(3, requires_grad=True)
        with noclobber.watch():
            h = (x * 2).view(-1)
            h.register_hook(lambda gradient: gradient * 2)
        with noclobber.preserve():
            h += 1
            h.sum().backward()

    assert warned(program) == ["NC210"]


@pytest.mark.parametrize(("make", "write"), [(flat, not_at_all), (whole, added), (whole, without_grad)])
def test_a_hook_that_stays(make, write):
    assert hooked(make, write)
    assert warned(lambda: hooked(make, write)) == []


def test_a_hook_that_another_backward_would_run():
    def program():
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        h = (x * 2).view(-1)
        h.register_hook(lambda gradient: gradient * 2)
        (y * 2).sum().backward()
        (h * 2).sum().backward()

    assert warned(program) == []


@pytest.mark.parametrize("earlier", [not_at_all, added])
def test_a_hook_is_lost_after_many_that_no_backward_reached(earlier):
    def program():
        for _ in range(100):
            h = flat(torch.ones(4, 3, requires_grad=True))
            h.register_hook(print)
            earlier(h)
        hooked(flat, added)

    assert warned(program) == ["NC210"]


def test_writes_to_views_that_are_gone_are_no_longer_attended():
    with noclobber.watch():
        held = [torch.ones(3, requires_grad=True) * 2 for _ in range(lost_hooks._MOST)]
        keys = {storages.storage_key(one) for one in held}
        for one in held:
            one[0].register_hook(print)
        assert keys <= set(CONTEXT.attended)
        del one, held
        last = torch.ones(3, requires_grad=True) * 2
        last[0].register_hook(print)
        assert keys.isdisjoint(CONTEXT.attended.keys() - {storages.storage_key(last)})


def test_a_hook_is_lost_with_a_view_that_is_gone_before_many_others():
    def program():
        h = flat(torch.ones(4, 3, requires_grad=True))
        h.register_hook(print)
        h += 1
        loss = h.sum()
        del h
        for _ in range(100):
            flat(torch.ones(4, 3, requires_grad=True)).register_hook(print)
        loss.backward()

    assert warned(program) == ["NC210"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def score(self, features):
        return self.head(F.relu(features, inplace=True)).sum()

    def features_after(self, x):
        return F.relu(self.trunk(x), inplace=True)


def of_what_was_replaced(net, x):
    features = net.trunk(x)
    score = net.score(features)
    return torch.autograd.grad(score, features)[0]


def of_what_was_kept(net, x):
    features = net.trunk(x)
    score = net.score(features.clone())
    return torch.autograd.grad(score, features)[0]


def of_the_result(net, x):
    features = F.relu(net.trunk(x), inplace=True)
    return torch.autograd.grad(net.head(features).sum(), features)[0]


def of_a_returned_result(net, x):
    features = net.features_after(x)
    return torch.autograd.grad(net.head(features).sum(), features)[0]


def of_a_sum(net, x):
    features = net.trunk(x)
    features += 1
    return torch.autograd.grad(net.head(features).sum(), features)[0]


def test_the_gradient_is_that_of_the_new_value():
    torch.default_generator.manual_seed(0)
    net, x = Net(), torch.randn(5, 3)
    assert not torch.equal(of_what_was_replaced(net, x), of_what_was_kept(net, x))
    assert warned(lambda: of_what_was_replaced(net, x)) == ["NC209"]


@pytest.mark.parametrize("program", [of_what_was_kept, of_the_result, of_a_returned_result, of_a_sum])
def test_a_gradient_of_what_is_meant(program):
    assert warned(lambda: program(Net(), torch.randn(5, 3))) == []


FLAGS = [
    *(nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.SiLU, nn.Mish, nn.RReLU, nn.LeakyReLU, nn.Hardtanh),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Dropout, nn.Dropout1d),
]


@pytest.mark.parametrize(
    "module", [*(flag(inplace=True) for flag in FLAGS), nn.Threshold(0.1, 0, inplace=True)], ids=repr
)
def test_each_module_with_the_flag_replaces_what_it_is_given(module):
    def program():
        kept = torch.randn(2, 3, 4, requires_grad=True) * 2
        module(kept)
        torch.autograd.grad(kept.sum(), kept)

    assert warned(program) == ["NC209"]


def test_gradients_of_weights_that_are_steps_do_not_read_the_history(monkeypatch):
    """A meta-learner asks for the gradients of hundreds of such weights, each time after many writes."""

    def program():
        weights = [torch.ones(3, requires_grad=True)]
        for _ in range(3):
            loss = weights[-1].square().sum()
            (gradient,) = torch.autograd.grad(loss, weights[-1], create_graph=True)
            weights.append(weights[-1] - 0.1 * gradient)

    read = []
    recent = Memory.recent.fget
    monkeypatch.setattr(Memory, "recent", property(lambda memory: [read.append(1), recent(memory)][1]))
    assert warned(program) == []
    assert read == []


def test_a_captured_activation():
    net, kept = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1)), []
    net[0].register_forward_hook(lambda module, inputs, output: kept.append(output))

    def attribute():
        score = net(torch.randn(2, 3)).sum()
        return torch.autograd.grad(score, kept.pop())

    assert warned(attribute) == ["NC209"]


SIZE = 10_000_000
"""Of numbers: 40 MB have pages of their own, which the system hands out again as a whole."""


def test_other_memory_at_the_address_of_a_view_that_had_a_hook():
    def program():
        x = torch.ones(SIZE, requires_grad=True)
        base = x * 2
        view = base.flatten()
        view.register_hook(print)
        loss, was = base.sum(), base.data_ptr()
        del base, view
        until_used_again(lambda: torch.empty(SIZE), torch.Tensor.data_ptr, was).add_(1)
        loss.backward()

    assert warned(program) == []
