"""Training programs that are right: run bare and watched, every value must be the same bit for bit."""

import threading

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def _train(net, make_loss, optimizer, steps=3):
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = make_loss(net)
        loss.backward()
        optimizer.step()
        values.append(loss.detach().clone())
    return [*values, *(p.detach().clone() for p in net.parameters()), *(p.grad.clone() for p in net.parameters())]


def mlp_adamw():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3, inplace=True), nn.ReLU(inplace=True), nn.Linear(8, 1))
    x = torch.randn(5, 4)
    return _train(net, lambda net: net(x).square().mean(), torch.optim.AdamW(net.parameters()))


def residual_batch_norm_sgd():
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 2))
    x = torch.randn(2, 1, 6, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=True)
    return _train(net, lambda net: F.cross_entropy(net(x), torch.tensor([0, 1])), optimizer)


def lstm_fused_adam():
    net = nn.LSTM(3, 4, batch_first=True)
    x = torch.randn(2, 5, 3)
    return _train(net, lambda net: net(x)[0].sum(), torch.optim.Adam(net.parameters(), fused=True))


def attention():
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    x = torch.randn(2, 3, 8)
    return _train(net, lambda net: net(x).square().mean(), torch.optim.Adagrad(net.parameters()))


def lbfgs_closure():
    net = nn.Linear(3, 1)
    x = torch.randn(6, 3)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return [p.detach().clone() for p in net.parameters()]


def double_backward():
    x = torch.randn(4, requires_grad=True)
    (g,) = torch.autograd.grad((x.tanh() ** 3).sum(), x, create_graph=True)
    g.square().sum().backward()
    return [g.detach(), x.grad]


def checkpointed(use_reentrant):
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    x = torch.randn(2, 3, requires_grad=True)
    checkpoint(net, x, use_reentrant=use_reentrant).sum().backward()
    return [x.grad, *(p.grad for p in net.parameters())]


def checkpoint_reentrant():
    return checkpointed(True)


def checkpoint_not_reentrant():
    return checkpointed(False)


def saved_on_cpu():
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = x.exp().sin()
    y.sum().backward()
    return [x.grad]


def functional_transforms():
    w = torch.randn(3, 3)
    f = lambda x: (torch.tanh(w @ x) ** 2).sum()  # noqa: E731
    x = torch.randn(3)
    return [torch.func.grad(f)(x), torch.func.hessian(f)(x), torch.vmap(torch.func.grad(f))(torch.randn(4, 3))]


def forward_derivative():
    return list(torch.func.jvp(lambda x: torch.softmax(x.clone().mul_(2), 0), (torch.randn(3),), (torch.ones(3),)))


class Scaled(torch.autograd.Function):
    """Compares identities in backward, as code that keeps gradients on parameters does."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        ctx.weight_id = id(weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        ctx.same = id(weight) == ctx.weight_id
        return g * weight * (2 if ctx.same else 1), (g * x).sum(0)


def custom_function():
    weight = nn.Parameter(torch.randn(3))
    x = torch.randn(2, 3, requires_grad=True)
    Scaled.apply(x, weight).sum().backward()
    return [x.grad, weight.grad]


def fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        net = nn.Linear(3, 2)
        y = net(torch.empty(4, 3)).relu_()
        y.sum().backward()
    return [torch.tensor(list(net.weight.grad.shape))]


def autocast_and_complex():
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    (x * x.conj()).real.exp().sum().backward()
    net = nn.Linear(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.randn(2, 3)).float().sum().backward()
    return [torch.view_as_real(x.grad), net.weight.grad]


def sparse_embedding():
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 3, 3])).square().sum().backward()
    return [table.weight.grad.to_dense()]


def threads():
    results = {}

    def work(seed):
        x = torch.full((3,), float(seed), requires_grad=True)
        y = x.clone()
        y.mul_(2)
        y.exp().sum().backward()
        results[seed] = x.grad

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [results[seed] for seed in sorted(results)]


def data_replaced_between_steps():
    w = nn.Parameter(torch.ones(3))
    for _ in range(2):
        (w.exp() * w).sum().backward()
        w.data = w.data - 0.1 * w.grad
    return [w.detach().clone(), w.grad]


def data_assigned_to_what_has_it():
    w = nn.Parameter(torch.ones(3))
    loss = (w.exp() * w).sum()
    w.data = w.data.float()
    loss.backward()
    return [w.grad]


def silently_wrong_data_assignment():
    w = torch.ones(3, requires_grad=True)
    loss = (w**2).sum()
    w.data = torch.zeros(3)
    loss.backward()
    return [w.grad]


def silently_wrong_data_write():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.data.zero_()
    y.sum().backward()
    return [x.grad]


def gradient_accumulation_with_clipping():
    net = nn.Linear(4, 2)
    for _ in range(3):
        net(torch.randn(2, 4)).square().sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    return [p.grad for p in net.parameters()]


RIGHT = [
    mlp_adamw,
    residual_batch_norm_sgd,
    lstm_fused_adam,
    attention,
    lbfgs_closure,
    double_backward,
    checkpoint_reentrant,
    checkpoint_not_reentrant,
    saved_on_cpu,
    functional_transforms,
    forward_derivative,
    custom_function,
    fake_tensors,
    autocast_and_complex,
    sparse_embedding,
    threads,
    data_replaced_between_steps,
    data_assigned_to_what_has_it,
    gradient_accumulation_with_clipping,
]
SILENT = [silently_wrong_data_assignment, silently_wrong_data_write]
