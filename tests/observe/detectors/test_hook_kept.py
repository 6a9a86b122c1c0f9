"""Gradients with respect to what forward hooks kept: before an in-place module overwrote it, or after."""

import functools
import queue
import types
from collections import defaultdict, deque
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import noclobber
from tests.observe.detectors.test_replaced import warned

GLOBAL = {}


@dataclass(slots=True)
class Record:
    values: dict = field(default_factory=dict)


class Saver:
    def __init__(self):
        self.kept = None

    def __call__(self, module, inputs, output):
        self.kept = output

    def save(self, module, inputs, output):
        self.kept = output


class Attribution(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net, self.kept = net, None

    def save(self, module, inputs, output):
        self.kept = output


def into_list():
    kept = []
    return lambda module, inputs, output: kept.append(output), lambda: kept[-1]


def into_dict():
    kept = defaultdict(dict)

    def hook(module, inputs, output):
        kept[module]["out"] = (output,)

    return hook, lambda: next(iter(kept.values()))["out"][0]


def into_deque():
    kept = deque(maxlen=3)
    return lambda module, inputs, output: kept.append(output), lambda: kept[-1]


def into_queue():
    kept = queue.Queue()
    return lambda module, inputs, output: kept.put(output), lambda: kept.queue[-1]


def into_attribute():
    saver = Saver()
    return saver.save, lambda: saver.kept


def into_callable_object():
    saver = Saver()
    return saver, lambda: saver.kept


def into_attribute_of_module():
    around = Attribution(nn.Identity())
    return around.save, lambda: around.kept


def into_slots():
    record = Record()

    def hook(module, inputs, output):
        record.values["out"] = output

    return hook, lambda: record.values["out"]


def into_namespace_by_partial():
    space = types.SimpleNamespace()

    def hook(where, module, inputs, output):
        where.out = output

    return functools.partial(hook, space), lambda: space.out


def into_variable():
    kept = None

    def hook(module, inputs, output):
        nonlocal kept
        kept = output

    return hook, lambda: kept


def into_global():
    def hook(module, inputs, output):
        GLOBAL["out"] = output

    return hook, lambda: GLOBAL["out"]


def on_the_module():
    seen = []

    def hook(module, inputs, output):
        module.out = output
        if module not in seen:
            seen.append(module)

    return hook, lambda: seen[0].out


CONTAINERS = pytest.mark.parametrize(
    "container",
    [
        into_list, into_dict, into_deque, into_queue, into_attribute, into_callable_object, into_attribute_of_module,
        into_slots, into_namespace_by_partial, into_variable, into_global, on_the_module,
    ],
)  # fmt: skip


class Block(nn.Module):
    def __init__(self, inplace=True, act=nn.ReLU):
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.lin, self.norm, self.act = nn.Linear(3, 4), nn.BatchNorm1d(4), act(inplace=inplace)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        h = self.act(self.norm(self.lin(x)))
        return self.out(h)


X = torch.linspace(-1, 1, 15).reshape(5, 3)


def attribution(container, layer, *, inplace=True, inline=False, removed=False, act=nn.ReLU):
    net = Block(inplace, act)
    hook, kept = container()
    handle = getattr(net, layer).register_forward_hook(hook)
    if inline:
        loss = net(X).sum()
    else:
        y = net(X)
        loss = y.sum()
    if removed:
        handle.remove()
    return torch.autograd.grad(loss, kept())[0]


WAYS = pytest.mark.parametrize("way", [{}, {"inline": True}, {"removed": True}, {"inline": True, "removed": True}])


@CONTAINERS
@WAYS
def test_what_a_hook_kept_before_the_write(container, way):
    assert not torch.equal(attribution(container, "norm"), attribution(container, "norm", inplace=False))
    assert warned(lambda: attribution(container, "norm", **way)) == ["NC209"]


@CONTAINERS
@WAYS
def test_what_a_hook_kept_after_the_write(container, way):
    assert torch.equal(attribution(container, "act"), attribution(container, "act", inplace=False))
    assert warned(lambda: attribution(container, "act", **way)) == []


def by_retain_grad(h, rest):
    h.retain_grad()
    rest(h).sum().backward()
    return h.grad


def by_inputs(h, rest):
    rest(h).sum().backward(inputs=[h])
    return h.grad


def by_grad(h, rest):
    return torch.autograd.grad(rest(h).sum(), h)[0]


@pytest.mark.parametrize("ask", [by_retain_grad, by_inputs, by_grad])
def test_each_way_to_ask_for_a_gradient(ask):
    def program(inplace=True):
        net = Block(inplace)
        return ask(net.norm(net.lin(X)), nn.Sequential(net.act, net.out))

    assert not torch.equal(program(), program(inplace=False))
    assert warned(program) == ["NC209"]
    assert warned(lambda: program(inplace=False)) == []


def test_a_hook_that_retains_what_the_next_module_overwrites():
    net = Block()
    net.norm.register_forward_hook(
        lambda module, inputs, output: setattr(module, "kept", output) or output.retain_grad()
    )
    assert warned(lambda: net(X).sum().backward()) == ["NC209"]


@pytest.mark.parametrize("act", [nn.ELU, nn.SiLU, nn.Hardtanh, functools.partial(nn.LeakyReLU, 0.2)])
def test_other_activations(act):
    assert warned(lambda: attribution(into_list, "norm", act=act)) == ["NC209"]
    assert warned(lambda: attribution(into_list, "act", act=act)) == []


def test_the_lines():
    with noclobber.watch() as watched:
        attribution(into_list, "norm")
    (finding,) = watched.findings
    labels = {one.role: one.source[0].strip() for one in finding.labels}
    assert labels["write"] == "h = self.act(self.norm(self.lin(X)))".replace("X", "x")
    assert labels["read"] == "return torch.autograd.grad(loss, kept())[0]"


def scaled_by_a_module(scale):
    class Scale(nn.Module):
        def forward(self, x):
            return x.mul_(scale)

    net, kept = nn.Sequential(nn.Linear(3, 4), Scale(), nn.Linear(4, 2)), []
    net[0].register_forward_hook(lambda module, inputs, output: kept.append(output))
    y = net(X)
    return torch.autograd.grad(y.sum(), kept[0])


def test_a_module_of_the_program_that_writes():
    assert warned(lambda: scaled_by_a_module(3)) == ["NC209"]


def written_through_a_view():
    class Rows(nn.Module):
        def forward(self, x):
            torch.relu_(x.view(-1))
            return x

    net, kept = nn.Sequential(nn.Linear(3, 4), Rows(), nn.Linear(4, 2)), []
    net[0].register_forward_hook(lambda module, inputs, output: kept.append(output))
    y = net(X)
    return torch.autograd.grad(y.sum(), kept[0])


def test_a_write_through_a_view():
    assert warned(written_through_a_view) == ["NC209"]


def hooks_on_all(ask):
    net, kept = Block(), {}
    for name, module in net.named_children():
        module.register_forward_hook(lambda module, inputs, output, name=name: kept.update({name: output}))
    loss = net(X).sum()
    return torch.autograd.grad(loss, [kept[name] for name in ask])


def test_one_hook_kept_it_before_and_another_after():
    assert hooks_on_all(["norm"])[0] is not None
    assert warned(lambda: hooks_on_all(["act"])) == []  # the same tensor stands for both
    assert warned(lambda: hooks_on_all(["norm", "act"])) == ["NC209"]
    assert warned(lambda: hooks_on_all(["lin", "out"])) == []


def before_and_after(pre):
    net, kept = Block(), []
    layer = net.act if pre == "what is overwritten" else net.out
    layer.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
    loss = net(X).sum()
    return torch.autograd.grad(loss, kept[0])


def test_what_a_pre_hook_kept():
    assert warned(lambda: before_and_after("what is overwritten")) == ["NC209"]
    assert warned(lambda: before_and_after("the result")) == []


def a_hook_on_all_modules():
    kept, net = [], Block()
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: kept.append(output) if isinstance(module, nn.BatchNorm1d) else None
    )
    try:
        y = net(X)
    finally:
        handle.remove()
    return torch.autograd.grad(y.sum(), kept[0])


