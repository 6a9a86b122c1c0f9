"""The judge sees what differs: each test plants one difference into a mode of its own."""

import random
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.hooks import RemovableHandle

import noclobber
from noclobber.observe.torch_api.autograd import hook_stack
from tests.conformance.drive import chosen, entries
from tests.conformance.judge import judge
from tests.conformance.observed import MODES, Program, copied, run


def start():
    x = torch.ones(3, requires_grad=True)

    def body(see):
        y = x.sin()
        see("result", y)
        y.sum().backward()
        see("gradient", x.grad)
        warnings.warn("of the program", stacklevel=1)

    return body


PROGRAM = Program("sin", start)


def kinds(program, around):
    return {one.kind for one in judge(program, {"contents": around}).differences}


@contextmanager
def patched(owner, name, make):
    native = getattr(owner, name)
    setattr(owner, name, make(native))
    try:
        yield
    finally:
        setattr(owner, name, native)


def after(native, then):
    def called(*args, **kwargs):
        result = native(*args, **kwargs)
        then(result)
        return result

    return called


def bumped(result):
    torch.autograd.graph.increment_version(result)


def raised(result):
    raise ValueError("of the mode")


PLANTED = {
    "version": lambda: patched(torch.Tensor, "sin", partial(after, then=bumped)),
    "bits": lambda: patched(torch.Tensor, "sin", partial(after, then=lambda result: result.data.mul_(2))),
    "outcome": lambda: patched(torch.Tensor, "sin", partial(after, then=raised)),
    "random state": lambda: patched(torch.Tensor, "sin", partial(after, then=lambda result: random.random())),
    "warnings": lambda: patched(
        torch.Tensor, "sin", partial(after, then=lambda result: warnings.warn("more", stacklevel=2))
    ),
    "kind": lambda: patched(
        torch.Tensor, "sin", lambda native: lambda tensor: native(tensor).detach().requires_grad_()
    ),
    "state left behind": lambda: _left(),
}


@contextmanager
def _left():
    yield
    torch.set_default_dtype(torch.float64)


@pytest.fixture(autouse=True)
def default_dtype():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_difference_is_seen(kind):
    assert kind in kinds(PROGRAM, PLANTED[kind])


def test_noclobber_itself_makes_none():
    verdict = judge(PROGRAM)
    assert not verdict.differences
    assert verdict.compared > 10
    assert not verdict.unsettled


def warned_in_noclobber(text):
    path = str(Path(noclobber.__file__).with_name("save_hooks.py"))
    return patched(
        torch.Tensor,
        "sin",
        partial(after, then=lambda result: warnings.warn_explicit(text, UserWarning, path, 1)),
    )


def test_a_warning_that_only_noclobber_gives_is_seen():
    assert kinds(PROGRAM, lambda: warned_in_noclobber("of noclobber")) == {"warnings"}
    assert not kinds(PROGRAM, lambda: warned_in_noclobber("of the program"))


def added_up():
    x = torch.ones(3, 2, requires_grad=True)

    def body(see):
        (torch.nn.functional.glu(x) + torch.nn.functional.glu(x)).sum().backward()
        see("gradient", x.grad)

    return body


def test_a_gradient_has_the_same_bits_where_hooks_may_run(monkeypatch):
    """Also where PyTorch no longer adds it up in place, as Python code has seen what it adds to."""
    program = Program("added up", added_up)
    bare = run(program)
    monkeypatch.setattr(RemovableHandle, "next_id", RemovableHandle.next_id + 1)
    assert hook_stack.program_has_hooks()
    assert not judge(program).differences
    for around in MODES.values():
        got = run(program, around)
        assert got.values["bits of gradient[0]"] == bare.values["bits of gradient[0]"]
        assert got.values["version of gradient[0]"] <= bare.values["version of gradient[0]"]


def silently_wrong():
    x = torch.ones(3, requires_grad=True)

    def body(see):
        y = x.exp()
        y.data.mul_(2)
        y.sum().backward()
        see("gradient", x.grad)

    return body


def test_a_wrong_gradient_without_a_finding_is_seen():
    program = Program("silently wrong", silently_wrong, writes=True)
    assert kinds(program, noclobber.install) == {"no finding"}
    assert not kinds(program, noclobber.watch)


def test_preserve_is_held_to_the_right_gradient():
    program = Program("silently wrong", silently_wrong, writes=True)
    modes = {"preserve": noclobber.watch}
    assert {one.kind for one in judge(program, modes).differences} == {"bits"}
    assert not judge(program, {"preserve": noclobber.preserve}).differences


def test_a_finding_on_a_right_gradient_is_seen(monkeypatch):
    monkeypatch.setattr(noclobber.watch, "findings", property(lambda watch: ()), raising=False)

    @contextmanager
    def accused():
        with noclobber.watch() as seen:
            yield seen
            other = torch.ones(3, requires_grad=True)
            y = other.exp()
            y.data.mul_(2)
            y.sum().backward()

    assert "false finding" in kinds(PROGRAM, accused)


def test_what_bare_pytorch_does_not_do_twice_is_not_compared():
    times = iter(range(1000))

    def restless():
        def body(see):
            see("same", torch.ones(3))
            see("another each time", torch.full((3,), float(next(times))))

        return body

    verdict = judge(Program("restless", restless))
    assert not verdict.differences
    assert verdict.unsettled == 1


def test_memory_that_was_never_written_is_not_compared():
    verdict = judge(Program("empty", lambda: lambda see: see("result", torch.empty(1000))))
    assert verdict.unsettled == 1


def test_a_copy_has_memory_of_its_own_laid_out_as_the_first():
    base = torch.arange(12.0).reshape(3, 4)
    view, expanded = base.t()[1:], torch.ones(3, 1).expand(3, 5)
    one, other, leaf, again = copied((base, view, expanded.requires_grad_(), expanded))
    assert one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
    assert (other.stride(), other.storage_offset()) == (view.stride(), view.storage_offset())
    assert leaf is again
    assert leaf.stride() == (1, 0)
    assert leaf.requires_grad
    assert torch.equal(other, view)


def test_a_run_is_the_same_twice():
    first, second = run(PROGRAM), run(PROGRAM)
    assert first == second
    assert first.warnings[0].text == "of the program"


def test_a_part_is_drawn_by_its_seed():
    names = [str(number) for number in range(1000)]
    part = chosen(names, "", 0.1, "2026-11-22")
    assert len(part) == 100
    assert part == chosen(names, "", 0.1, "2026-11-22") != chosen(names, "", 0.1, "2026-11-23")


def test_the_databases_are_there():
    counts = {kind: sum(name.startswith(kind) for name in entries()) for kind in ("operator", "module", "optimizer")}
    assert counts["operator"] > 600
    assert counts["module"] > 100
    assert counts["optimizer"] >= 14
