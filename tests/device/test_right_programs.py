"""Training programs that are right give the same bits on a device, however noclobber is there, and nothing is found."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.device import sham
from tests.device.places import MODES, SEEING, run
from tests.observe import programs


def mixed_precision():
    """Autocast, a gradient scaler, clipping, an overflow in between."""
    kind = torch.get_default_device().type
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler(kind, init_scale=2.0**8, growth_interval=2)
    dtype = torch.float16 if kind == "cuda" else torch.bfloat16
    for step in range(4):
        optimizer.zero_grad()
        x = torch.randn(3, 4) * (1e38 if step == 1 else 1)
        with torch.autocast(kind, dtype=dtype):
            loss = F.mse_loss(net(x).float(), torch.zeros(3, 2))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [*(p.detach() for p in net.parameters()), torch.tensor(scaler.get_scale())]


def handed_over_by_a_thread():
    """Batches made in another thread, in one buffer of the CPU that is used again, and copied to the device."""
    import queue
    import threading

    device = torch.get_default_device()
    batches, free = queue.Queue(2), queue.Queue()
    buffer = torch.empty(2, 3, 4, device="cpu")
    for slot in range(2):
        free.put(slot)

    def load():
        for number in range(6):
            slot = free.get()
            buffer[slot].copy_(torch.arange(12.0, device="cpu").view(3, 4) * (number + 1) / 30)
            batches.put(slot)

    worker = threading.Thread(target=load)
    worker.start()
    net = nn.Linear(4, 2)
    for _ in range(6):
        slot = batches.get()
        x = (
            torch.empty(3, 4).copy_(buffer[slot], non_blocking=True)
            if device.type == "cpu"
            else buffer[slot].to(device)
        )
        free.put(slot)
        net(x).sigmoid().sum().backward()
    worker.join()
    return [p.grad for p in net.parameters()]


def batches_of_a_loader():
    data = torch.utils.data.TensorDataset(torch.arange(24.0, device="cpu").view(6, 4), torch.arange(6, device="cpu"))
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
    where = torch.get_default_device()
    with torch.device("cpu"):
        loader = iter(torch.utils.data.DataLoader(data, batch_size=3))
    for x, y in loader:
        F.cross_entropy(net(x.to(where)), y.to(where)).backward()
    return [*(p.grad for p in net.parameters()), *net.buffers()]


def over_two_devices():
    """A graph whose ends lie on the CPU and whose middle lies on the device: two threads run its backward."""
    first, last = nn.Linear(4, 4, device="cpu"), nn.Linear(4, 1, device="cpu")
    middle = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = torch.randn(3, 4, device="cpu")
    last(middle(first(x).to(torch.get_default_device())).cpu()).square().sum().backward()
    return [p.grad.cpu() for net in (first, middle, last) for p in net.parameters()]


def steps_in_backward():
    """Each parameter is stepped, and its gradient given back, as soon as that is there."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net[2:].parameters()}

    def step(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        net(torch.randn(2, 3)).sum().backward()
    return [p.detach() for p in net.parameters()]


def gradient_penalty():
    net = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        x = torch.randn(2, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        optimizer.zero_grad()
        (slope.norm(dim=1) - 1).square().sum().backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def transforms_in_a_hook():
    """torch.func within a hook, where saved-tensor hooks are forbidden."""
    x = torch.randn(3, requires_grad=True)
    slopes = []
    y = x.exp()
    y.register_hook(lambda g: slopes.append(torch.func.grad(lambda t: t.sin().sum())(g)))
    (y * 2).sum().backward()
    return [x.grad, *slopes]


def hooks_with_hooks():
    """Hooks on saves, pushed and popped within a hook; a graph that is made and used there."""
    x = torch.randn(3, requires_grad=True)
    inner = []

    def hook(gradient):
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            t = gradient.detach().requires_grad_()
            (t.sin() * t).sum().backward()
        inner.append(t.grad)

    y = x.exp()
    y.register_hook(hook)
    y.square().sum().backward()
    return [x.grad, *inner]


def recomputed_by_hand():
    """A custom Function that runs its forward anew in backward, as checkpoints of old do."""

    class Anew(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp().sin()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                y = x.exp()
                z = y.sin()
            return torch.autograd.grad(z, x, gradient)

    x = torch.randn(3, requires_grad=True)
    Anew.apply(x * 2).sum().backward()
    return [x.grad]


def numbers_first():
    """Operators that PyTorch makes of others, to which it gives the number as a tensor on the device."""
    x = torch.randn(3, 4, requires_grad=True)
    kept = torch.isin(2, torch.arange(3))
    y = (2 ** x.tanh() + torch.pow(3.0, x.sigmoid()) + torch.float_power(2, x)).float() * kept
    y.mul_(2).sum().backward()
    return [x.grad, y]


def checkpointed_attention():
    """On CUDA an attention keeps where it drew random numbers, also if it draws none."""
    x = torch.randn(2, 2, 8, 16, requires_grad=True)

    def region(h):
        return F.scaled_dot_product_attention(h, h * 2, h * 3, is_causal=True)

    h = x
    for _ in range(3):
        torch.empty(64, dtype=torch.int64, device="cpu").random_()
        h = checkpoint(region, h, use_reentrant=False)
    h.square().mean().backward()
    return [x.grad]


def checkpointed_view():
    """A reentrant region that returns memory from outside."""
    x = torch.randn(2, 4, requires_grad=True)
    y = checkpoint(lambda h: h.flatten(), x * 2, use_reentrant=True)
    (y * y).sum().backward()
    return [x.grad]


def recurrent_dropout():
    """An LSTM with dropout over several steps. On CUDA all of them share the state of the random numbers."""
    net = nn.LSTM(4, 8, num_layers=2, dropout=0.5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = None
    for _ in range(3):
        first, state = net(torch.randn(5, 3, 4), state)
        second, state = net(torch.randn(5, 3, 4), state)
        optimizer.zero_grad()
        (first.square().mean() + second.square().mean()).backward()
        optimizer.step()
        state = tuple(one.detach() for one in state)
    return [p.detach() for p in net.parameters()]


OWN = [
    mixed_precision,
    handed_over_by_a_thread,
    batches_of_a_loader,
    over_two_devices,
    steps_in_backward,
    gradient_penalty,
    transforms_in_a_hook,
    hooks_with_hooks,
    recomputed_by_hand,
    numbers_first,
    recurrent_dropout,
    checkpointed_attention,
    checkpointed_view,
]
ELSEWHERE = [programs.sparse_embedding, programs.fake_tensors]
"""What the sham device lacks, and what is nowhere."""
ALL = [one for one in programs.RIGHT if one not in ELSEWHERE] + OWN


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("bare", "versions")])
@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_the_bits_are_the_same(program, mode, device):
    bare, seen = run(program, device), run(program, device, mode)
    assert bare.error is None, bare.error
    assert seen.error is None, seen.error
    assert seen.bits == bare.bits
    if mode in SEEING:
        assert seen.story == []
        assert seen.lost == ()


OTHERWISE = [
    mixed_precision,
    over_two_devices,
    recurrent_dropout,
    checkpointed_attention,
    programs.attention,
    programs.autocast_and_complex,
]
"""The sham device has its own casts, draws for a dropout in its own way, and computes attention from its parts."""


@pytest.mark.parametrize("other_device", [sham.NAME])  # which draws the random numbers of the CPU
@pytest.mark.parametrize("program", [one for one in ALL if one not in OTHERWISE], ids=lambda program: program.__name__)
def test_the_values_are_those_of_the_cpu(program, other_device):
    here, there = run(program, "cpu"), run(program, other_device)
    assert len(here.tensors) == len(there.tensors)
    for one, other in zip(here.tensors, there.tensors, strict=True):
        torch.testing.assert_close(other.cpu(), one.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_no_more_goes_unseen_than_on_the_cpu(program, other_device):
    here, there = run(program, "cpu", "contents"), run(program, other_device, "contents")
    assert set(there.unseen) <= set(here.unseen)
