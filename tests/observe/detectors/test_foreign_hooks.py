"""Saves under the program's own saved-tensor hooks, which switch PyTorch's version check off."""

import pytest
import torch
from torch.autograd.graph import allow_mutation_on_saved_tensors, save_on_cpu, saved_tensors_hooks

from tests.observe.hearing import bare, hear, is_marked

WITNESSES = pytest.mark.parametrize("contents", [True, False], ids=["contents", "versions"])


def identity():
    return saved_tensors_hooks(lambda t: t, lambda t: t)


def detaching():
    return saved_tensors_hooks(lambda t: t.detach(), lambda t: t)


def by_index():
    store = []

    def pack(t):
        store.append(t.detach())
        return len(store) - 1

    return saved_tensors_hooks(pack, store.__getitem__)


def by_array():
    return saved_tensors_hooks(lambda t: t.detach().numpy(), torch.from_numpy)


def copying():
    return saved_tensors_hooks(torch.clone, lambda t: t)


def rounding():
    return saved_tensors_hooks(lambda t: (t.dtype, t.bfloat16()), lambda kept: kept[1].to(kept[0]))


def quantising():
    def pack(t):
        scale = t.detach().abs().max() / 127
        return scale, (t.detach() / scale).round().to(torch.int8)

    return saved_tensors_hooks(pack, lambda kept: kept[0] * kept[1].float())


def written_under(hooks, write):
    x = torch.ones(3, requires_grad=True)
    with hooks():
        y = (x * 2).exp()  # saved
    write(y)
    y.sum().backward()
    return x.grad


def in_place(y):
    with torch.no_grad():
        y.mul_(0)  # written


def through_data(y):
    y.data.mul_(0)  # written


def assigned(y):
    y.data = torch.zeros(3)  # written


SHARING = pytest.mark.parametrize(
    "hooks", [identity, detaching, by_index, by_array, save_on_cpu], ids=lambda hooks: hooks.__name__
)
ELSEWHERE = pytest.mark.parametrize("hooks", [copying, rounding, quantising], ids=lambda hooks: hooks.__name__)


@SHARING
@WITNESSES
def test_a_counted_write_is_found_with_both_lines(hooks, contents):
    heard, gradient = hear(lambda: written_under(hooks, in_place), contents)
    (clobber,) = heard.clobbers
    assert clobber.save.unchecked == "hooks"
    assert clobber.message is None
    assert (clobber.save.node, clobber.save.field) == ("ExpBackward0", "result")
    assert is_marked(clobber.save.site, "saved")
    (write,) = clobber.writes
    assert is_marked(write.site, "written")
    assert (write.version_before, write.version_after) == (0, 1)
    assert torch.equal(gradient, bare(lambda: written_under(hooks, in_place)))


@SHARING
def test_a_write_that_nothing_counts_is_found_by_its_bytes(hooks):
    (clobber,) = hear(lambda: written_under(hooks, through_data))[0].clobbers
    assert is_marked(clobber.writes[0].site, "written")
    assert clobber.writes[0].via == "data"
    (clobber,) = hear(lambda: written_under(hooks, lambda y: y.detach().numpy().fill(0)))[0].clobbers
    assert clobber.writes[0].via == "foreign"


@WITNESSES
def test_the_tensor_itself_is_given_other_bytes(contents):
    (clobber,) = hear(lambda: written_under(identity, assigned), contents)[0].clobbers
    assert clobber.writes[0].via == "set_data"
    assert is_marked(clobber.writes[0].site, "written")


def test_a_write_to_what_needs_no_gradient():
    def program():
        x, mask = torch.ones(3, requires_grad=True), torch.ones(3)
        with identity():
            y = x * mask
        mask.zero_()  # written
        y.sum().backward()

    (clobber,) = hear(program)[0].clobbers
    assert clobber.save.tensor.name == "mask"
    assert is_marked(clobber.writes[0].site, "written")


def test_a_step_is_named():
    def program():
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        with save_on_cpu():
            loss = (weight**3).sum()
        weight.grad = torch.ones(3)
        optimizer.step()
        loss.backward()

    (clobber,) = hear(program)[0].clobbers
    assert clobber.writes[0].step.optimizer == "SGD"


# -- quiet ---------------------------------------------------------------------------------------------------------


@ELSEWHERE
@WITNESSES
def test_data_that_hooks_moved_elsewhere_may_be_overwritten(hooks, contents):
    heard, gradient = hear(lambda: written_under(hooks, in_place), contents)
    assert heard.clobbers == []
    assert torch.equal(gradient, bare(lambda: written_under(hooks, in_place)))


@WITNESSES
def test_a_write_to_the_other_half_is_none(contents):
    def program():
        x = torch.ones(4, requires_grad=True)
        y = x * 2
        with identity():
            z = y[:2].exp()
        w = z.detach()
        y.detach()[2:].zero_()
        z.sum().backward()
        return w

    assert hear(program, contents)[0].clobbers == []


def test_statistics_that_batch_norm_updates_and_does_not_read():
    def program():
        norm, x = torch.nn.BatchNorm1d(3), torch.randn(8, 3, requires_grad=True)
        with identity():
            y = norm(x)
        y.pow(3).sum().backward()

    assert hear(program)[0].clobbers == []


def test_mutation_that_hooks_allow():
    def program():
        x = torch.ones(3, requires_grad=True)
        with allow_mutation_on_saved_tensors():
            y = (x * 2).exp()
            y.mul_(0)
            y.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert heard.clobbers == []
    assert torch.equal(gradient, bare(program))


@WITNESSES
@pytest.mark.parametrize("run", [lambda h: h.sigmoid_(), torch.nn.LSTMCell(3, 3)], ids=["in place", "recurrent"])
def test_what_a_pack_hook_writes_inside_an_operator_is_blamed(run, contents):
    def program():
        x = torch.ones(1, 3, requires_grad=True)
        h = x * 1
        y = h * h

        def pack(tensor):
            if not h._version:
                h.detach().add_(1)  # the hook
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            run(x * 2)
        with pytest.raises(RuntimeError):
            y.sum().backward()

    writes = [write for clobber in hear(program, contents)[0].clobbers for write in clobber.writes]
    assert writes
    assert all(is_marked(write.site, "the hook") for write in writes)
