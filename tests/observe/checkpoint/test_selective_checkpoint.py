"""Selective checkpoints: writes to what a policy keeps, and the saved-tensor hooks that torch 2.15 looks for."""

import contextlib
import functools
import inspect
import warnings
import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import noclobber
from tests.observe.hearing import hear, is_marked

RESPECTING = [{}]
if "respect_saved_tensors_hooks" in inspect.signature(checkpoint).parameters:
    RESPECTING += [{"respect_saved_tensors_hooks": True}, {"respect_saved_tensors_hooks": False}]
RESPECT = pytest.mark.parametrize("respect", RESPECTING, ids=str)
WATCHES = pytest.mark.parametrize(
    "watch",
    [functools.partial(noclobber.watch, contents=False), noclobber.watch, noclobber.preserve],
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
    """Where the program's hooks packed it too. `preserve` keeps it."""
    respect = RESPECTING[len(RESPECTING) > 1]

    def program(*, written=True):
        kept = []

        def pack(tensor):
            kept.append(tensor.clone())
            return kept[-1]

        x = torch.full((3,), 0.5, requires_grad=True)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            y = selective(inner, x, **respect)
        with torch.no_grad():
            for one in [one for one in kept if one.numel()][1:]:  # behind the argument of the region
                if written:
                    one.add_(1)  # (torch 2.10 and 2.11 keep an empty tensor before that)
        y.sum().backward()
        return x.grad.tolist()

    with watch():
        seen = outcome(program)
    bare = outcome(program)
    if respect:
        assert "cached during selective activation checkpoint has been mutated" in bare[0]
    if respect and watch is noclobber.preserve:
        assert seen == (program(written=False), [])
    else:
        assert seen == bare


def weights():
    torch.manual_seed(0)
    return torch.randn(3, 4, 4, requires_grad=True)


def plain(x, w):
    h = x[0] @ w[0]  # kept
    h.add_(1)  # written
    return h.tanh()


def batched(x, w):
    h = torch.matmul(x.expand(2, 3, 5, 4), w.expand(2, 3, 4, 4))  # kept
    h.add_(1)  # written
    return h.tanh()


def through_data(x, w):
    h = x[0] @ w[0]  # kept
    h.data.add_(1)  # written
    return h.tanh()


def part(x, w):
    h = torch.bmm(x, w)  # kept
    h[:, 0] = 2  # written
    return h.tanh()


def idempotent(x, w):
    return torch.matmul(x.expand(2, 3, 5, 4), w.expand(2, 3, 4, 4)).relu_().tanh()


def out_of_place(x, w):
    return (x[0] @ w[0] + 1).sin().mul_(2)


KEPT = [torch.ops.aten.mm.default, torch.ops.aten.bmm.default]


def prefer(ctx, op, *args, **kwargs):
    return CheckpointPolicy.PREFER_SAVE if op in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def kept_gradients(region, policy=KEPT, **options):
    w, x = weights(), torch.full((3, 5, 4), 0.5, requires_grad=True)
    contexts = functools.partial(create_selective_checkpoint_contexts, policy, **options)
    checkpoint(region, x, w, use_reentrant=False, context_fn=contexts).sum().backward()
    return x.grad, w.grad


def right_gradients(region):
    w, x = weights(), torch.full((3, 5, 4), 0.5, requires_grad=True)
    region(x, w).sum().backward()
    return x.grad, w.grad


def same(one, other):
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize("policy", [KEPT, prefer], ids=["list", "prefer"])
@pytest.mark.parametrize("region", [plain, part], ids=lambda region: region.__name__)
def test_a_write_to_what_a_policy_keeps_is_told_where_pytorch_raises(region, policy):
    def program():
        with pytest.raises(RuntimeError, match="cached during selective activation checkpoint has been mutated"):
            kept_gradients(region, policy)

    heard, _ = hear(program)
    (clobber,) = heard.clobbers
    assert "has been mutated" in clobber.message
    assert clobber.save.unchecked == "policy"
    assert is_marked(clobber.save.site, "kept")
    assert is_marked(clobber.writes[0].site, "written")
    assert heard.events == []


@pytest.mark.parametrize("region", [batched, through_data], ids=lambda region: region.__name__)
def test_it_is_told_where_no_version_is_shared(region):
    assert not same(kept_gradients(region), right_gradients(region))
    heard, gradients = hear(lambda: kept_gradients(region))
    (clobber,) = heard.clobbers
    assert clobber.message is None
    assert is_marked(clobber.save.site, "kept")
    assert is_marked(clobber.writes[0].site, "written")
    assert heard.events == []
    assert same(gradients, kept_gradients(region))


def test_it_is_told_where_the_program_has_allowed_it():
    assert not same(kept_gradients(plain, allow_cache_entry_mutation=True), right_gradients(plain))
    heard, _ = hear(lambda: kept_gradients(plain, allow_cache_entry_mutation=True))
    (clobber,) = heard.clobbers
    assert is_marked(clobber.writes[0].site, "written")


@pytest.mark.parametrize("contents", [True, False], ids=["contents", "versions"])
@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("region", [idempotent, out_of_place], ids=lambda region: region.__name__)
def test_what_computes_the_same_again_is_not_told(region, allow, contents):
    heard, gradients = hear(lambda: kept_gradients(region, allow_cache_entry_mutation=allow), contents=contents)
    assert heard.clobbers == heard.events == []
    assert same(gradients, right_gradients(region))


def test_versions_that_count_on_are_no_change():
    heard, gradients = hear(lambda: kept_gradients(part, allow_cache_entry_mutation=True), contents=False)
    assert heard.clobbers == heard.events == []
    assert same(gradients, right_gradients(part))


@pytest.mark.parametrize("region", [plain, part, batched, through_data], ids=lambda region: region.__name__)
def test_preserve_gives_what_the_policy_kept(region):
    with noclobber.preserve():
        gradients = kept_gradients(region)
    assert same(gradients, right_gradients(region))


def test_preserve_gives_it_after_the_block():
    w, x = weights(), torch.full((3, 5, 4), 0.5, requires_grad=True)
    contexts = functools.partial(create_selective_checkpoint_contexts, KEPT)
    with noclobber.preserve():
        y = checkpoint(batched, x, w, use_reentrant=False, context_fn=contexts)
    y.sum().backward()
    assert same((x.grad, w.grad), right_gradients(batched))


def test_what_a_policy_keeps_lives_no_longer_than_without_noclobber():
    w, x = weights(), torch.full((3, 5, 4), 0.5, requires_grad=True)
    alive = []

    def region(x, w):
        h = torch.bmm(x, w)
        alive.append(weakref.ref(h.untyped_storage()))
        return h.tanh()

    contexts = functools.partial(create_selective_checkpoint_contexts, KEPT)
    with noclobber.watch(contents=True):
        y = checkpoint(region, x, w, use_reentrant=False, context_fn=contexts)
        del y
        assert alive[0]() is None
