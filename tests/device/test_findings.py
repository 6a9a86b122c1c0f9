"""What is found on a device is what is found on the CPU: the same codes, lines and words, the same errors."""

import threading
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from noclobber.observe.torch_api.dispatch import spare_key
from tests.device import sham
from tests.device.places import SEEING, run
from tests.observe import test_never_wrong


def leaf(*shape):
    return torch.linspace(0.5, 1.5, max(1, torch.Size(shape).numel())).reshape(shape).requires_grad_()


def more_nodes_elsewhere():
    """The thread that runs backward has made more nodes than this one, by then."""
    count = torch._C._autograd._get_sequence_nr
    enough = count() + 500

    def hook(gradient):
        one = torch.ones(1, device="cpu", requires_grad=True)
        with torch.enable_grad():
            while count() < enough:
                one.view(1)

    y = leaf(3) * 1
    y.register_hook(hook)
    y.sum().backward()


@torch.library.custom_op("noclobber_device::hides", mutates_args=())
def hides(tensor: torch.Tensor) -> torch.Tensor:
    """Writes its argument as a kernel of C++ does: no operator is seen, no version moves."""
    with spare_key.unlogged():
        torch._C.TensorBase.data.__get__(tensor).mul_(2)
    return tensor.clone()


# -- writes between forward and backward ------------------------------------------------------------------------------


def data_write():
    x = leaf(3)
    y = x.exp()
    y.data.zero_()
    y.sum().backward()
    return [x.grad]


def leaf_made_of_the_data_of_an_activation():
    """As an attack perturbs what a generator has made: a leaf on the same memory, with a version counter of its own."""
    x = leaf(3)
    y = x.exp()
    attacked = y.data.requires_grad_()
    with torch.no_grad():
        attacked += 1
    y.sum().backward()
    return [x.grad]


def data_that_entered_the_graph_before_the_save():
    x, w = leaf(3), leaf(3)
    y = x * 1
    other = y.data
    other.mul_(w)
    z = y.exp() * y
    other.add_(1)
    z.sum().backward()
    return [x.grad]


def memory_assigned_before_the_save():
    x, w = leaf(3), leaf(3)
    y, other = x * 1, w * 1
    other.data = y.data
    z = y.exp() * y
    other.add_(1)
    z.sum().backward()
    return [x.grad]


def operator_of_a_library_that_hides_its_write():
    x = leaf(3)
    y = x.exp()
    hides(y.detach())
    y.sum().backward()
    return [x.grad]


def data_write_to_a_scalar():
    x = leaf()
    y = x.exp()
    y.data.zero_()
    (y * 2).backward()
    return [x.grad]


def data_write_to_a_part():
    x = leaf(4, 6)
    y = x[:, ::2] * 1
    z = y.t()[1:].square()
    y.data[0].fill_(3)
    z.sum().backward()
    return [x.grad]


def data_write_of_the_same_bytes():
    x = leaf(3)
    y = x.exp()
    y.data.copy_(y.detach().clone())
    y.sum().backward()
    return [x.grad]


def signs_of_zeros_flipped():
    x = leaf(3).detach().sub(1).requires_grad_()
    y = x.relu()
    z = y * y
    y.data.mul_(1 - 2.0 * (y.detach() == 0))
    z.sum().backward()
    return [x.grad]


def signs_of_zeros_that_a_division_reads():
    x, y = leaf(3), torch.zeros(3)
    z = x / y
    y.data.neg_()
    z.sum().backward()
    return [x.grad]


def signs_of_zeros_flipped_under_own_hooks():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return signs_of_zeros_flipped()


def signs_of_zeros_outside_a_region():
    return drift(False, lambda scale: scale.data.neg_(), torch.zeros(3))


def data_write_put_back():
    x = leaf(3)
    y = x.exp()
    before = y.detach().clone()
    y.data.zero_()
    y.data.copy_(before)
    y.sum().backward()
    return [x.grad]


