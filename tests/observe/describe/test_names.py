"""Names of tensors: looked up only for a report, and never by the address of memory that is gone."""

import contextlib
import weakref

import pytest
import torch
from torch import nn

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from noclobber.observe.core.boundary import Way
from noclobber.observe.core.seen.reads import Reads
from noclobber.observe.describe import clobbers, tensor_names, write_history
from noclobber.observe.memory.saved_bytes import SavedBytes
from noclobber.observe.takers.checkpoint.regions import CheckpointRegion
from noclobber.observe.torch_api.tensors import storages
from noclobber.observe.witness.witness import Witness
from tests.observe.programs import RIGHT
from tests.observe.used_again import until_used_again

MODES = {
    "versions": lambda: noclobber.watch(contents=False),
    "contents": noclobber.watch,
    "raise": lambda: noclobber.watch(on_write="raise"),
    "preserve": noclobber.preserve,
}


class WritesRow(torch.autograd.Function):
    """Writes its input through `.data`, and declares nothing."""

    @staticmethod
    def forward(ctx, scratch, value):
        scratch.data[0] = value
        return scratch

    @staticmethod
    def backward(ctx, grad):
        return grad, grad[0]


def a_function_that_writes_its_input():
    k, w = torch.zeros(2, 3), torch.ones(3, requires_grad=True)
    for _ in range(3):
        k = WritesRow.apply(k, w * 2)
    return [k.detach()]


def a_write_beside_what_is_saved():
    h = torch.ones(4, requires_grad=True) * 2
    y = h[:2].square()
    h.detach()[2:].zero_()
    return [y.detach(), h.detach()]


def values_set_before_backward_reads_them():
    h = torch.ones(4, requires_grad=True) * 2
    with torch.no_grad():
        h.mul_(3)
    return [h.detach()]


def gradients_written_by_a_hook():
    w = torch.ones(3, requires_grad=True)
    w.register_hook(lambda grad: grad.mul_(2))
    (w * 2).sum().backward()
    return [w.grad]


LEGAL = [
    *RIGHT,
    a_function_that_writes_its_input,
    a_write_beside_what_is_saved,
    values_set_before_backward_reads_them,
    gradients_written_by_a_hook,
]


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("program", LEGAL, ids=lambda one: one.__name__)
def test_a_legal_program_looks_for_no_name(program, mode, monkeypatch):
    asked = []
    monkeypatch.setattr(tensor_names, "_found", lambda *about: asked.append(about))
    with mode():
        program()
    assert asked == []


