"""Small programs in which every way of going wrong occurs; together they make most of observe/ run."""

import threading

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

X = torch.tensor([1.0, 2.0, 3.0])


def leaf(value=X):
    return value.clone().requires_grad_()


def stale_save():
    x = leaf()
    y = x.sigmoid()
    y += 1
    y.sum().backward()
    return [x.grad]


def stale_view_of_many():
    x = leaf()
    first, _, _ = (x * 1).unbind()
    loss = first * first
    first.detach().mul_(2)
    loss.backward()
    return [x.grad]


def detached_in_place():
    x = leaf()
    y = x * 2
    z = y * y
    y.detach_()
    z.sum().backward()
    return [x.grad]


def detached_in_place_beside_forward_hooks():
    x = leaf()
    y = x * 2
    nn.ReLU().register_forward_hook(lambda module, given, result: None)
    z = y * y
    y.detach_()
    z.sum().backward()
    return [x.grad]


def refused():
    leaf().add_(1)


def freed_twice():
    loss = leaf().exp().sum()
    loss.backward()
    loss.backward()


def step_before_backward():
    net = nn.Linear(3, 3, bias=False)
    nn.init.ones_(net.weight)
    optimizer = torch.optim.Adam(net.parameters())
    h = leaf()
    loss = net(net(h)).sum()
    for one in net.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()
    loss.backward()
    return [h.grad]


def by_numpy():
    buffer = np.ones(3, dtype=np.float32)
    x, w = leaf(), torch.from_numpy(buffer)
    y = x * w
    buffer[:] = 5
    y.sum().backward()
    return [x.grad]


def by_array_of_a_save():
    x = leaf()
    y = x.exp()
    array = y.detach().numpy()
    array[1] = 0
    y.sum().backward()
    return [x.grad]


def by_address_and_capsule():
    x, w = leaf(), torch.ones(3)
    y = x * w
    w.data_ptr()
    torch.from_dlpack(w).mul_(3)
    torch.utils.dlpack.to_dlpack(w)
    w.untyped_storage().fill_(1)
    y.sum().backward()
    return [x.grad]


def through_data():
    x, w = leaf(), torch.ones(3)
    y = x * w * x.exp()
    w.data.mul_(3)
    y.sum().backward()
    return [x.grad]


def assigned():
    x, y = leaf(), leaf()
    loss = ((x * 1) ** 2).sum() + (y**2).sum()
    x.data = torch.zeros(3)
    y.data = torch.zeros(3, 3).t()[0]
    loss.backward()
    return [x.grad, y.grad]


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.w, ctx.all = w, [w, 2]
        ctx.save_for_backward(x)
        return x * w

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        ctx.read = True
        del ctx.read
        return g * ctx.w * ctx.all[0], (g * x).sum()


def on_ctx():
    x, w = leaf(), torch.ones(3)
    y = Keeps.apply(x, w)
    w.mul_(4)
    y.sum().backward()
    return [x.grad]


class Overwrites(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        x.data.mul_(2)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        g.mul_(2)
        return g * ctx.saved_tensors[0]


def undeclared_and_spoiled_gradient():
    x = leaf()
    y = x * 1
    z = y.exp()
    ((y * 3) + Overwrites.apply(y) + z).sum().backward()
    return [x.grad]


def hooks_that_write():
    x = leaf()
    y = x * 2
    y.register_hook(lambda g: g.mul_(3))
    net = nn.Linear(3, 3)
    nn.init.ones_(net.weight)
    net.register_full_backward_hook(lambda module, given, out: (given[0].mul_(2),))
    (y + x + net(y).sum()).sum().backward()
    torch.autograd.grad((x * y).sum(), x, retain_graph=True)
    return [x.grad]


def hook_lost_and_input_overwritten():
    x = leaf()
    whole = x * 1
    view = whole[:2]
    view.register_hook(lambda g: g * 2)
    whole.mul_(3)
    y = x * 2
    torch.relu_(y)
    return [*torch.autograd.grad(whole.sum() + view.sum(), x), *torch.autograd.grad(y.sum(), y)]


def kept_by_a_hook():
    net, kept = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)), []
    handle = net[0].register_forward_hook(lambda module, inputs, output: kept.append(output))
    y = net(leaf() * -2)
    handle.remove()
    return [*torch.autograd.grad(y.sum(), kept[0])]


def untracked():
    x = leaf()
    y = x * 2
    with torch.no_grad():
        y[0] = 7
    z = y.exp()
    w = leaf()
    w.data.copy_(z)
    (z + w).sum().backward()
    return [x.grad, w.grad]