def test_a_hook_on_all_modules():
    assert warned(a_hook_on_all_modules) == ["NC209"]


# -- quiet ---------------------------------------------------------------------------------------------------------


def kept_as_copies():
    net, kept = Block(), []
    net.norm.register_forward_hook(lambda module, inputs, output: kept.append(output.detach().clone()))
    torch.autograd.grad(net(X).sum(), list(net.parameters()))


def kept_nothing():
    net = Block()
    net.norm.register_forward_hook(lambda module, inputs, output: None)
    h = net.lin(X)
    torch.autograd.grad(net.out(net.act(net.norm(h))).sum(), h)


def replaced_by_a_clone():
    net, kept = Block(), []

    def hook(module, inputs, output):
        kept.append(output)
        return output.clone()

    net.norm.register_forward_hook(hook)
    torch.autograd.grad(net(X).sum(), kept[0])


def retained():
    net = Block()
    net.act.register_forward_hook(lambda module, inputs, output: output.retain_grad())
    net(X).sum().backward()


def retained_after_the_write():
    net = Block()
    h = net.norm(net.lin(X))
    net.act(h)
    h.retain_grad()
    net.out(h).sum().backward()


def retained_beside_the_backward():
    net = Block()
    h = net.norm(net.lin(X))
    h.retain_grad()
    net.act(h)
    net.lin(X).sum().backward()


