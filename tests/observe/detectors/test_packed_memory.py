"""Memory that the program's own pack hook returned in place of the saved tensor, and that is overwritten later."""

import dataclasses
import threading
import weakref
from collections import deque

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import noclobber
from tests.observe.hearing import bare, hear, is_marked

WITNESSES = pytest.mark.parametrize("contents", [True, False], ids=["contents", "versions"])


@dataclasses.dataclass(slots=True)
class Kept:
    values: torch.Tensor


class Block:
    def __init__(self, values):
        self.rows = {"values": [values]}


def as_it_is(values):
    return values, lambda kept: kept


def in_tuple(values):
    return ("cpu", values), lambda kept: kept[1]


def in_dict(values):
    return {"values": [values]}, lambda kept: kept["values"][0]


def in_record(values):
    return Kept(values), lambda kept: kept.values


def in_object(values):
    return Block(values), lambda kept: kept.rows["values"][0]


def in_closure(values):
    return (lambda: values), lambda kept: kept()


SHAPES = [as_it_is, in_tuple, in_dict, in_record, in_object, in_closure]
REBUILT = [as_it_is, in_tuple, in_dict]
"""Those in which `preserve` can put a copy in place of the memory."""


def into_slots(slots, shape):
    """Hooks that copy each tensor into the next of some slots, and return the slot in a shape."""

    def pack(tensor):
        slot = slots[0]
        slots.rotate(-1)
        slot.copy_(tensor)
        return shape(slot)[0]

    return saved_tensors_hooks(pack, lambda kept: shape(slots[0])[1](kept).float())


def gradient_with(slots, write, shape=as_it_is):
    x = torch.ones(3, requires_grad=True)
    with into_slots(slots, shape):
        y = (x * 2).exp()  # saved
    write(slots)
    y.sum().backward()
    return x.grad


def slots_of(count=1, **options):
    return deque(torch.empty(3, **options) for _ in range(count))


def zeroed(slots):
    for slot in slots:
        slot.zero_()  # written


def by_numpy(slots):
    for slot in slots:
        slot.numpy().fill(0)


def not_at_all(slots):
    pass


def used_for_another(slots):
    z = torch.zeros(3, requires_grad=True)
    with into_slots(slots, as_it_is):
        z.exp()


RIGHT = gradient_with(slots_of(), not_at_all)


@pytest.mark.parametrize("shape", SHAPES)
@WITNESSES
def test_a_write_to_what_was_returned(shape, contents):
    heard, gradient = hear(lambda: gradient_with(slots_of(), zeroed, shape), contents)
    (clobber,) = heard.clobbers
    assert clobber.save.unchecked == "packed"
    assert is_marked(clobber.save.site, "saved")
    (write,) = clobber.writes
    assert is_marked(write.site, "written")
    assert torch.equal(gradient, bare(lambda: gradient_with(slots_of(), zeroed, shape)))
    assert not torch.equal(gradient, RIGHT)


def test_a_write_that_torch_does_not_see():
    (clobber,) = hear(lambda: gradient_with(slots_of(), by_numpy))[0].clobbers
    assert clobber.writes[0].via == "foreign"


@WITNESSES
def test_a_slot_that_is_used_for_another_save(contents):
    heard, gradient = hear(lambda: gradient_with(slots_of(), used_for_another), contents)
    (clobber,) = heard.clobbers
    assert clobber.writes[0].op == "aten::copy_"
    assert not torch.equal(gradient, RIGHT)


def test_a_slot_of_lower_precision():
    heard, _ = hear(lambda: gradient_with(slots_of(dtype=torch.bfloat16), zeroed))
    assert len(heard.clobbers) == 1


@WITNESSES
@pytest.mark.parametrize("scale", [2, 3], ids=["to the saved bytes", "to other bytes"])
def test_an_unpack_hook_that_writes_what_it_is_given(scale, contents):
    """The second backward gets what the first one left. The bytes of the saved tensor lie there then, if 2 is exact."""
    x = torch.tensor([1.0, 5.0, 7.0], requires_grad=True)

    def program():
        with saved_tensors_hooks(lambda saved: saved / scale, lambda kept: kept.mul_(scale)):
            loss = (x * x).sum()
        return [torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2)]

    heard, (first, second) = hear(program, contents)
    assert heard.clobbers
    assert [torch.allclose(one, 2 * x) for one in (first, second)] == [True, False]