class Holder(nn.Module):
    """Has a buffer that gets memory which was another tensor's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(0))

    def take(self, key):
        self.last = until_used_again(lambda: torch.ones(5000), storages.storage_key, key)


def through_data(h):
    h.data.mul_(2)


def under_no_grad(h):
    with torch.no_grad():
        h.mul_(2)


def assigned(h):
    h.data = h.data * 2


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.data.mul_(2)
        return x.sum()

    @staticmethod
    def backward(ctx, grad):
        return grad.expand(5000)


def of_a_function(h):
    Doubles.apply(h)


@pytest.mark.parametrize("write", [through_data, under_no_grad, assigned, of_a_function], ids=lambda one: one.__name__)
def test_what_got_the_memory_of_a_dead_tensor_is_not_named(write):
    holder, x = Holder(), torch.ones(5000, requires_grad=True)
    with noclobber.watch() as watched:
        h = x * 2
        write(h)
        y, key = h + 1, storages.storage_key(h)
        del h
        holder.take(key)
        with contextlib.suppress(RuntimeError):
            y.sum().backward()
    assert [one.code for one in watched.findings] in (["NC208"], ["NC207"])
    for finding in watched.findings:
        words = [finding.message, *finding.notes, *(one.text for one in finding.labels)]
        assert "last" not in " ".join([*words, *(one.message for one in finding.suggestions)])
        assert finding.tensor.name is None


def test_a_tensor_that_is_there_is_named():
    x = torch.ones(5000, requires_grad=True)
    with noclobber.watch() as watched:
        h = x * 2
        h.data.mul_(2)
        (h + 1).sum().backward()
    (finding,) = watched.findings
    assert finding.tensor.name == "h"


class Holding:
    def __init__(self, held):
        self.held = held


def test_a_weight_is_named_deep_in_objects_and_containers(monkeypatch):
    monkeypatch.setattr(tensor_names, "spent", [])
    trainer = Holding(Holding(nn.Sequential(nn.Linear(2, 2))))
    nets = {"w2k": [nn.ModuleDict({"body": nn.BatchNorm1d(2)})]}
    frozen = clobbers.tensor_of(trainer.held.held[0].weight.requires_grad_(False).t())
    mean = clobbers.tensor_of(nets["w2k"][0]["body"].running_mean[:])
    assert (frozen.name, frozen.kind) == ("trainer.held.held[0].weight", "parameter")
    assert (mean.name, mean.kind) == ("nets['w2k'][0].body.running_mean", "buffer")
    monkeypatch.setattr(tensor_names, "spent", [2.0])  # by then it has searched for long
    unnamed = clobbers.tensor_of(nets["w2k"][0]["body"].running_mean[:])
    assert unnamed.name is None


def test_what_the_program_drops_after_a_name_was_found_is_gone_at_once():
    def program():
        big, x = torch.ones(5000), torch.ones(3, requires_grad=True)
        alive = weakref.ref(big)
        h = x * 2
        y = h * h
        h.data.mul_(2)
        y.sum().backward()
        del big
        return alive()

    with noclobber.watch() as watched:
        assert program() is None
    (finding,) = watched.findings
    assert finding.tensor.name == "h"


def test_a_description_for_later_holds_no_memory_and_forgets_a_name_with_it():
    holder, tensor = Holder(), torch.ones(5000)
    described, key = clobbers.later_of(tensor), storages.storage_key(tensor)
    assert described().name == "tensor"
    del tensor
    holder.take(key)
    assert described().name is None
    assert described().shape == (5000,)


def test_a_storage_without_its_bytes_is_not_made_larger():
    tensor = torch.ones(5000)
    described = clobbers.later_of(tensor)
    tensor.untyped_storage().resize_(0)
    assert described().name is None
    assert tensor.untyped_storage().nbytes() == 0


def test_parameters_of_one_memory_are_told_apart():
    net, flat = nn.Module(), torch.ones(8)
    net.first, net.second = nn.Parameter(flat[:4]), nn.Parameter(flat[4:])
    assert clobbers.tensor_of(net.second.detach()).name == "net.second"
    assert clobbers.tensor_of(net.first.detach()).name == "net.first"


def test_writes_to_an_address_are_no_writes_to_the_memory_before():
    with noclobber.watch():
        tensor = torch.ones(5000)
        reread, begin = Witness(storages.storage_key(tensor), tensor), 0
        CONTEXT.memory.read_again_by(reread, (reread.key,))
        known = clobbers.unnamed(tensor)
        del tensor
        again = until_used_again(lambda: torch.ones(5000), storages.storage_key, reread.key)
        again.mul_(2)
        assert any(record.key == reread.key for record in CONTEXT.memory.recent)
        assert write_history.writes_to(reread, write_history.since(CONTEXT.memory, begin), known, 1) == ()


def test_the_address_of_what_a_region_read_may_be_that_of_what_it_makes():
    tensor = torch.ones(5000)
    read = Reads()
    read.given.append(tensor)
    region = CheckpointRegion(CONTEXT, Way("", lambda lost: None), None, read)
    read.given.clear()
    key = storages.storage_key(tensor)
    assert region.source(tensor) is not None
    del tensor
    again = until_used_again(lambda: torch.ones(5000), storages.storage_key, key)
    assert region.source(again) is None


def test_a_module_at_the_address_of_another_has_no_path_of_it():
    ledger, net = SavedBytes(), nn.Sequential(nn.Identity())
    assert ledger._path(net, net[0]) == "Sequential.0"
    was = id(net[0])
    del net[0]
    other = until_used_again(nn.Identity, id, was)
    assert ledger._path(net, other) == "Sequential.Identity"