def data_write_to_an_expanded_save():
    x, w = leaf(3, 4), leaf(4)
    y = (w * 1).expand(3, 4)
    z = x * y
    y.data[:, 1].fill_(7)
    z.sum().backward()
    return [x.grad, w.grad]


def data_assignment():
    w = leaf(3)
    loss = (w**2).sum()
    w.data = torch.zeros(3)
    loss.backward()
    return [w.grad]


def write_by_a_copy_from_the_cpu():
    x, w = leaf(3), torch.ones(3)
    y = x * w
    w.copy_(torch.zeros(3, device="cpu"))
    y.sum().backward()
    return [x.grad]


def data_write_by_a_copy_from_the_cpu():
    x = leaf(3)
    y = x.exp()
    y.data.copy_(torch.zeros(3, device="cpu"))
    y.sum().backward()
    return [x.grad]


def step_before_backward():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.Adam(net.parameters())
    loss = net(leaf(1, 2)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()


def fused_step_before_backward():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
    loss = net(leaf(1, 2)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()
    return [p.grad for p in net.parameters()]


def batch_norm_buffers():
    norm = nn.BatchNorm1d(3)
    norm.train()
    norm(torch.randn(4, 3))
    norm.eval()
    x = leaf(4, 3)
    y = norm(x)
    norm.train()
    norm(torch.randn(4, 3))
    y.sum().backward()
    return [x.grad]


def kept_on_ctx():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.x * gradient

    x = leaf(3)
    y = x * 1
    z = Square.apply(y)
    y.add_(1)
    z.sum().backward()
    return [x.grad]


def kept_on_ctx_and_not_read():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    x = leaf(3)
    y = x * 1
    z = Twice.apply(y)
    y.data.add_(1)
    z.sum().backward()
    return [x.grad]


def own_hooks():
    x = leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = x.exp()
    y.data.mul_(2)
    y.sum().backward()
    return [x.grad]


def own_hooks_and_a_counted_write():
    x = leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = x.exp()
    y.add_(1)
    y.sum().backward()
    return [x.grad]


def own_hooks_and_no_write():
    x = leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = x.exp()
    y.sum().backward()
    return [x.grad]


def freed_graph():
    x = leaf(3)
    loss = (x**2).sum()
    loss.backward()
    loss.backward()


def drift(use_reentrant, write, scale=None):
    net, scale = nn.Linear(3, 3), torch.ones(3) if scale is None else scale
    x = leaf(2, 3)
    y = checkpoint(lambda h: net(h).tanh() * scale, x, use_reentrant=use_reentrant)
    write(scale)
    y.sum().backward()
    return [x.grad]


def drift_by_a_counted_write():
    return drift(False, lambda scale: scale.mul_(2))


def drift_by_a_counted_write_reentrant():
    return drift(True, lambda scale: scale.mul_(2))


def drift_by_data():
    return drift(False, lambda scale: scale.data.mul_(2))


def drift_by_data_reentrant():
    return drift(True, lambda scale: scale.data.mul_(2))


def drift_by_a_counter(use_reentrant=False):
    net, at = nn.Linear(3, 3), {"step": 1.0}
    x = leaf(2, 3)
    y = checkpoint(lambda h: net(h).tanh() * at["step"], x, use_reentrant=use_reentrant)
    at["step"] = 2.0
    y.square().sum().backward()
    return [x.grad]


def drift_by_a_counter_reentrant():
    return drift_by_a_counter(True)


def kept_by_a_policy_and_scaled():
    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.bmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def region(h):
        scores = h @ h.transpose(-2, -1)
        scores.mul_(0.5)
        return scores.softmax(-1) @ h

    contexts = partial(create_selective_checkpoint_contexts, policy)
    x = leaf(1, 2, 3, 3)
    checkpoint(region, x, use_reentrant=False, context_fn=contexts).square().sum().backward()
    return [x.grad]


def written_under_hooks_of_the_program():
    """The saved memory is gone when the backward has ended."""
    x = leaf(2, 3)

    def loss():
        gate = x.sigmoid()
        gate *= 2
        return (gate * 3).sum()

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        total = loss()
    total.backward()
    return [x.grad]


def refused_leaf():
    w = leaf(3)
    w.mul_(2)


def refused_overlap():
    a = torch.ones(3).expand(2, 3)
    a.add_(1)


# -- writes while backward runs ----------------------------------------------------------------------------------------


def written_in_a_hook(write):
    x = leaf(3)
    y = x.exp()
    z = y * 2
    z.register_hook(lambda gradient: write(y))
    z.sum().backward()
    return [x.grad]


def data_write_in_a_hook():
    return written_in_a_hook(lambda y: y.data.mul_(2) and None)


def counted_write_in_a_hook():
    def write(y):
        with torch.no_grad():
            y.mul_(2)

    return written_in_a_hook(write)


def untracked_write_in_a_hook():
    """In whose thread more nodes were made than in the one that uses what it wrote."""
    more_nodes_elsewhere()
    x, w = leaf(3), leaf(3)
    y, a = x.exp(), w * 2

    def hook(gradient):
        with torch.no_grad():
            a.mul_(3)

    y.register_hook(hook)
    y.sum().backward()
    (a * 5).sum().backward()
    return [w.grad]


def assignment_in_a_hook():
    x, w = leaf(3), leaf(3)
    y = x * w
    z = y * 2

    def hook(gradient):
        w.data = torch.zeros_like(w)

    z.register_hook(hook)
    z.sum().backward()
    return [x.grad, w.grad]


def step_in_a_hook():
    first, last = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    x = leaf(2, 3)
    first.weight.grad, first.bias.grad = torch.ones(3, 3), torch.ones(3)
    last.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    last(first(x)).sum().backward()
    return [x.grad]


def write_in_a_custom_backward():
    class Scratch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return x.data.mul_(2) * gradient

    x = leaf(3)
    Scratch.apply(x.sigmoid()).sum().backward()
    return [x.grad]


def gradient_written_in_a_hook():
    x = leaf(3)
    y = x * 1
    y.register_hook(lambda gradient: gradient.mul_(2))
    (x * 3 + y).sum().backward()
    return [x.grad]


def gradient_written_with_the_same_bytes():
    x = leaf(3)
    y = x * 1
    y.register_hook(lambda gradient: gradient.mul_(1) and None)
    (x * 3 + y).sum().backward()
    return [x.grad]


def gradient_written_in_a_custom_backward():
    class Loud(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.mul_(2)

    x = leaf(3)
    (x * 1 + Loud.apply(x * 1)).sum().backward()
    return [x.grad]


def gradient_that_a_sum_shares_written_in_a_custom_backward():
    class Loud(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.mul_(2) * 1

    x = leaf(3)
    (x.exp() + Loud.apply(x * 1)).square().sum().backward()
    return [x.grad]


def error_in_a_hook():
    x = leaf(3)
    y = x.exp()

    def hook(gradient):
        raise ValueError("of the program's own")

    y.register_hook(hook)
    y.sum().backward()


def stale_save_after_an_error_in_a_hook():
    with pytest.raises(ValueError, match="own"):
        error_in_a_hook()
    return test_never_wrong.sigmoid_then_add()


# -- backward in backward, and graphs of it ----------------------------------------------------------------------------


def written_after_a_double_backward(write):
    x = leaf(3)
    y = x * 1
    (first,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
    write(y)
    first.sum().backward()
    return [x.grad]


def counted_write_after_a_double_backward():
    return written_after_a_double_backward(lambda y: y.add_(1))


def data_write_after_a_double_backward():
    return written_after_a_double_backward(lambda y: y.data.add_(1))


def write_after_a_double_backward_and_more_nodes_elsewhere():
    more_nodes_elsewhere()
    return counted_write_after_a_double_backward()


def result_written_after_a_double_backward():
    x = leaf(3)
    y = x.tanh()
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    y.data.mul_(0.5)
    first.sum().backward()
    return [x.grad]


def backward_in_a_hook():
    x, inner = leaf(3), leaf(3)
    y = x.exp()

    def hook(gradient):
        with torch.enable_grad():
            z = inner.exp()
            z.data.mul_(2)
            z.sum().backward()

    y.register_hook(hook)
    y.square().sum().backward()
    return [x.grad, inner.grad]


def stale_save_in_a_backward_in_a_hook():
    x, inner = leaf(3), leaf(3)
    y = x.exp()

    def hook(gradient):
        with torch.enable_grad():
            z = inner.exp()
            z.add_(1)
            z.sum().backward()

    y.register_hook(hook)
    y.square().sum().backward()


def read_after_a_backward_in_a_hook():
    """What the outer call reads once the inner one has ended is still the outer one's."""
    x, inner = leaf(3), leaf(3)
    y = x.exp()
    z = y * 2

    def hook(gradient):
        with torch.enable_grad():
            inner.exp().sum().backward()
        y.data.mul_(2)

    z.register_hook(hook)
    z.sum().backward()
    return [x.grad, inner.grad]


def regions_in_regions():
    scale = torch.ones(3)
    x = leaf(3)

    def outer(h):
        return checkpoint(lambda t: (t * scale).exp(), h * 2, use_reentrant=True) * 3

    y = checkpoint(outer, x, use_reentrant=True)
    scale.mul_(2)
    y.sum().backward()
    return [x.grad]


def on_both_sides():
    """A clobber where the graph lies on the CPU and one where it lies on the device."""
    x = torch.ones(3, device="cpu", requires_grad=True)
    near = x.exp()
    far = near.to(torch.get_default_device(), copy=True).sin().exp()
    near.data.mul_(2)
    far.data.mul_(2)
    far.cpu().sum().backward()
    return [x.grad]


def in_another_thread():
    results = []
    thread = threading.Thread(target=lambda: results.extend(data_write()))
    thread.start()
    thread.join()
    return results


def attribute_read():
    x = leaf(3)
    y = x.exp()
    y.data.add_(1)
    return [y.grad_fn._saved_result]


def in_place_activation():
    net = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.ReLU(inplace=True), nn.Linear(3, 1))
    net(leaf(2, 3)).sum().backward()


def classified():
    x = leaf(3, 4)
    y = x.softmax(-1)
    z = F.nll_loss(y.log(), torch.tensor([0, 1, 2]))
    y.data[0].fill_(0.5)
    z.backward()
    return [x.grad]


OWN = [
    program
    for program in list(vars().values())
    if getattr(program, "__module__", None) == __name__
    and not program.__code__.co_argcount
    and program.__code__.co_name not in ("leaf", "more_nodes_elsewhere")
]
ALL = OWN + [one for one in test_never_wrong.RAISING if one is not test_never_wrong.by_set]


@pytest.mark.parametrize("mode", SEEING)
@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_the_findings_are_those_of_the_cpu(program, mode, other_device):
    here, there = run(program, "cpu", mode), run(program, other_device, mode)
    assert there.words == here.words
    assert there.story == here.story
    assert there.lost == ()


def test_a_gradient_that_is_shared_is_found_written(device):
    found = run(gradient_that_a_sum_shares_written_in_a_custom_backward, device, "versions").findings
    assert [one.code for one in found] == ["NC206"]


@pytest.mark.parametrize("mode", ["install", *SEEING[:2]])
@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_what_comes_of_it_is_what_comes_of_it_bare(program, mode, device):
    bare, seen = run(program, device), run(program, device, mode)
    if program is not test_never_wrong.by_reading_a_saved_attribute:  # another producer is named there, on the CPU too
        assert seen.words == bare.words
    assert seen.bits == bare.bits


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_preserve_does_what_it_does_on_the_cpu(program, other_device):
    here, there = run(program, "cpu", "preserve"), run(program, other_device, "preserve")
    assert there.words == here.words
    assert len(there.tensors) == len(here.tensors)
    for one, other in zip(here.tensors, there.tensors, strict=True) if other_device == sham.NAME else ():
        # Other devices draw other random numbers.
        torch.testing.assert_close(other.cpu(), one.cpu(), rtol=1e-4, atol=1e-5)