def without_gradients():
    net, kept = Block(), []
    net.norm.register_forward_hook(lambda module, inputs, output: kept.append(output))
    with torch.no_grad():
        net(X)
    kept.clear()
    x = X.clone().requires_grad_()
    torch.autograd.grad(net(x).sum(), x)


def of_an_earlier_pass():
    net, kept = Block(), []
    net.lin.register_forward_hook(lambda module, inputs, output: kept.append(output))
    for _ in range(3):
        loss = net(X).sum()
        torch.autograd.grad(loss, kept[-1])


def added_to():
    net, kept = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), []
    net[0].register_forward_hook(lambda module, inputs, output: kept.append(output))
    h = net[0](X)
    h += 1  # the derivative is one
    torch.autograd.grad(net[1](h).sum(), kept[0])


def the_new_value_by_name():
    net = Block()
    net.lin.register_forward_hook(lambda module, inputs, output: None)
    h = net.act(net.norm(net.lin(X)))
    torch.autograd.grad(net.out(h).sum(), h)


@pytest.mark.parametrize(
    "program",
    [
        kept_as_copies, kept_nothing, replaced_by_a_clone, retained, retained_after_the_write,
        retained_beside_the_backward, without_gradients, of_an_earlier_pass, added_to, the_new_value_by_name,
    ],
)  # fmt: skip
def test_what_is_right(program):
    assert warned(program) == []


def test_hooks_from_before_the_block_are_known():
    net = Block()
    hook, kept = into_list()
    handle = net.norm.register_forward_hook(hook)

    def program():
        y = net(X)
        torch.autograd.grad(y.sum(), kept())

    assert warned(program) == ["NC209"]
    assert warned(program) == ["NC209"]
    handle.remove()


def test_a_kept_tensor_lives_no_longer():
    def program():
        net, kept = Block(), []
        handle = net.norm.register_forward_hook(lambda module, inputs, output: kept.append(output))
        net(X).sum().backward()
        seen = kept[0]._use_count()
        handle.remove()
        return seen

    expected = program()
    with noclobber.watch():
        assert program() == expected