def own_saved_hooks():
    x = leaf()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = x.exp()
    with torch.autograd.graph.save_on_cpu():
        z = x.sin()
    y.add_(1)
    (y.sum() + z.sum()).backward()
    return [x.grad]


def memory_of_a_pack_hook():
    x, slot = leaf(), torch.empty(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (slot.copy_(t), 1), lambda kept: kept[0]):
        y = x.exp()
    slot.zero_()
    y.sum().backward()
    return [x.grad]


class Puts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, row, at):
        ctx.at = at
        out.numpy()[at] = row.numpy()
        return out

    @staticmethod
    def backward(ctx, g):
        return None, g[ctx.at].clone(), None


def memory_of_an_earlier_result():
    x, out = leaf(), torch.zeros(2, 3)
    first = Puts.apply(out, x * 2, 0)
    Puts.apply(out, x * 3, 1)
    (first.sin().sum() + first[1].sum()).backward()
    return [x.grad]


def stale_cast():
    w = leaf()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            w.grad = None
            (w @ torch.eye(3)).float().square().sum().backward()
            torch.optim.SGD([w], lr=1.0).step()
        w.data.mul_(3)
        y = w @ torch.eye(3)
    y.float().sum().backward()
    return [w.grad]


def region(use_reentrant):
    x, w = leaf(), torch.ones(3)

    def run(x):
        return (x * w).sigmoid() * w

    loss = checkpoint(run, x * 1, use_reentrant=use_reentrant).sum()
    w.mul_(3)
    loss.backward()
    return [x.grad]


def region_drifts():
    return region(False)


def region_drifts_reentrant():
    return region(True)


def region_of_detached_argument():
    x = leaf()
    y = x * 1
    loss = checkpoint(lambda y: y.exp(), y, use_reentrant=False).sum()
    y.detach_()
    loss.backward()


def double_backward_of_what_was_given_other_memory():
    x = leaf()
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    x.data = X * 2
    g.sum().backward()
    return [x.grad]


@torch.library.custom_op("noclobber_planted::lies", mutates_args=())
def lies(x: torch.Tensor) -> torch.Tensor:
    x.detach().data.mul_(2)
    return x + 1


def own_operator():
    x, w = leaf(), torch.ones(3)
    y = x * w
    lies(w)
    y.sum().backward()
    return [x.grad]


def statistics():
    norm = nn.BatchNorm1d(3, affine=False)
    x = leaf(torch.arange(12.0).reshape(4, 3))
    norm.eval()
    y = norm(x)
    norm.train()
    norm(x.detach())
    y.square().sum().backward()
    return [x.grad]


def layouts():
    x = leaf(torch.arange(24.0).reshape(4, 6))
    y = (x * x).t()[1:4].exp() + (x.expand(2, 4, 6)[:, ::2, ::3] * 2).sum()
    y.sum().backward()
    large = torch.ones(1 << 15, requires_grad=True)
    (large * large.exp() * large.t()).sum().backward()
    torch.ones(2).to_mkldnn().mul_(2)
    return [x.grad, large.grad]


def in_threads():
    found = []

    def work():
        x, w = leaf(), torch.ones(3)
        y = x * w
        w.data.mul_(2)
        y.sum().backward()
        found.append(x.grad)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for one in workers:
        one.start()
        one.join()
    return found


def transforms():
    x = leaf()
    return [torch.func.grad(lambda x: x.exp().sum())(X), *torch.autograd.functional.vjp(lambda x: x**2, x, X)]


def foreach_fused_and_preserved_versions():
    p, q = leaf(), leaf()
    y = (p * q).sum()
    with torch.no_grad():
        torch._foreach_mul_([p.detach(), q.detach()], 2)
    y2 = (p * q).sum()
    p.grad = torch.ones(3)
    with torch.autograd._unsafe_preserve_version_counter(q), torch.no_grad():
        q.add_(1)
    y2.backward()
    return [p.grad, y.detach()]


WRONGS = [
    stale_save,
    stale_view_of_many,
    detached_in_place,
    detached_in_place_beside_forward_hooks,
    refused,
    freed_twice,
    step_before_backward,
    by_numpy,
    by_array_of_a_save,
    by_address_and_capsule,
    through_data,
    assigned,
    on_ctx,
    undeclared_and_spoiled_gradient,
    hooks_that_write,
    hook_lost_and_input_overwritten,
    kept_by_a_hook,
    untracked,
    own_saved_hooks,
    memory_of_a_pack_hook,
    memory_of_an_earlier_result,
    stale_cast,
    region_drifts,
    region_drifts_reentrant,
    region_of_detached_argument,
    double_backward_of_what_was_given_other_memory,
    own_operator,
    statistics,
    layouts,
    in_threads,
    transforms,
    foreach_fused_and_preserved_versions,
]
