"""Selective checkpoints, which from torch 2.15 on look for saved-tensor hooks around them, must find none of ours."""

import contextlib
import functools
import inspect
import warnings

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import noclobber

RESPECTING = [{}]
if "respect_saved_tensors_hooks" in inspect.signature(checkpoint).parameters:
    RESPECTING += [{"respect_saved_tensors_hooks": True}, {"respect_saved_tensors_hooks": False}]
RESPECT = pytest.mark.parametrize("respect", RESPECTING, ids=str)
WATCHES = pytest.mark.parametrize(
    "watch",
    [noclobber.watch, functools.partial(noclobber.watch, contents=True), noclobber.preserve],
    ids=["versions", "contents", "preserve"],
)


def selective(function, *args, **options):
    policy = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.exp.default])
    return checkpoint(function, *args, use_reentrant=False, context_fn=policy, **options)


def inner(x):
    return x.exp().sin() * x


def nested(respect):
    return lambda x: checkpoint(lambda h: selective(inner, h, **respect), x, use_reentrant=False)


def outcome(program):
    """What a program returns or raises, and what it warns of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = program()
        except RuntimeError as error:
            result = str(error)
    return result, [(one.category, str(one.message)) for one in warned if one.category is not noclobber.ClobberWarning]


def gradient(function):
    x = torch.full((3,), 0.5, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


@WATCHES
@RESPECT
@pytest.mark.parametrize("way", ["alone", "nested"])
def test_no_hooks_of_ours_are_found(watch, respect, way):
    def program():
        return gradient(nested(respect) if way == "nested" else lambda x: selective(inner, x, **respect))

    with watch():
        seen = outcome(program)
    assert seen == outcome(program)
    assert seen[1] == []


@WATCHES
@RESPECT
@pytest.mark.parametrize("way", ["alone", "nested"])
def test_the_programs_hooks_get_what_they_would(watch, respect, way):
    def program():
        calls = []

        def pack(tensor):
            calls.append(("pack", tensor.tolist()))
            return tensor.clone()

        def unpack(tensor):
            calls.append(("unpack", tensor.tolist()))
            return tensor

        with saved_tensors_hooks(pack, unpack):
            return gradient(nested(respect) if way == "nested" else lambda x: selective(inner, x, **respect)), calls

    with watch():
        seen = outcome(program)
    assert seen == outcome(program)
    assert bool(seen[1]) == (not respect and len(RESPECTING) > 1), "PyTorch warns where it passes them by unasked"


@WATCHES
@RESPECT
def test_hooks_from_before_are_found_below_ours(watch, respect):
    def program(watch):
        with saved_tensors_hooks(torch.clone, torch.clone), watch():
            return gradient(lambda x: selective(inner, x, **respect))

    assert outcome(lambda: program(watch)) == outcome(lambda: program(contextlib.nullcontext))


@WATCHES
def test_what_was_cached_and_changed_is_refused_as_bare(watch):
    respect = RESPECTING[len(RESPECTING) > 1]

    def program():
        kept = []

        def pack(tensor):
            kept.append(tensor.clone())
            return kept[-1]

        x = torch.full((3,), 0.5, requires_grad=True)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            y = selective(inner, x, **respect)
        with torch.no_grad():
            for one in [one for one in kept if one.numel()][1:]:  # behind the argument of the region
                one.add_(1)  # (torch 2.10 and 2.11 keep an empty tensor before that)
        y.sum().backward()
        return x.grad.tolist()

    with watch():
        seen = outcome(program)
    bare = outcome(program)
    if respect:
        assert "cached during selective activation checkpoint has been mutated" in bare[0]
    assert seen == bare
