"""Autocast's kept casts: what PyTorch does, and that a cast which is used after its weight changed is found."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import noclobber
from noclobber.observe.detectors import stale_casts
from tests.observe.detectors.test_replaced import warned

X = torch.linspace(-1, 1, 32).reshape(8, 4)


def region(**options):
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


def loss_of(net):
    return net(X).float().square().mean()


def optimizer_of(net, kind=torch.optim.SGD, **options):
    return kind(net.parameters(), lr=0.5, **options)


def step(net, opt):
    opt.zero_grad()
    loss_of(net).backward()
    opt.step()


def two_layers():
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


# -- what PyTorch does ---------------------------------------------------------------------------------------------


def test_the_first_cast_is_used_until_the_outermost_region_ends():
    w = torch.ones(2, 2, requires_grad=True)
    with region():
        with region():
            first = w @ w
        with torch.no_grad():
            w.mul_(3)
        assert torch.equal(w @ w, first)
        with region(enabled=False):
            assert not torch.equal((w @ w).bfloat16(), first)  # it is off: nothing is cast
        torch.clear_autocast_cache()
        assert not torch.equal(w @ w, first)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 2),
        torch.ones(2, 2, requires_grad=True) * 1,
        torch.ones(2, 2, requires_grad=True).view(2, 2),
        torch.ones(2, 2, requires_grad=True, dtype=torch.float16),
    ],
    ids=["frozen", "computed", "view", "half"],
)
def test_only_a_leaf_of_32_bits_that_requires_a_gradient_is_kept(tensor):
    with region():
        before = tensor @ tensor
        with torch.no_grad():
            tensor.mul_(3)
        assert not torch.equal(tensor @ tensor, before)


def test_nothing_is_kept_where_the_cache_is_off():
    w = torch.ones(2, 2, requires_grad=True)
    with region(cache_enabled=False):
        before = w @ w
        with torch.no_grad():
            w.mul_(3)
        assert not torch.equal(w @ w, before)


def test_to_ask_for_a_cast_makes_none():
    w = torch.ones(3, requires_grad=True)
    with region():
        assert stale_casts._cast_of(w) is None
        F.linear(X[:, :3], w.view(1, 3))
        assert stale_casts._cast_of(w) is None  # a view is no leaf
        w @ torch.eye(3)
        kept = stale_casts._cast_of(w)
        assert kept.dtype is torch.bfloat16
        assert stale_casts._is_cast_of(kept.grad_fn, w)
        with region(enabled=False):
            assert stale_casts._cast_of(w) is kept
            assert not torch.is_autocast_enabled("cpu")
        torch.clear_autocast_cache()
        assert stale_casts._cast_of(w) is None


# -- what is found -------------------------------------------------------------------------------------------------


def around_the_loop(net, opt):
    with region():
        for _ in range(3):
            step(net, opt)


def backward_after_the_region(net, opt):
    with region():
        step(net, opt)
        loss = loss_of(net)
    loss.backward()


def nested_region_for_forward(net, opt):
    with region():
        for _ in range(2):
            with region():
                loss = loss_of(net)
            opt.zero_grad()
            loss.backward()
            opt.step()


def loss_in_full_precision(net, opt):
    with region():
        for _ in range(2):
            out = net(X)
            with torch.autocast("cpu", enabled=False):
                opt.zero_grad()
                out.float().square().mean().backward()
                opt.step()


def by_hand(net, opt):
    with region():
        for _ in range(2):
            gradients = torch.autograd.grad(loss_of(net), list(net.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter -= 0.5 * gradient


def through_data(net, opt):
    with region():
        for _ in range(2):
            net.zero_grad()
            loss_of(net).backward()
            for parameter in net.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.5)


def data_assigned(net, opt):
    with region():
        loss_of(net).backward()
        for parameter in net.parameters():
            parameter.data = parameter.data - 0.5 * parameter.grad
        loss_of(net).backward()


def values_loaded(net, opt):
    other = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    with region():
        first = loss_of(net)
        net.load_state_dict(other.state_dict())
        (first + loss_of(net)).backward()


def adversary(net, opt):
    critic = two_layers()
    theirs = optimizer_of(critic)
    with region():
        critic(X).float().mean().backward()
        theirs.step()
        critic(X + net(X).float().mean()).float().mean().backward()


@pytest.mark.parametrize(
    "program",
    [
        around_the_loop, backward_after_the_region, nested_region_for_forward, loss_in_full_precision, by_hand,
        through_data, data_assigned, values_loaded, adversary,
    ],
)  # fmt: skip
def test_a_cast_that_is_used_after_the_weight_changed(program):
    net = two_layers()
    codes = warned(lambda: program(net, optimizer_of(net)))
    assert set(codes) == {"NC211"}


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_any_optimizer(kind):
    net = two_layers()
    assert warned(lambda: around_the_loop(net, optimizer_of(net, kind))) == ["NC211"]


def test_the_lines():
    net = nn.Linear(4, 2)
    opt = optimizer_of(net)
    with noclobber.watch() as watched, region():
        step(net, opt)
        step(net, opt)
    (finding,) = watched.findings
    labels = {one.role: one.source[0].strip() for one in finding.labels}
    assert labels == {
        "save": "return net(X).float().square().mean()",
        "write": "opt.step()",
        "read": "loss_of(net).backward()",
    }
    assert set(finding.names) <= {"net.weight", "net.bias"}


# -- what is right -------------------------------------------------------------------------------------------------


def region_in_the_loop(net, opt):
    for _ in range(3):
        with region():
            step(net, opt)


def step_outside(net, opt):
    for _ in range(3):
        with region():
            loss = loss_of(net)
        opt.zero_grad()
        loss.backward()
        opt.step()


def cache_off(net, opt):
    with region(cache_enabled=False):
        for _ in range(3):
            step(net, opt)


def cache_cleared(net, opt):
    with region():
        for _ in range(3):
            step(net, opt)
            torch.clear_autocast_cache()


def accumulated(net, opt):
    for _ in range(2):
        opt.zero_grad()
        with region():
            for _ in range(3):
                (loss_of(net) / 3).backward()
        opt.step()


def only_measured_after_the_step(net, opt):
    for _ in range(2):
        with region():
            step(net, opt)
            with torch.no_grad():
                loss_of(net)


def backward_of_an_earlier_forward(net, opt):
    with region():
        loss, other = loss_of(net), (net[0].weight.float() @ torch.ones(4)).float().sum()
        loss.backward()
        opt.step()
        other.backward()


def frozen(net, opt):
    net[0].requires_grad_(False)
    with region():
        for _ in range(2):
            out = net[0](X)
            with torch.no_grad():
                net[0].weight.mul_(0.5)
            (out.float() * torch.ones(4, requires_grad=True)).sum().backward()


def cast_by_the_program(net, opt):
    weight = net[0].weight
    with region():
        own = weight.to(torch.bfloat16)
        F.linear(X, own).float().sum().backward(retain_graph=True)
        opt.step()
        F.linear(X, own).float().sum().backward()


def written_back(net, opt):
    with region():
        loss_of(net).backward()
        with torch.no_grad():
            old = net[0].weight.clone()
            net[0].weight.zero_()
            net[0].weight.copy_(old)
        loss_of(net).backward()


def whole_numbers_only(net, opt):
    with region():
        for _ in range(2):
            (net[0].weight * 2).sum().backward()  # an operator that autocast does not cast for
            opt.step()


@pytest.mark.parametrize(
    "program",
    [
        region_in_the_loop, step_outside, cache_off, cache_cleared, accumulated, only_measured_after_the_step,
        backward_of_an_earlier_forward, frozen, cast_by_the_program, written_back, whole_numbers_only,
    ],
)  # fmt: skip
def test_a_cast_that_is_right(program):
    net = two_layers()
    assert warned(lambda: program(net, optimizer_of(net))) == []


def test_the_values_are_those_of_pytorch_alone():
    def program():
        net = two_layers()
        around_the_loop(net, optimizer_of(net, momentum=0.9))
        region_in_the_loop(net, optimizer_of(net))
        return [parameter.detach().clone() for parameter in net.parameters()]

    bare = program()
    with noclobber.watch():
        assert all(map(torch.equal, program(), bare))


def test_a_region_of_another_thread():
    net = two_layers()
    opt = optimizer_of(net)

    def program():
        thread = threading.Thread(target=around_the_loop, args=(net, opt))
        thread.start()
        thread.join()

    assert warned(program) == ["NC211"]