def test_the_report():
    with noclobber.watch() as watched:
        gradient_with(slots_of(), zeroed)
    (finding,) = watched.findings
    assert (finding.code, finding.severity) == ("NC204", "error")
    assert "pack hook" in finding.message


@pytest.mark.parametrize("shape", REBUILT)
def test_the_bytes_are_preserved(shape):
    with noclobber.preserve():
        assert torch.equal(gradient_with(slots_of(), zeroed, shape), RIGHT)


@pytest.mark.parametrize("shape", [in_record, in_object, in_closure])
def test_what_cannot_be_preserved_raises(shape):
    with noclobber.preserve(), pytest.raises(noclobber.ClobberError, match="pack hook"):
        gradient_with(slots_of(), zeroed, shape)


def test_a_write_that_torch_does_not_see_raises_where_bytes_are_preserved():
    with noclobber.preserve(), pytest.raises(noclobber.ClobberError):
        gradient_with(slots_of(), by_numpy)


# -- quiet ---------------------------------------------------------------------------------------------------------


def is_quiet(program, contents=True):
    """Whether nothing is found in a program, and its gradient is the one that it has bare."""
    heard, gradient = hear(program, contents)
    return heard.clobbers == [] and torch.equal(gradient, bare(program))


@pytest.mark.parametrize("shape", SHAPES)
@WITNESSES
def test_nothing_is_written(shape, contents):
    assert is_quiet(lambda: gradient_with(slots_of(), not_at_all, shape), contents)


@WITNESSES
def test_a_pool_with_a_slot_for_each_save(contents):
    def program():
        free = deque(torch.empty(3) for _ in range(4))
        x = torch.ones(3, requires_grad=True)

        def pack(tensor):
            slot = free.popleft()
            slot.copy_(tensor)
            return slot

        def unpack(slot):
            values = slot.clone()
            slot.fill_(float("nan"))  # nobody needs it any more
            free.append(slot)
            return values

        for _ in range(4):
            with saved_tensors_hooks(pack, unpack):
                y = (x * 2).exp().sin()
            y.sum().backward()
        return x.grad

    assert is_quiet(program, contents)


def test_memory_that_another_thread_fills():
    def program():
        x, threads = torch.ones(3, requires_grad=True), []

        def pack(tensor):
            slot, values = torch.zeros(3), tensor.detach().clone()
            started = threading.Event()
            thread = threading.Thread(target=lambda: (started.wait(), slot.copy_(values)))
            thread.start()
            threads.append((thread, started))
            return slot

        def unpack(slot):
            for thread, started in threads:
                started.set()
                thread.join()
            return slot

        with saved_tensors_hooks(pack, unpack):
            y = (x * 2).exp()
        y.sum().backward()
        return x.grad

    assert is_quiet(program)


def test_memory_that_the_program_gives_up_and_brings_back():
    def program():
        x, disk = torch.ones(3, requires_grad=True), []

        def pack(tensor):
            slot = tensor.clone()
            disk.append(slot.tolist())
            slot.untyped_storage().resize_(0)
            return slot

        def unpack(slot):
            slot.untyped_storage().resize_(12)
            slot.copy_(torch.tensor(disk.pop()))
            return slot

        with saved_tensors_hooks(pack, unpack):
            y = (x * 2).exp()
        y.sum().backward()
        return x.grad

    assert is_quiet(program)


@WITNESSES
def test_a_graph_that_is_read_twice(contents):
    def program():
        x = torch.ones(3, requires_grad=True)
        with into_slots(slots_of(), in_dict):
            y = (x * 2).exp()
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        return x.grad

    assert is_quiet(program, contents)


