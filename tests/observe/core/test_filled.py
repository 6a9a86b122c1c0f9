"""What an operator makes once it has been saved: the noise of rrelu. Backward reads what the operator leaves there."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import noclobber
from tests.observe.hearing import bare, hear

drawn, drawn_in_place = torch._C._nn.rrelu_with_noise, torch._C._nn.rrelu_with_noise_


def leaf():
    return torch.linspace(-2, 2, 8).requires_grad_()


def junk():
    """Leaves nothing of what was freed as it was."""
    return [torch.full((8,), 9.0) for _ in range(10)]


def rrelu(*, inplace):
    def program():
        x = leaf()
        y = functional.rrelu(x * 1, training=True, inplace=inplace)
        junk()
        y.sum().backward()
        return x.grad

    return program


def under_own_hooks(*, inplace):
    def program():
        with saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
            return rrelu(inplace=inplace)()

    return program


def twice(*, inplace):
    """The gradient of a gradient reads the noise as well."""

    def program():
        x = leaf()
        y = functional.rrelu(x * 1, training=True, inplace=inplace)
        (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        gradient.sum().backward()
        return x.grad

    return program


def region(*, inplace, after=lambda y: y, early_stop=True, **how):
    def program():
        x = leaf()
        with set_checkpoint_early_stop(early_stop):
            y = checkpoint(lambda t: after(functional.rrelu(t * 1, training=True, inplace=inplace)), x, **how)
        junk()
        y.sum().backward()
        return x.grad

    return program


RIGHT = {
    "alone": rrelu,
    "under the program's own hooks": under_own_hooks,
    "differentiated twice": twice,
    "in a region that runs to its end": lambda inplace: region(inplace=inplace, early_stop=False, use_reentrant=False),
    "in a region that saves more": lambda inplace: region(inplace=inplace, after=torch.sin, use_reentrant=False),
    "in a reentrant region": lambda inplace: region(inplace=inplace, use_reentrant=True),
}
WITNESSES = pytest.mark.parametrize("contents", [True, False])
IN_PLACE = pytest.mark.parametrize("inplace", [True, False])


@WITNESSES
@IN_PLACE
@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_a_right_gradient_is_quiet(make, inplace, contents):
    heard, gradient = hear(make(inplace=inplace), contents)
    assert torch.equal(gradient, bare(make(inplace=inplace)))
    assert heard.clobbers + heard.events == []


@IN_PLACE
@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_a_right_gradient_is_preserved(make, inplace):
    def preserved():
        with noclobber.preserve():
            return make(inplace=inplace)()

    assert torch.equal(bare(preserved), bare(make(inplace=inplace)))


def overwritten(draw, write):
    def program(writes):
        x, noise = leaf(), torch.empty(8)
        y = draw(x * 1, noise, 0.1, 0.3, True)
        if writes:
            write(noise)
        y.sum().backward()
        return x.grad

    return program


WRITES = {
    "through data": lambda noise: noise.data.zero_(),
    "by drawing again": lambda noise: drawn(torch.ones(8), noise, 0.1, 0.3, True),
    "by numpy": lambda noise: noise.numpy().fill(0),
}


@pytest.mark.parametrize("draw", [drawn, drawn_in_place])
@pytest.mark.parametrize("write", WRITES)
def test_noise_that_is_overwritten_is_told(draw, write):
    program = overwritten(draw, WRITES[write])
    heard, gradient = hear(lambda: program(True))
    assert torch.equal(gradient, bare(lambda: program(True)))
    assert not torch.equal(gradient, bare(lambda: program(False)))
    (clobber,) = heard.clobbers
    assert clobber.save.field == "noise"
    assert {one.via for one in clobber.writes} == {
        "through data": {"data"}, "by drawing again": {"unversioned"}, "by numpy": {"foreign"}
    }[write]  # fmt: skip


@pytest.mark.parametrize("draw", [drawn, drawn_in_place])
@pytest.mark.parametrize("write", ["through data", "by drawing again"])
def test_noise_that_is_overwritten_is_preserved(draw, write):
    program = overwritten(draw, WRITES[write])

    def preserved():
        with noclobber.preserve():
            return program(True)

    assert torch.equal(bare(preserved), bare(lambda: program(False)))


@WITNESSES
def test_a_region_that_stops_before_the_noise_is_drawn(contents):
    """Run anew, it ends once all is saved; the noise has been then, and is drawn after that."""
    program = region(inplace=False, use_reentrant=False)
    right = bare(rrelu(inplace=False))
    assert not torch.equal(bare(program), right)
    heard, _ = hear(program, contents)
    (drift,) = heard.events
    assert (drift.save.field, drift.unfilled, drift.writes) == ("noise", True, ())
    assert torch.equal(bare(region(inplace=False, use_reentrant=False, early_stop=False)), right)


def test_such_a_region_runs_to_its_end_where_bytes_are_preserved():
    def preserved():
        with noclobber.preserve():
            return region(inplace=False, use_reentrant=False)()

    assert torch.equal(bare(preserved), bare(rrelu(inplace=False)))


@IN_PLACE
def test_a_region_that_draws_other_noise_when_it_runs_anew(inplace):
    program = region(inplace=inplace, after=torch.sin, use_reentrant=False, preserve_rng_state=False)
    heard, gradient = hear(program)
    assert not torch.equal(gradient, bare(region(inplace=inplace, after=torch.sin, use_reentrant=False)))
    (drift,) = heard.events
    assert (drift.save.field, drift.unfilled) == ("noise", False)


def test_hooks_that_copy_get_noise_that_is_not_drawn_yet_which_the_report_says():
    """PyTorch gives such a copy to backward (torch 2.13)."""

    def program():
        x, noise = leaf(), torch.zeros(8)
        with saved_tensors_hooks(torch.clone, lambda saved: saved):
            y = drawn(x * 1, noise, 0.1, 0.3, True)
        y.sum().backward()
        return x.grad

    assert bare(program).count_nonzero() == 0
    with noclobber.watch() as seen:
        program()
    assert any("copied" in one for one in seen.report.coverage.unseen)


def test_which_operators_fill_what_they_save():
    """Those with a node of their own that write an argument other than the first: these and no more."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        node = "".join(part.capitalize() for part in base.split("_")) + "Backward0"
        if not name.startswith("aten::") or not hasattr(torch._C._functions, node):
            continue
        given = getattr(getattr(torch.ops.aten, base), overload or "default")._schema.arguments[1:]
        written = [one for one in given if one.alias_info is not None and one.alias_info.is_write]
        if any(not one.kwarg_only for one in written):
            found.add(base)
    assert found == {
        *("rrelu_with_noise", "rrelu_with_noise_"),
        *("_batch_norm_with_update", "_native_batch_norm_legit"),  # running statistics, which training does not read
        "_fused_moving_avg_obs_fq_helper",  # keeps nothing but a mask that it makes itself
    }
