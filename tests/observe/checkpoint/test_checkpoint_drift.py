"""Regions of torch.utils.checkpoint that compute something else for backward than in forward."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from noclobber.rules import explain
from tests.observe.hearing import bare, hear, is_marked
from tests.rules.places import helped

MODES = pytest.mark.parametrize("reentrant", [False, True], ids=["", "reentrant"])
WITNESSES = pytest.mark.parametrize("contents", [True, False], ids=["contents", "versions"])


def leaf(*shape):
    return torch.ones(*shape or (3,), requires_grad=True)


def stepped(reentrant, fused=False):
    net, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), leaf(1, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, fused=fused)
    y = checkpoint(net, x, use_reentrant=reentrant)  # region
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # written
    y.sum().backward()
    return x.grad


def closure(reentrant):
    scale, x = torch.ones(3), leaf()

    def region(t):
        return (t.exp() * scale).sin()

    y = checkpoint(region, x, use_reentrant=reentrant)  # region
    scale.mul_(5)  # written
    y.sum().backward()
    return x.grad


def through_data(reentrant):
    scale, x = torch.ones(3), leaf()
    y = checkpoint(lambda t: t.exp() * scale, x, use_reentrant=reentrant)  # region
    scale.data.mul_(5)  # written
    y.sum().backward()
    return x.grad


def assigned(reentrant):
    scale, x = torch.ones(3), leaf()
    y = checkpoint(lambda t: t.exp() * scale, x, use_reentrant=reentrant)  # region
    scale.data = torch.zeros(3)  # written
    y.sum().backward()
    return x.grad


def added(reentrant):
    """No operator saves what is added; the result of the next one differs."""
    shift, x = torch.ones(3), leaf()
    y = checkpoint(lambda t: (t + shift).exp(), x, use_reentrant=reentrant)  # region
    shift.add_(1)  # written
    y.sum().backward()
    return x.grad


def statistics(reentrant):
    norm, x = nn.BatchNorm1d(3).eval(), torch.randn(8, 3, requires_grad=True)
    y = checkpoint(norm, x, use_reentrant=reentrant)  # region
    norm.train()(torch.randn(8, 3) * 100)  # written
    norm.eval()
    (y**3).sum().backward()
    return x.grad


def own_state(reentrant):
    state, x = torch.ones(3), leaf()

    def region(t):
        state.mul_(0.9)  # written
        return (t * state).exp()

    checkpoint(region, x, use_reentrant=reentrant).sum().backward()  # region
    return x.grad


WRITTEN = [stepped, closure, through_data, assigned, added, statistics, own_state]


@pytest.mark.parametrize("program", WRITTEN, ids=lambda program: program.__name__)
@MODES
def test_a_region_that_drifts_is_told_once_with_the_write(program, reentrant):
    heard, gradient = hear(lambda: program(reentrant))
    (drift,) = heard.events
    assert is_marked(drift.region, "region")
    assert drift.reentrant == reentrant
    assert is_marked(drift.writes[0].site, "written")
    assert len(drift.writes) == 1
    assert drift.save.site is not None
    assert drift.read.site is not None
    assert heard.clobbers == []
    assert torch.equal(gradient, bare(lambda: program(reentrant)))


@pytest.mark.parametrize("in_region", [True, False])
def test_pytorchs_words_of_a_view_that_a_second_backward_has_unpacked(in_region):
    """What it unpacks of a region is no view, and keeps its node; of a view itself PyTorch makes a new node."""

    def program():
        x = torch.ones(3, 4, requires_grad=True)
        view = x[..., 0]
        y = checkpoint(functional.leaky_relu, view, use_reentrant=False) if in_region else functional.leaky_relu(view)
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with torch.no_grad():
            view.mul_(2)
        with pytest.raises(RuntimeError) as raised:
            (y.sum() + slope.sum()).backward()
        return str(raised.value)

    heard, said = hear(program)
    assert said == bare(program)
    assert ("Select" if in_region else "AsStrided") in said
    assert len(heard.clobbers) > 0


def test_a_reentrant_region_that_writes_its_own_input_is_told_with_the_write():
    """The program drops the input, and only checkpoint holds its memory."""

    def program():
        x, shift = leaf(), torch.ones(3)

        def region(t):
            with torch.no_grad():
                t.add_(shift)  # written
            return t.exp()

        checkpoint(region, x * 2, use_reentrant=True).sum().backward()
        return x.grad

    heard, gradient = hear(program)
    (drift,) = heard.events
    assert [is_marked(write.site, "written") for write in drift.writes] == [True]
    assert not torch.equal(gradient, 2 * torch.full((3,), 3.0).exp())  # which is right


@pytest.mark.parametrize("program", [stepped, closure], ids=lambda program: program.__name__)
@MODES
def test_versions_alone_tell_what_they_can(program, reentrant):
    heard, _ = hear(lambda: program(reentrant), contents=False)
    (drift,) = heard.events
    assert is_marked(drift.writes[0].site, "written")


@pytest.mark.parametrize("fused", [False, True])
@MODES
def test_a_step_between_forward_and_backward_is_named(reentrant, fused):
    heard, _ = hear(lambda: stepped(reentrant, fused))
    (write,) = heard.events[0].writes
    assert write.step.optimizer == "SGD"
    assert write.tensor.name == "net.0.weight"
    if not reentrant:
        assert heard.events[0].save.node == "AddmmBackward0"


def test_a_write_of_the_same_numbers_is_not_to_blame():
    """The region saves the mask, and not what is subtracted: the numbers of both tell which one has changed."""

    def program():
        mask, shift, scale = torch.ones(3), torch.ones(3), leaf()
        y = checkpoint(lambda t: (t + scale * mask * (shift - t)).sin(), torch.full((3,), 2.0), use_reentrant=False)
        mask.copy_(torch.ones(3))
        shift.copy_(torch.zeros(3))  # written
        y.sum().backward()

    heard, _ = hear(program)
    (drift,) = heard.events
    assert [is_marked(write.site, "written") for write in drift.writes] == [True]


def test_rows_that_are_as_saved_say_nothing_about_the_others():
    """The region saves the first row and only adds the second, which is written."""

    def program():
        table, other = torch.ones(2, 3), torch.zeros(3)

        def region(t):
            scale, bias = table
            return (t * scale + bias).sin() + 0 * other

        y = checkpoint(region, leaf(), use_reentrant=False)
        other.add_(0.0)
        table[1].sub_(0.5)  # written
        y.sum().backward()

    heard, _ = hear(program)
    (drift,) = heard.events
    assert [is_marked(write.site, "written") for write in drift.writes] == [True]


@MODES
def test_another_dropout_mask_is_a_drift_without_a_write(reentrant):
    def program():
        x, drop = torch.randn(50, 3, requires_grad=True), nn.Dropout()
        y = checkpoint(lambda t: (drop(t) * t).exp(), x, use_reentrant=reentrant, preserve_rng_state=False)
        y.sum().backward()

    (drift,) = hear(program)[0].events
    assert drift.writes == ()


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls_made", torch.zeros(()))

    def forward(self, x):
        self.calls_made += 1
        return self.norm(functional.dropout(x.exp(), 0.5))


@MODES
def test_what_both_runs_write_and_nothing_reads_is_not_to_blame(reentrant):
    """The dropout masks differ. Batch norm moves its statistics in both runs, and the counter counts both."""

    def program():
        y = checkpoint(Counting(), leaf(4, 3), use_reentrant=reentrant, preserve_rng_state=False)
        y.square().sum().backward()

    heard, _ = hear(program)
    (drift,) = heard.events
    found = explain(drift)
    assert found.message == "a checkpointed region gives other bytes when backward runs it again"
    assert "preserve_rng_state=True" in helped(found)


@MODES
def test_statistics_that_the_region_reads_itself_are_to_blame(reentrant):
    norm = nn.BatchNorm1d(3)

    def program():
        def region(x):
            y = norm(x)
            return y * norm.running_mean.exp()

        checkpoint(region, torch.randn(4, 3, requires_grad=True), use_reentrant=reentrant).square().sum().backward()

    heard, _ = hear(program)
    (drift,) = heard.events
    assert "running_mean" in explain(drift).message


@pytest.mark.parametrize("around", ["hooks", "region"])
def test_an_argument_lives_no_longer_where_it_is_kept_elsewhere(around):
    def program():
        rows, alive = [], []

        def pack(tensor):
            rows.append(tensor.detach().numpy().copy())
            return len(rows) - 1

        def run(x):
            given = x * 1
            y = checkpoint(torch.exp, given, use_reentrant=False)
            alive.append(weakref.ref(given))
            return y

        x = leaf()
        if around == "hooks":
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda index: torch.from_numpy(rows[index])):
                y = run(x)
        else:
            y = checkpoint(run, x, use_reentrant=False)
        lives = alive[0]() is not None
        y.sum().backward()
        return lives, x.grad

    (lives, found), (bare_lives, right) = hear(program)[1], bare(program)
    assert lives == bare_lives is False
    assert found.equal(right)


def test_an_argument_that_was_overwritten_is_one_finding():
    def program():
        x, scale = leaf(), torch.ones(3)
        y = checkpoint(lambda a, b: (a * b).exp(), x, scale, use_reentrant=False)
        scale.numpy().fill(5)
        y.sum().backward()

    heard, _ = hear(program)
    assert len(heard.clobbers) == 1
    assert heard.events == []


def overwriting_its_own_save():
    x = leaf()

    def region(t):
        h = t.exp()  # saved
        h.add_(1)  # written
        return h * h

    checkpoint(region, x, use_reentrant=False).sum().backward()
    return x.grad


@WITNESSES
def test_a_region_that_overwrites_what_it_saved_itself(contents):
    """PyTorch raises outside of a checkpoint, and checks no versions inside: the gradient is wrong."""
    heard, gradient = hear(overwriting_its_own_save, contents)
    right = 2 * (torch.e + 1) * torch.e
    assert not torch.allclose(gradient, torch.full((3,), right))
    (clobber,) = heard.clobbers
    assert clobber.save.unchecked == "hooks"
    assert clobber.message is None
    assert heard.events == []
    assert is_marked(clobber.save.site, "saved")
    assert is_marked(clobber.writes[0].site, "written")


def test_rrelu_reads_noise_that_the_region_stopped_before():
    """The region, run anew, ends when the noise is saved, which is before it is made (torch 2.13)."""

    def program():
        x = torch.randn(20, requires_grad=True)
        y = checkpoint(lambda t: nn.functional.rrelu(t, training=True), x, use_reentrant=False)
        y.sum().backward()

    (drift,) = hear(program)[0].events
    assert drift.save.field == "noise"


@MODES
def test_a_write_of_the_second_run_is_known_as_that(reentrant):
    scale, x, w = torch.ones(3), leaf(), leaf()

    def region(t):
        scale.mul_(0.5)  # written
        return t.exp()

    def program():
        y = checkpoint(region, x, use_reentrant=reentrant)
        z = w * scale  # saved
        y.sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()

    heard, _ = hear(program)
    (clobber,) = heard.clobbers
    assert is_marked(clobber.save.site, "saved")
    assert [(write.again, write.in_forward) for write in clobber.writes] == [(True, True)]
    assert is_marked(clobber.writes[0].site, "written")
    found = explain(clobber)
    assert "write out of place" in helped(found)
    assert any("ran a checkpointed region again" in note for note in found.notes)


def test_a_step_in_a_hook_of_a_shared_weight_is_helped_by_regions_that_are_not_reentrant():
    def program(reentrant):
        net, x = nn.Linear(3, 3), leaf(1, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
        y = checkpoint(net, checkpoint(net, x, use_reentrant=reentrant).tanh(), use_reentrant=reentrant)
        y.sum().backward()
        return x.grad

    heard, _ = hear(lambda: program(True))
    (drift,) = heard.events
    assert not drift.writes[0].in_forward
    assert "`use_reentrant=False`" in explain(drift).suggestions[0].message
    heard, gradient = hear(lambda: program(False))
    assert heard.events == heard.clobbers == []
    assert torch.equal(gradient, bare(lambda: program(False)))