@WITNESSES
def test_a_backward_that_has_a_graph(contents):
    def program():
        x = torch.ones(3, requires_grad=True)
        with saved_tensors_hooks(torch.clone, lambda kept: kept):
            (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
            slope.sum().backward()
        return x.grad

    assert is_quiet(program, contents)


def test_hooks_inside_of_hooks():
    outer, inner = slots_of(2), slots_of()

    def program():
        x = torch.ones(3, requires_grad=True)
        with into_slots(outer, as_it_is), into_slots(inner, in_tuple):
            y = (x * 2).exp()
        zeroed(outer)
        y.sum().backward()
        return x.grad

    assert is_quiet(program)


def test_what_the_hooks_return_lives_no_longer():
    def program():
        x, slots = torch.ones(3, requires_grad=True), []

        def pack(tensor):
            slot = tensor.clone()
            slots.append(weakref.ref(slot))
            return {"values": slot}

        with saved_tensors_hooks(pack, lambda kept: kept["values"]):
            y = (x * 2).exp()
        y.sum().backward()
        return [slot() for slot in slots]

    assert hear(program)[1] == bare(program) == [None]


class Ring:
    """Hooks that keep tensors in the rows of one buffer, and return the number of the row."""

    def __init__(self, rows, *, under_no_grad=False, dtype=torch.float32):
        self.rows, self.next, self.grad = torch.zeros(rows, 6, dtype=dtype), 0, not under_no_grad
        self.copied = False

    def pack(self, tensor):
        row = self.next % len(self.rows)
        self.next += 1
        with torch.set_grad_enabled(self.grad):
            self.rows[row].copy_(tensor.detach().reshape(-1))  # mutated
        return row, tensor.shape

    def unpack(self, packed):
        row, shape = packed
        found = self.rows[row].float().view(shape)
        return found.clone() if self.copied else found

    def on(self):
        return saved_tensors_hooks(self.pack, self.unpack)


def deep(ring, between=lambda: None, shape=(2, 3)):
    x = torch.linspace(-1, 1, 6).view(shape).requires_grad_()
    h = x
    for _ in range(3):
        with ring.on():
            a = torch.tanh(h)  # saved
        h = h + a
    between()
    h.sum().backward()
    return x.grad


@pytest.mark.parametrize("under_no_grad", [False, True])
def test_a_row_of_a_pool_that_is_given_to_a_later_save(under_no_grad):
    right = bare(lambda: deep(Ring(3)))
    heard, found = hear(lambda: deep(Ring(2, under_no_grad=under_no_grad)))
    (clobber,) = heard.clobbers
    (write,) = [one for one in clobber.writes if one.overlaps]
    assert not found.equal(right)
    assert is_marked(write.site, "mutated")
    assert is_marked(clobber.save.site, "saved")
    assert clobber.save.unchecked == "packed"


def test_a_row_of_a_pool_that_is_given_to_a_later_save_raises_where_bytes_are_preserved():
    with pytest.raises(noclobber.ClobberError), noclobber.preserve():
        deep(Ring(2))


def test_a_whole_buffer_that_is_given_to_a_later_save():
    buffers, saved = [torch.empty(2, 3) for _ in range(2)], []

    def pack(tensor):
        saved.append(len(saved))
        buffers[saved[-1] % 2].copy_(tensor)  # mutated
        return saved[-1] % 2

    class Buffers:
        def on(self):
            return saved_tensors_hooks(pack, lambda index: buffers[index])

    heard, _ = hear(lambda: deep(Buffers()))
    (clobber,) = heard.clobbers
    assert any(is_marked(write.site, "mutated") for write in clobber.writes)


def rounding():
    return deep(Ring(3, dtype=torch.bfloat16))


def rounding_of_what_is_rounded_later():
    """What the hooks give back for one save is what another one was, and nothing was overwritten."""
    rows = []

    def pack(tensor):
        rows.append(tensor.detach().half().float())
        return len(rows) - 1

    x = torch.linspace(-1, 1, 6).requires_grad_()
    with saved_tensors_hooks(pack, lambda index: rows[index]):
        y = x * x + (x.detach().half().float() * torch.ones(6, requires_grad=True)).detach() * x
    y.sum().backward()
    return x.grad


def too_small_but_copied():
    """What is returned is memory of its own: it may have been made of anything."""
    ring = Ring(3)
    ring.copied = True
    return deep(ring)


def brought_back():
    """The rows are given up, and filled again before backward."""
    ring = Ring(3)

    def between():
        kept = ring.rows.clone()
        ring.rows.fill_(7)
        ring.rows.copy_(kept)

    return deep(ring, between)


def brought_back_rounded():
    ring = Ring(3)
    return deep(ring, lambda: ring.rows.copy_(ring.rows.half().float()))


def transposed():
    """Each save is kept in another order than it has in memory."""
    ring = Ring(4)
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    with ring.on():
        y = x.t().contiguous().t()
        z = (y * 2).exp() + (y * 2).contiguous().exp()
    z.sum().backward()
    return x.grad


@pytest.mark.parametrize(
    "program",
    [rounding, rounding_of_what_is_rounded_later, too_small_but_copied, brought_back, brought_back_rounded, transposed],
)
def test_a_pool_of_indexes_that_is_right(program):
    heard, found = hear(program)
    assert not heard.clobbers
    assert found.equal(bare(program))
