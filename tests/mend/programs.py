"""Programs whose finding has a change that is sound, and programs that look like them and have none.

Each is a whole file. `run()` gives the gradients. Where PyTorch refuses a program there are no right gradients to have
from the program itself: `RIGHT` in its text computes them another way.
"""

import torch
from torch import nn
from torch.nn import functional as F

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
w = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
"""
END = """
def gradients():
    return [x.grad, w.grad]
"""

NETS = """
d, g = nn.Linear(4, 1, dtype=torch.float64), nn.Linear(4, 4, dtype=torch.float64)
"""
STAGES = """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4, dtype=torch.float64)
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
    @torch.no_grad()
    def update(self, h):
        self.mean.lerp_(h.mean(0), 0.3)
    def forward(self, h):
        self.update(h)
        return torch.tanh(self.lin(h - self.mean))
stages = nn.ModuleList(Stage() for _ in range(2))
"""
HARD = """
def hard(out):
    answer = out.data
    answer[answer >= 0.5] = 1
    return answer.mean().item()
"""
# `gradients` below reads x.grad and w.grad. As they are set, these are not taken for gradients that the steps use.
STEPS = """
def run():
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
    fake = g(x.detach())
    loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
"""
TURNS = """
def run():
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
    for _ in range(2):
        fake = g(x.detach())
        loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
"""
SIGNS = """
class Signs:
    def __init__(self, net):
        self.weights = list(net.parameters())
        self.kept = [one.detach().clone() for one in self.weights]
    def put(self):
        for one in self.weights:
            one.data.copy_(one.data.sign())
    def restore(self):
        for kept, one in zip(self.kept, self.weights):
            one.data.copy_(kept)
net = nn.Linear(4, 4, bias=False, dtype=torch.float64)
signs = Signs(net)
"""
OPTIMIZERS = """
opt_d, opt_g = torch.optim.SGD(d.parameters(), 0.1), torch.optim.SGD(g.parameters(), 0.1)
"""


def _gradients(x, w, loss):
    return torch.autograd.grad(loss(x @ w), (x, w))


def _by_slope_at(x, w):
    at = 1 + x.detach()
    at = torch.cat([torch.full_like(at[:1], 0.5), at[1:-1], torch.full_like(at[:1], 2.0)]).requires_grad_()
    (slope,) = torch.autograd.grad((at @ w).square().sum(), at, create_graph=True)
    return torch.autograd.grad(slope.square().sum(), w)[0]


def _by_mean(x):
    torch.manual_seed(0)
    torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    _, *others = [nn.Linear(4, 4, dtype=torch.float64) for _ in range(3)]
    weight, bias = (sum(getattr(one, name) for one in others) / 2 for name in ("weight", "bias"))
    return torch.autograd.grad(F.linear(x, weight, bias).square().sum(), x)[0]


def _of_product(x, w, gradient):
    """The gradients of `x` and `w`, from that of `x @ w`."""
    return [gradient @ w.T, x.T @ gradient]


def _of_two_halves(x, w):
    """The gradients of tanh of twice the left half of `x @ w` times tanh of its right half, by hand."""
    h = (x @ w).detach()
    a, b = (2 * h[:, :2]).tanh(), h[:, 2:].tanh()
    return _of_product(x, w, torch.cat((2 * b * (1 - a * a), a * (1 - b * b)), dim=1))


def _by_two_steps_and_lengths(x, w):
    """The gradient of `x` in two turns of a layer, and its weights, each row brought back to length one."""
    first = F.normalize(w - 0.1 * x.sum(0), dim=1)
    return [(w + first).sum(0).expand(3, 4), F.normalize(first - 0.1 * x.sum(0), dim=1)]


def _of_first_column(x, w):
    """The gradients of the sum of the first column of `x @ w`."""
    first = torch.eye(w.shape[1], dtype=w.dtype)[:1]
    return [torch.ones_like(x[:, :1]) @ first @ w.T, x.sum(0, keepdim=True).T @ first]


def _squared(x):
    """The squares of 0, 1 and 2, one a row."""
    return x.new_tensor([[0.0], [1.0], [4.0]])


def _divided(x, w):
    """The gradients of tanh of the left half of `x @ w` times sigmoid of its right half, by hand."""
    h = (x @ w).detach()
    a, b = h[:, :2].tanh(), h[:, 2:].sigmoid()
    g = h.clone()
    g[:, :2], g[:, 2:] = b * (1 - a * a), a * b * (1 - b)
    return [g @ w.t(), x.t() @ g]


def _of_both(x, w):
    """The gradients of the mean square of tanh of `x @ w`, and twice the sum of its sigmoid, by hand."""
    h = (x @ w).tanh().detach()
    s = h.sigmoid()
    g = (h / 6 + 2 * s * (1 - s)) * (1 - h * h)
    return [g @ w.t(), x.t() @ g]


def _twice_normed(h):
    """Minus the logarithm of the sum of the exponentials of each row, twice."""
    f = -torch.logsumexp(h, 1)
    return f - torch.logsumexp(h + f.unsqueeze(1), 1)


def _descended(x, w):
    """`x` and `w` after a step by the gradients of the sum of `x @ w`."""
    return x - 0.1 * w.sum(1).expand(3, 4), w - 0.1 * x.sum(0)[:, None].expand(4, 4)


def _damped(x, w):
    """The gradients of the sum of the squares of the sine plus the cosine of `x @ w`, half of it through the sine."""
    h = (x @ w).detach()
    g = 2 * (h.sin() + h.cos()) * (0.5 * h.cos() - h.sin())
    return [g @ w.t(), x.t() @ g]


def _of_module(x, w):
    """The gradients of the sum of the squares of the sine plus the softplus of `x @ w`, half of it through that."""
    h = (x @ w).detach()
    g = 2 * (h.sin() + F.softplus(h)) * (h.cos() + 0.5 * h.sigmoid())
    return [g @ w.t(), x.t() @ g]


def _slopes(x, w):
    """The gradients of the sum of `x @ w`."""
    return w.sum(1).expand(3, 4), x.sum(0)[:, None].expand(4, 4)


def _moved(x, w):
    """`x` and `w` after they decay and take a step by these gradients."""
    return [0.9 * one - 0.1 * g for g, one in zip(_slopes(x, w), (x, w), strict=True)]


def _by_two_turns(x):
    """The gradient of the second step by two turns of a cell, whose state goes on without its graph."""
    torch.manual_seed(0)
    torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    cell = torch.nn.RNNCell(4, 4, dtype=torch.float64)
    opt, h = torch.optim.SGD(cell.parameters(), 0.1), x
    for _ in range(2):
        opt.zero_grad()
        first = cell(x, h.detach())
        h = cell(x, first)
        (first.square().sum() + h.square().sum()).backward()
        opt.step()
    return cell.weight_hh.grad


def _by_one_turn_of_rnn(x):
    """The gradient of the third step of a cell, whose state goes on without its graph."""
    torch.manual_seed(0)
    torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    cell = torch.nn.RNNCell(4, 4, dtype=torch.float64)
    opt, h = torch.optim.SGD(cell.parameters(), 0.1), x
    for _ in range(3):
        opt.zero_grad()
        h = cell(x, h.detach())
        h.square().sum().backward()
        opt.step()
    return cell.weight_hh.grad


def _attacked(x, w):
    """The gradients of the sum of (x + delta) w, where delta was moved by two steps."""
    delta = torch.zeros_like(x)
    for _ in range(2):
        slope = (1 - ((x + delta) @ w).tanh().square()) @ w.T
        delta = (delta + 0.1 * slope.sign()).clamp(-0.15, 0.15)
    ones = torch.ones_like(x)
    return [ones @ w.T, (x + delta).T @ ones]


def _by_one_turn(x):
    """The gradient of the third step of an LSTM cell, whose state goes on without its graph."""
    torch.manual_seed(0)
    torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    cell = torch.nn.LSTMCell(4, 4, dtype=torch.float64)
    opt, state = torch.optim.SGD(cell.parameters(), 0.1), (x, x)
    for _ in range(3):
        opt.zero_grad()
        state = cell(x, [one.detach() for one in state])
        state[0].square().sum().backward()
        opt.step()
    return cell.weight_hh.grad[:4]


def _of_rows(h):
    """The gradient of the sum of squares of 3 (h - mean(h) / 2), with the mean of each row."""
    moved = 18 * (h - 0.5 * h.mean(1, keepdim=True))
    return moved - 0.5 * moved.mean(1, keepdim=True)


def _of_gates(h):
    """The gradient of sum(sigmoid(i) sigmoid(f)) by both parts."""
    i, f = torch.sigmoid(h).chunk(2, dim=1)
    return torch.cat([i * (1 - i) * f, f * (1 - f) * i], dim=1)


def _after_decay(x, w):
    for _ in range(2):
        w = w - 0.1 * (2 * x.t() @ (x @ w) + 0.9 * w)
    return 2 * x.t() @ (x @ w)


def _trained(x, w, optimizer):
    """The gradient of the last of three steps, each by the weights of then."""
    w = w.clone().requires_grad_()
    opt = optimizer([w], lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        (((x @ w).tanh() @ w).tanh() * x).sum().backward()
        opt.step()
    return w.grad


def _stepped_between(x, w):
    """The gradients of the sum of the squares of `x @ w` in two turns, `w` stepped after the first."""
    first = x.t() @ (2 * x @ w)
    later = w - 0.9 * first
    return [2 * (x @ w) @ w.t() + 2 * (x @ later) @ later.t(), first + x.t() @ (2 * x @ later)]


def _waves(w):
    """Sines and cosines of 0 to 7, by turns along a row."""
    angles = w.new_tensor(range(8)).view(4, 2)
    return torch.stack((angles.sin(), angles.cos()), 2).view(4, 4)


SOUND = {
    "data whose numpy view a function shuffles, which a module of a factory has read": """
def network():
    return nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Mish())
net = network()
net.requires_grad_(True)
def turned(table):
    table[:] = table[::-1].copy()

def run():
    data = x.detach().clone()
    out = net(data)
    turned(data.detach().view(-1, 4).numpy())
    out.sum().backward()
    x.grad, w.grad = None, net[0].weight.grad.clone()
    net.zero_grad()
""",
    "an operand of a function of one operand, in a table of functions with numbers": """
def level(power):
    return torch.log10(power)
def cap(power, limit):
    return power.clamp_(max=limit)
BRANCHES = {"level": lambda p: 0.5 * level(p), "cap": lambda p: 2.0 * cap(p, 1.5)}

def run():
    clean = (x @ w).square() + 0.1
    sum(one(clean) for one in BRANCHES.values()).sum().backward()
""",
    "weights of a dict, which an update by hand writes under `no_grad`": """
class Net:
    def __init__(self):
        self.params = {"in": x, "out": w}
    @torch.no_grad()
    def step(self):
        for p in self.params.values():
            p -= 0.1 * p.grad
net = Net()

def run():
    first, second = ((net.params["in"] @ net.params["out"]).pow(power).sum() for power in (1, 2))
    first.backward()
    net.step()
    second.backward()
    net.step()
""",
    "a full backward pre-hook that takes its gradient apart and gives it back": """
branch = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh())
def damp(module, grad_output):
    gradient, = grad_output
    gradient.mul_(2)
    return (gradient,)
branch.register_full_backward_pre_hook(damp)

def run():
    h = x @ w
    (h + branch(h)).sin().sum().backward()
""",
    "a picture of attention that is scaled through `.data`, and read no more": """
def draw(attention):
    heat = attention.data
    heat -= heat.amin(-1, keepdim=True)
    heat /= heat.amax(-1, keepdim=True)
    return heat.tolist()

def run():
    attention = torch.softmax(x @ w, -1)
    read = (attention @ w).sin().sum()
    drawn = draw(attention[0])
    read.backward()
""",
    "a forward hook that scales what a gate gives and keeps": """
class Gate(nn.Module):
    def forward(self, h):
        self.last = torch.sigmoid(h)
        return self.last
gate = Gate()
def scaled(module, given, output):
    output *= 0.5
gate.register_forward_hook(scaled)

def run():
    (gate(x @ w) * gate.last).sum().backward()
""",
    "a state of a module that is given back in each turn": """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.trace = nn.Linear(4, 4, bias=False, dtype=torch.float64), None
    def step(self, row):
        drive = torch.tanh(row + self.mix(self.trace))
        self.trace *= 0.5
        self.trace += drive
        return self.trace
cell = Cell()

def run():
    cell.trace = torch.zeros(4, dtype=torch.float64)
    for row in (x @ w).unbind(0):
        state = cell.step(row)
    state.sin().sum().backward()
""",
    "the input of a clamp, of which other rows are set": """
def run():
    flow = torch.zeros(4, 4, dtype=torch.float64)
    flow[0] = 1.5
    for t in range(1, 4):
        before = flow[t - 1]
        flow[t] = before.clamp(min=0.1) * (x @ w)[t - 1]
    flow.sum().backward()
""",
    "the mask of a fill, set further in each turn": """
def run():
    done, total = torch.zeros(3, 4, dtype=torch.bool), 0
    for t in range(3):
        total = total + (x @ w).masked_fill(done, 0.5).sin().sum()
        done[t] = True
    total.backward()
""",
    "the index of a gather, which moves on": """
def run():
    at, total = torch.zeros(3, 1, dtype=torch.long), 0
    for _ in range(3):
        total = total + (x @ w).gather(1, at).exp().sum()
        at += 1
    total.backward()
""",
    "the factor of a product in place, which grows": """
def run():
    gate, h = torch.full((4,), 0.5, dtype=torch.float64), x @ w
    for _ in range(2):
        h.mul_(gate)
        gate += 0.5
    h.sin().sum().backward()
""",
    "weights shaken by random numbers, of which the next are drawn before the backward": NETS
    + """
def run():
    loss = d(g(x.detach())).square().sum()
    with torch.no_grad():
        d.weight.add_(torch.randn(1, 4, dtype=torch.float64))
    drawn = torch.randn(3, dtype=torch.float64)
    loss.backward()
    print(drawn.sum().item())
""",
    "an evaluation with other weights before the backward": """
net = nn.Linear(4, 4, dtype=torch.float64)
shadow = {name: one.detach() * 0.9 for name, one in net.named_parameters()}
kept, scores = {}, []
opt = torch.optim.SGD(net.parameters(), 0.1)
def swap():
    for name, one in net.named_parameters():
        kept[name] = one.data.clone()
        one.data.copy_(shadow[name])
def restore():
    for name, one in net.named_parameters():
        one.data.copy_(kept[name])
@torch.no_grad()
def evaluated():
    return net(x).sum().item()
def run():
    loss = net(net(x)).square().sum()
    swap()
    scores.append(evaluated())
    opt.zero_grad()
    loss.backward()
    restore()
    w.grad = net.weight.grad
""",
    "a sum that is begun like an argument": """
def rollout(h):
    seen, total = h.new_zeros(h.shape[0], 4), 0.0
    for t in range(3):
        part = (h + seen * 2).softmax(-1)
        total = total + part.square().sum() + (seen * h).sum()
        seen += part
    return total
def run():
    rollout(x @ w).backward()
""",
    "a mask that a method draws, and gives out": """
class Mask:
    def __init__(self):
        self.buf = torch.empty(3, 4, dtype=torch.float64)
    def draw(self):
        self.buf.bernoulli_(0.5).div_(0.5)
        return self.buf
def run():
    torch.manual_seed(1)
    mask, h = Mask(), x @ w
    for _ in range(2):
        h = h.sin() * mask.draw()
    h.sum().backward()
""",
    "what a method computes into a workspace, and gives out": """
class Targets:
    def __init__(self):
        self.space = torch.empty(3, dtype=torch.float64)
    @torch.no_grad()
    def of(self, h):
        torch.mul(h.amax(1), 0.9, out=self.space)
        self.space.add_(1.0)
        return self.space
def run():
    targets, total = Targets(), 0.0
    for turn in range(2):
        h = (x @ w) * (turn + 1)
        total = total + F.mse_loss(h[:, 0], targets.of(h))
    total.backward()
""",
    "fast weights in a dict that a function calls a model with": """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double()
class Inner:
    def __init__(self, model):
        self.model = model
    def loss(self, weights, batch):
        (rows,) = batch
        return torch.func.functional_call(self.model, weights, (rows,)).square().mean()
    def adapt(self, batch):
        fast = {name: one.clone() for name, one in self.model.named_parameters()}
        for _ in range(2):
            slopes = torch.autograd.grad(self.loss(fast, batch), list(fast.values()), create_graph=True)
            for (name, one), slope in zip(fast.items(), slopes):
                one -= 0.1 * slope
        return fast
def run():
    inner = Inner(net)
    inner.loss(inner.adapt((x,)), (x,)).backward()
    w.grad = net[0].weight.grad
""",
    "a Function that writes its own save": """
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h.exp()
    @staticmethod
    def backward(ctx, g):
        (h,) = ctx.saved_tensors
        return g * h.exp_()
def run():
    y = Exp.apply(x @ w)
    y.sum().backward(retain_graph=True)
    y.square().sum().backward()
""",
    "a factor that a method makes of the data of an argument, which another method has read": """
class Loss:
    def __init__(self):
        self.seen = torch.zeros(4, dtype=torch.float64)
    def count(self, p):
        self.seen = self.seen + p.detach().sum(0)
    def factor(self, p):
        one = p.data
        one.neg_().add_(1.0).pow_(2.0)
        return one * 2
    def loss(self, p):
        self.count(p)
        sure = (p * p).sum()
        return (self.factor(p) * (x @ w).sin()).sum() + sure
def run():
    Loss().loss((x @ w).softmax(1)).backward()
""",
    "what a generator gives out and reads no more": """
def batches():
    for _ in range(2):
        y = (x @ w).tanh()
        yield y
def run():
    total = 0.0
    for y in batches():
        y += 1
        total = total + y.square().sum()
    total.backward()
""",
    "a mask of visited rows, by scatter": """
def run():
    visited = torch.zeros(3, 4, dtype=torch.bool)
    total = 0.0
    for i in range(3):
        scores = (x @ w).masked_fill(visited, -9.0).softmax(-1)
        pick = scores.argmax(-1)
        total = total + scores.gather(1, pick[:, None]).log().sum()
        visited.scatter_(1, pick[:, None], True)
    total.backward()
""",
    "weights that a method puts back before the loss of a batch": SIGNS
    + """
def run():
    w.grad = torch.zeros_like(w)
    for goal in x.detach().split(1):
        signs.put()
        out = net(x)
        signs.restore()
        loss = F.mse_loss(out, goal.expand(3, 4))
        loss.backward()
""",
    "messages by pairs, which a comprehension hands to what only reads them": """
class Messages:
    def __init__(self):
        self.table = {(a, b): torch.ones(4, dtype=torch.float64) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))}
    def into(self, node, but=None):
        return [m for (a, b), m in self.table.items() if b == node and a != but]

def belief(local, incoming):
    for message in incoming:
        local = local * message
    return local

def run():
    local, messages = (x @ w).softmax(1), Messages()
    for _ in range(2):
        for a, b in list(messages.table):
            messages.table[a, b].lerp_(belief(local[a], messages.into(a, but=b)) @ w, 0.5)
    sum(belief(local[n], messages.into(n)).sum() for n in range(3)).backward()
""",
    "a function of torch under another name": """
import torch as th
def run():
    h = th.sigmoid(x @ w)
    th.relu_(h)
    h.sum().backward()
""",
    "fast weights of a dict, stepped in the loop over its items": """
net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4)).double()
def run():
    fast = {name: p.clone() for name, p in net.named_parameters()}
    for _ in range(2):
        y = torch.func.functional_call(net, fast, (x @ w,))
        slopes = torch.autograd.grad(y.square().mean(), fast.values(), create_graph=True)
        for (name, p), slope in zip(fast.items(), slopes):
            p -= 0.1 * slope
    torch.func.functional_call(net, fast, (x,)).square().sum().backward()
""",
    "what a cell is given, the last row of the outputs that are filled": """
cell, out = nn.GRUCell(4, 4, dtype=torch.float64), nn.Linear(4, 4, dtype=torch.float64)
def run():
    outputs = torch.zeros(3, 3, 4, dtype=torch.float64)
    h, step = x @ w, torch.zeros(3, 4, dtype=torch.float64)
    for t in range(3):
        h = cell(step, h)
        outputs[t] = torch.sigmoid(out(h))
        step = outputs[t]
    outputs.square().sum().backward()
""",
    "a module in place in a row of modules in another one": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.ReLU(inplace=True)), nn.Linear(4, 4))
    def forward(self, h):
        return self.rows(h)
net = Net().double()
def run():
    net(x @ w).sum().backward()
""",
    "the weights of a module that is kept apart, averaged before the backward": """
import copy
class Features:
    def __init__(self):
        self.layer = nn.Linear(4, 4, dtype=torch.float64)
        for one in self.layer.parameters():
            one.requires_grad_(False)
    def __call__(self, given):
        return self.layer(given)
    def fade(self):
        for one in self.layer.parameters():
            one.mul_(0.9)
features = Features()
def run():
    loss = features(x @ w).square().sum()
    features.fade()
    loss.backward()
""",
    "an item that a caller keeps under its own name": """
def raised(levels, is_read):
    now = levels["one"]
    y = now.square().sum() if is_read else now.sum()
    levels["one"].add_(0.5)
    return y
def run():
    table = {"one": x @ w}
    raised(table, True).backward()
    table["one"] = x.detach() @ w
    before = table["one"]
    raised(table, False)
    before.square().sum().backward()
""",
    "a loop over names by an attribute": """
class Trainer:
    def train(self):
        a, b = (x @ w).exp(), (x @ w).cos()
        y = a.sin().sum() + b.sin().sum()
        for self.g in (a, b):
            self.g.mul_(2)
        (y + (a + b).sum()).backward()

def run():
    Trainer().train()
""",
    "a level that is read by a name of its own before it rises again": """
class State:
    def __init__(self, level):
        self.level = level
def step(state):
    state.level = state.level * w
    gap = state.level.sub_(0.5)
    y = gap.square()
    state.level.add_(0.5)
    return y.sum() + (state.level * w).sum()

def run():
    state = State((x @ w).sum(0))
    step(state).backward()
""",
    "a row of what is shown, scaled through data": """
def step():
    weights = (x @ w).softmax(1)
    loss = (weights * x).sum()
    heat = weights.data[0]
    heat /= heat.max()
    shown = heat.tolist()
    loss.backward()

def run():
    step()
""",
    "the state of a chain, set through data": """
class Chain:
    def __init__(self):
        self.x = torch.ones(3, 4, dtype=torch.float64)
    def walk(self):
        x = 0.5 * self.x - 1
        self.x.data.copy_(x)

def run():
    chain, total = Chain(), 0
    for step in range(3):
        total = total + (chain.x @ w).square().sum()
        chain.walk()
    total.backward()
""",
    "fast weights that a module reads which a class is given": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, dtype=torch.float64)
        self.second = nn.Linear(4, 1, dtype=torch.float64)
    def forward(self, x, weights=None):
        a, b, c, d = weights if weights is not None else list(self.parameters())
        return F.linear(F.linear(x, a, b).tanh(), c, d)
class Learner:
    def __init__(self, net):
        self.net = net
    def adapt(self, x):
        fast = [one.clone() for one in self.net.parameters()]
        for step in range(2):
            loss = self.net(x, fast).square().mean()
            grads = torch.autograd.grad(loss, fast, create_graph=True)
            for one, gradient in zip(fast, grads):
                one -= 0.1 * gradient
        return fast

def run():
    learner = Learner(Net())
    learner.net(x @ w, learner.adapt(x @ w)).square().mean().backward()
""",
    "a module that a function is given": """
def apply(net, h):
    y = net(h)
    h += 1
    return y, h
def run():
    net = nn.Linear(4, 4, dtype=torch.float64)
    y, h = apply(net, x @ w)
    (y.square().sum() + h.sum()).backward()
""",
    "a leaf that an attribute holds, set through data": """
class Chain:
    def __init__(self):
        self.x = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    def walk(self):
        self.x.data.mul_(0.5)

def run():
    chain = Chain()
    loss = (chain.x @ w).square().sum()
    chain.walk()
    loss.backward()
""",
    "points that a method draws anew through data before the backward": """
class Cloud:
    def __init__(self):
        self.points = torch.rand(3, 4, dtype=torch.float64).requires_grad_(True)
    def draw(self, rows):
        near = rows.detach().abs().sum(1) < 100
        self.points.data[near] = 0.5
def run():
    cloud = Cloud()
    rows = cloud.points @ w
    loss = rows.square().mean() + x.square().sum()
    cloud.draw(rows)
    loss.backward()
""",
    "a sample that each turn of a loop copies and adds to": """
def sample(y):
    for step in range(3):
        e = (y @ w).tanh()
        y.copy_(0.9 * e)
        y.add_(0.1 * e)
    return y
def run():
    sample(x * 2).square().sum().backward()
""",
    "a sample that is computed from itself, as a row that is repeated": """
def sample(y):
    for step in range(2):
        e = (y @ w).tanh()
        y.copy_((e - 0.5 * y.square())[0])
        y.mul_(0.9)
    return y
def run():
    sample(x * 2).square().sum().backward()
""",
    "a chain that a function of a transform returns": """
def jitter(image):
    return image.sub_(image.mean()).mul_(1.5)
def run():
    image = torch.randn(3, 4, dtype=torch.float64)
    a = (image @ w).tanh()
    b = (jitter(image) @ w).tanh()
    (a - b).square().sum().backward()
""",
    "the result of a method that gets a name of its own": """
def shifted(image):
    out = image.sub_(image.mean())
    return out
def run():
    image = x * 2
    a = image.square()
    b = (shifted(image) @ w).tanh()
    (a.sum() - b.sum()).backward()
""",
    "an input that is filled again through data": """
def run():
    slot, total = torch.empty(3, 4, dtype=torch.float64), 0
    for step in range(3):
        slot.data.copy_(torch.randn(3, 4, dtype=torch.float64))
        total = total + (slot @ w).square().sum()
    total.backward()
""",
    "rows that are scaled through data, of what is read transposed": """
def run():
    table, total = torch.ones(4, 3, dtype=torch.float64), 0
    for step in range(3):
        total = total + (table.t() @ w).square().sum()
        table.data[0] *= 0.5
    total.backward()
""",
    "a constant on the memory of a leaf that is set through data": """
def run():
    h = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    held = h.detach()
    loss = (held @ w).square().sum()
    h.data.mul_(0.5)
    (loss + h.sum()).backward()
""",
    "the slots that an attribute holds, one of which the caller has": """
class Memory:
    def __init__(self):
        self.slots = [x @ w, x @ w]
    def fade(self):
        for slot in self.slots:
            slot.mul_(0.5)

def run():
    memory = Memory()
    first = memory.slots[0]
    y = first * first
    memory.fade()
    (y + first).sum().backward()
""",
    "a module that hands what it computes to a hook": """
net = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)).double()
store = []

def tap(module):
    getattr(module, "register_" + "forward_hook")(lambda module, given, result: store.append(result))
tap(net[0])

def run():
    store.clear()
    y = net(x @ w)
    store[-1].mul_(2)
    (y.sum() + store[-1].sum()).backward()
""",
    "the slots that an attribute holds, faded in a loop": """
class Memory:
    def __init__(self):
        self.slots = [torch.zeros(3, 4, dtype=torch.float64) for _ in range(2)]
    def read(self, query):
        return sum((query * slot).sum(-1, keepdim=True) * slot for slot in self.slots)
    def fade(self):
        for slot in self.slots:
            slot.mul_(0.5)
    def store(self, value):
        oldest = self.slots.pop(0)
        self.slots.append(value + 0.1 * oldest)

def run():
    memory, total = Memory(), 0
    for step in range(3):
        h = x @ w + memory.read(x)
        memory.fade()
        memory.store(h.tanh())
        total = total + h.sum()
    total.backward()
""",
    "a comparison in place, which keeps the type": """
def run():
    h = (x @ w).exp()
    y = h * h
    h = h.gt_(1)
    (y + (1 - h) * x).sum().backward()
""",
    "one name for both values of a statement": """
base = torch.ones(3, 4, dtype=torch.float64)
def run():
    k = (x @ w).tanh()
    h, h = (x @ w).exp(), k
    y = h * h
    h *= 2
    (y + h * k).sum().backward()
""",
    "a pack hook that fills its slots in turn": """
slots = [torch.empty(12, dtype=torch.float64) for _ in range(2)]
turns = []
def pack(saved):
    turns.append(saved)
    slot = slots[len(turns) % 2]
    slot.copy_(saved.detach().reshape(-1)[:12])
    return slot, saved.shape
def unpack(kept):
    slot, shape = kept
    return slot.view(shape)
def run():
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        h = x * 2
        y = h.exp().sin().cos()
    (y.sum() + (x @ w).sum()).backward()
""",
    "a pack hook that fills its slots in turn, beside an unpack hook without a name": """
slots = [torch.empty(3, 4, dtype=torch.float64) for _ in range(2)]
turns = []
def pack(saved):
    if saved.shape != (3, 4):
        return saved
    turns.append(saved)
    slot = slots[len(turns) % 2]
    slot.copy_(saved)
    return slot
def run():
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        h = x * 2
        y = h.exp().sin().cos()
    (y.sum() + (x @ w).sum()).backward()
""",
    "a Function whose backward gives what it writes another name": """
class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        s = torch.sigmoid(h)
        ctx.save_for_backward(s)
        return 2 * s
    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        slope = s.mul_(1 - s)
        return 2 * g * slope
def run():
    y = Gate.apply(x @ w)
    y.sum().backward(retain_graph=True)
    y.square().sum().backward()
""",
    "one of two tensors that a statement binds": """
def run():
    h, k = (x @ w).exp(), (x @ w).tanh()
    y = h + k
    h *= 2
    (y + h * k).sum().backward()
""",
    "a scan that gives back what it fills": """
def scan(drive):
    span = 1
    while span < 3:
        carry = drive[:-span].sigmoid() * drive[:-span]
        drive[span:] += carry
        span *= 2
    return drive

def run():
    for _ in range(2):
        h = x @ w
        scan(h).square().sum().backward()
""",
    "weights averaged at a rate by the losses that are noted before the backward": NETS
    + """
losses = []
def soften():
    with torch.no_grad():
        d.weight.mul_(0.9 if losses else 0.1)
def run():
    loss = d(g(x)).square().sum()
    soften()
    losses.append(loss.item())
    loss.backward()
    w.grad = d.weight.detach().expand(4, 4).clone()
    losses.clear()
""",
    "what a function works on through data": HARD
    + """
def run():
    out = torch.sigmoid(x @ w)
    loss = F.mse_loss(out, torch.zeros_like(out))
    hard(out)
    loss.backward()
""",
    "what an object works on as an array": """
class Preview:
    def __call__(self, given):
        array = given.detach().numpy()
        array -= array.min()
        return array.max()

def run():
    show = Preview()
    out = torch.sigmoid(x @ w)
    loss = F.mse_loss(out, torch.zeros_like(out))
    show(out)
    loss.backward()
""",
    "what a function works on as an array": """
def preview(array):
    array -= array.min()
    return array.max()

def run():
    out = torch.sigmoid(x @ w)
    loss = out.square().sum()
    preview(out.detach().numpy())
    loss.backward()
""",
    "the argument of a module that a function builds, of which another part is written": """
def mlp(width):
    \"\"\"Two layers.\"\"\"
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2)).double()

class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(3)
    def forward(self, h):
        keep, move = (h[:, ::2], h[:, 1::2]) if self.training else (h[:, 1::2], h[:, ::2])
        shift = self.net(keep)
        move.add_(shift)
        return h
coupling = Coupling()

def run():
    coupling(x @ w).square().sum().backward()
""",
    "scratch memory that a ctx keeps": """
scratch = torch.empty(3, 4, dtype=torch.float64)

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        a = torch.mul(u, 2, out=scratch)
        ctx.a = a
        return u * u
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.a

def run():
    Scaled.apply(Scaled.apply(x @ w)).sum().backward()
""",
    "a state that a Function under another name saves": """
class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).to(u.dtype)
    @staticmethod
    def backward(ctx, g):
        u, = ctx.saved_tensors
        return g / (1 + u.abs()) ** 2
spike = Spike.apply

class Cell(nn.Module):
    def forward(self, t):
        self.state = 0.9 * self.state + t
        fired = spike(self.state)
        self.state[fired > 0] = 0.0
        return fired
cell = Cell()

def run():
    cell.state = torch.zeros(3, 4, dtype=torch.float64)
    y = cell(x @ w) + cell(x @ w)
    (y + cell.state).square().sum().backward()
""",
    "parts of a cache that operators are given": """
class Cache:
    def __init__(self):
        self.k, self.v, self.n = torch.zeros(5, 4, dtype=torch.float64), torch.zeros(5, 4, dtype=torch.float64), 0
    def put(self, k, v):
        self.k[self.n], self.v[self.n], self.n = k, v, self.n + 1
        return self.k[: self.n], self.v[: self.n]

def step(t, cache):
    q, k, v = (t @ w).unsqueeze(0).expand(3, 4).unbind(0)
    keys, values = cache.put(k, v)
    weights = torch.einsum("d,nd->n", q, keys).softmax(0)
    return torch.einsum("n,nd->d", [weights, values])

def run():
    cache, t = Cache(), x[0]
    for _ in range(3):
        t = step(t, cache)
    (t.sum() + x[1:].sum()).backward()
""",
    "weights of a recurrent module": """
net = nn.LSTM(4, 4).double()

def run():
    y, _ = net((x @ w).unsqueeze(1))
    with torch.no_grad():
        net.weight_hh_l0.mul_(0.5)
    net((x @ w).unsqueeze(1))
    y.sum().backward()
""",
    "weights masked by what masks gradients too": """
net = nn.Linear(4, 4, dtype=torch.float64)

def masked(net, mask):
    with torch.no_grad():
        for p in (net.weight,):
            p.mul_(mask)
            if p.grad is not None:
                p.grad.mul_(mask)

def run():
    net(x.detach()).sum().backward()
    loss = net(x @ w).square().sum()
    masked(net, torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64))
    loss.backward()
""",
    "weights restored at the end of a with that does more": """
import contextlib
net = nn.Linear(4, 4, dtype=torch.float64)

@contextlib.contextmanager
def halved(net):
    net.weight.data.mul_(0.5)
    yield
    net.weight.data.mul_(2)
    net.zero_grad()

def run():
    with halved(net):
        loss = net(x @ w).square().sum()
    loss.backward()
""",
    "weights restored at the end of a with, before they are read": """
import contextlib
net = nn.Linear(4, 4, dtype=torch.float64)

@contextlib.contextmanager
def halved(net):
    net.weight.data.mul_(0.5)
    yield
    net.weight.data.mul_(2)

def run():
    with halved(net):
        loss = net(x @ w).square().sum()
    penalty = net.weight.square().sum()
    loss.backward()
    return penalty
""",
    "weights that move in a function of the loss's reader": """
net = nn.Linear(4, 4, dtype=torch.float64)

def run():
    loss = net(x @ w).square().sum()
    with torch.no_grad():
        net.weight.mul_(0.5)
    seen = net(x.detach()).sum()
    loss.backward()
    return seen
""",
    "weights scaled by the forward that reads them": """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 4, dtype=torch.float64)
    def forward(self, x):
        z = torch.tanh(self.enc(x))
        with torch.no_grad():
            self.enc.weight.div_(self.enc.weight.norm(dim=1, keepdim=True))
        return z @ self.enc.weight.detach()
tied = Tied()

def run():
    tied(x @ w).square().sum().backward()
""",
    "columns that modules make one after the other": """
step = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double()

def run():
    rows = torch.zeros(3, 3, 2, dtype=torch.float64)
    rows[:, 0] = (x @ w)[:, :2]
    for i in range(1, 3):
        rows[:, i] = rows[:, i - 1] + step(rows[:, i - 1])
    rows.square().sum().backward()
""",
    "arrays that a module and a loss read": """
import numpy
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()

class Batches:
    def __init__(self):
        self.given, self.wanted = numpy.zeros((3, 4)), numpy.zeros((3, 4))
    def __iter__(self):
        for number in (1.0, 2.0):
            self.given[:] = number
            self.wanted[:] = 5 * number
            yield torch.from_numpy(self.given), torch.from_numpy(self.wanted)

def run():
    losses = [F.mse_loss(net(given) @ w, wanted) for given, wanted in Batches()]
    torch.stack(losses).sum().backward()
""",
    "an attribute that several lines write": """
class Cell:
    def __init__(self):
        self.state = torch.ones(3, 4, dtype=torch.float64)
    def step(self, given):
        self.state *= 0.9
        self.state += given
        spike = torch.sigmoid(self.state)
        self.state.sub_(spike.detach())
        return spike * self.state

def run():
    cell = Cell()
    sum(cell.step(x @ w) for _ in range(3)).sum().backward()
""",
    "flags without their names": """
def run():
    h = torch.tanh(x @ w)
    F.relu_(h)
    h = F.relu(h, True)
    h = F.dropout(h, 0.0, True, True)
    (h * 2).sum().backward()
""",
    "a buffer that two calls average": """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64))
    def forward(self, x):
        with torch.no_grad():
            self.scale.lerp_(x.abs().mean(0), 0.5)
        return x
scaled = Scaled()

def run():
    h = x @ w
    y = scaled(h) / scaled.scale
    (y + scaled(h) + scaled(y)).sum().backward()
""",
    "a chain whose later call reads what it has written": """
def mixed(a):
    a.mul_(0.5).add_(a[[2, 0, 1]], alpha=0.25)
    return a

def run():
    given = torch.ones(3, 4, dtype=torch.float64)
    first = given @ w
    (first.square() + mixed(given) @ w).sum().backward()
""",
    "weights masked by an object in a function that it calls": """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()

class Masks:
    def __init__(self, net):
        self.layers = [one for one in net if isinstance(one, nn.Linear)]
        self.masks = [(one.weight.detach() > 0).double() for one in self.layers]
    def apply(self):
        for layer, mask in zip(self.layers, self.masks):
            self.put(layer, mask)
    def put(self, layer, mask):
        layer.weight.data.mul_(mask)

def run():
    masks = Masks(net)
    loss = net(x @ w).square().sum()
    masks.apply()
    net.zero_grad()
    loss.backward()
""",
    "two averages in a row": """
one, other = nn.Linear(4, 4, dtype=torch.float64), nn.Linear(4, 4, dtype=torch.float64)
net = nn.Linear(4, 4, dtype=torch.float64)

def follow(target, source):
    with torch.no_grad():
        for t, s in zip(target.parameters(), source.parameters()):
            t.lerp_(s, 0.5)

def run():
    loss = one(x @ w).square().sum() + other(x @ w).square().sum()
    follow(one, net)
    follow(other, net)
    loss.backward()
""",
    "weights restored at the end of a with": """
import contextlib
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()

@contextlib.contextmanager
def halved(net):
    kept = [p.detach().clone() for p in net.parameters()]
    for p in net.parameters():
        p.data.mul_(0.5)
    yield
    for p, old in zip(net.parameters(), kept):
        p.data.copy_(old)

def run():
    with halved(net):
        loss = net(x @ w).square().sum()
    print(loss.item())
    loss.backward()
""",
    "weights restored by an object at the end of a with": """
net = nn.Linear(4, 4, dtype=torch.float64)

class Swapped:
    def __init__(self, net, other):
        self.net, self.other = net, other
    def swap(self):
        with torch.no_grad():
            old = self.net.weight.clone()
            self.net.weight.copy_(self.other)
            self.other = old
    def __enter__(self):
        self.swap()
    def __exit__(self, *error):
        self.swap()

def run():
    for _ in range(2):
        net.zero_grad()
        with Swapped(net, torch.ones(4, 4, dtype=torch.float64)):
            loss = net(x @ w).square().sum()
        loss.backward()
""",
    "a name in a list that an operator is given": """
class Queue:
    def __init__(self):
        self.rows = torch.ones(4, 5, dtype=torch.float64)
    def put(self, t):
        self.rows[:, 0] = t
    def score(self, t):
        return torch.einsum("nc,ck->nk", [t, self.rows])

def run():
    queue = Queue()
    y = queue.score(x @ w)
    queue.put(torch.zeros(4, dtype=torch.float64))
    y.sum().backward()
""",
    "one of a pair that nothing reads again": """
def turned(state):
    a, b = state
    y = a * b
    a.add_(1)
    return y + a

def run():
    turned((torch.sigmoid(x @ w), torch.tanh(x @ w))).sum().backward()
""",
    "one of a pair that the caller reads again": """
def turned(state):
    a, b = state
    y = a * b
    a.add_(1)
    return y + a

def run():
    pair = torch.sigmoid(x @ w), torch.tanh(x @ w)
    y = turned(pair)
    (y + pair[0]).sum().backward()
""",
    "items of a dict, in a loop of its keys": """
class Memory:
    def __init__(self):
        self.slots = {}
    def read(self, t):
        if "a" not in self.slots:
            self.slots["a"] = torch.ones_like(t)
        return self.slots["a"] * t
    def fade(self):
        for key in self.slots:
            self.slots[key].mul_(0.5)

def run():
    memory, total = Memory(), 0
    for _ in range(3):
        total = total + memory.read(x @ w).sum()
        memory.fade()
    total.backward()
""",
    "weights that move before the backward": """
net = nn.Linear(4, 4, dtype=torch.float64)
with torch.no_grad():
    net.weight.copy_(torch.eye(4))

def run():
    loss = net(x @ w).square().sum()
    with torch.no_grad():
        net.weight.mul_(0.5)
    loss.backward()
""",
    "weights that move before gradients of an optimizer in a dict are zeroed": """
net = nn.Linear(4, 4, dtype=torch.float64)
opts = {"net": torch.optim.SGD(net.parameters(), 0.1)}
def run():
    loss = net(x @ w).square().sum()
    with torch.no_grad():
        net.weight.mul_(0.5)
    opts["net"].zero_grad()
    loss.backward()
""",
    "returned by a helper that scales its argument": """
def unit_(t):
    size = t.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return t.div_(size)

def loss(a, b):
    rows = unit_(a) @ unit_(b).t()
    return rows.sum() / a.shape[0] + b.size(1)

def run():
    loss(torch.tanh(x @ w), torch.sigmoid(x @ w)).backward()
""",
    "fast weights in a list": """
def run():
    fast = [w.clone(), w * 2]
    for _ in range(2):
        loss = (torch.tanh(x @ fast[0]) @ fast[1]).square().sum()
        grads = torch.autograd.grad(loss, fast, create_graph=True)
        for one, slope in zip(fast, grads):
            one -= 0.1 * slope
    (torch.tanh(x @ fast[0]) @ fast[1]).sum().backward()
""",
    "what a cell reads, filled for the next step": """
cell = nn.GRUCell(4, 4, dtype=torch.float64)
def run():
    given, state = torch.zeros(3, 4, dtype=torch.float64), x @ w
    for _ in range(3):
        state = cell(given, state)
        given.copy_(state * 2)
    state.sum().backward()
""",
    "added onto": """
def run():
    h = torch.sigmoid(x @ w)
    h += x
    h.sum().backward()
""",
    "added onto after another was multiplied by it": """
def run():
    h = torch.sigmoid(x @ w)
    y = x * 2
    y[:2].mul_(h[:2])
    h += x
    y.sum().backward()
""",
    "filled where a comparison with itself says": """
def run():
    h = torch.tanh(x @ w)
    h[h < 0] = 0
    h.sum().backward()
""",
    "codes that each turn makes of the last ones, and looks up": """
def run():
    code, total = torch.arange(12).reshape(3, 4) % 4, 0.0
    for turn in range(3):
        if turn > 0:
            code = code[:, :-1]
            code.mul_(3).add_(1)
            code.remainder_(4)
        total = total + F.embedding(code, w).sum(1) * x
    total.square().sum().backward()
""",
    "halves that lift each other, level by level": """
def lifted(h):
    even, odd = h[:, ::2], h[:, 1::2]
    size = even.shape[1]
    odd -= even @ w[:size, :size]
    even += odd @ w[-size:, -size:]
    return even, odd

def run():
    h, parts = x @ w, []
    for _ in range(2):
        h, part = lifted(h)
        parts.append(part.square().sum())
    (h.square().sum() + sum(parts)).backward()
""",
    "written twice": """
def run():
    h = torch.tanh(x @ w)
    h *= 0.5
    h.add_(1).mul_(2)
    h.sum().backward()
""",
    "in a loop": """
def run():
    h = x.clone()
    for _ in range(3):
        y = torch.exp(h)
        h = torch.sigmoid(h * y)
        h += 1
    h.sum().backward()
""",
    "a call with a flag": """
def run():
    h = torch.sigmoid(x @ w)
    h = F.relu(h, inplace=True)
    h.sum().backward()
""",
    "a part written": """
def run():
    h = torch.sigmoid(x @ w)
    h[:, 0] = 0.0
    h.sum().backward()
""",
    "a part written that the line reads": """
def run():
    h = x @ w
    h[:, 0] = h[:, 0] * h[:, 1].sigmoid()
    h.sum().backward()
""",
    "states in one tensor": """
def step(y):
    return y**3 @ w
def run():
    states = torch.empty(4, 3, 4, dtype=torch.float64)
    states[0] = x
    for i in range(3):
        states[i + 1] = states[i] + 0.1 * step(states[i])
    states.sum().backward()
""",
    "both operands of one line": """
def join(a, b):
    return a * b
def run():
    rows = torch.zeros(5, 4, dtype=torch.float64)
    rows[0] = x[0]
    rows[1] = x[1]
    rows[2] = join(rows[0], rows[1])
    rows[3] = join(rows[2], rows[1])
    rows[3].sum().backward()
""",
    "a helper that writes what it is given": """
seen = []
def centre(h):
    h -= h.mean(0)
    seen.append(h)
def run():
    h = torch.tanh(x @ w)
    centre(h)
    h.sum().backward()
""",
    "a buffer drawn anew": """
noise = torch.zeros(4, 4, dtype=torch.float64)
def run():
    total = 0
    for _ in range(2):
        noise.normal_()
        total = total + (x @ (w * noise)).sum()
    total.backward()
""",
    "a running average that the forward reads": """
scale = torch.ones(4, dtype=torch.float64)
def run():
    h = (x @ w) * scale
    with torch.no_grad():
        scale.mul_(0.9).add_(h.mean(0))
    h.sum().backward()
""",
    "a module of the file": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4, dtype=torch.float64), nn.Sigmoid()
    def forward(self, t):
        return self.act(self.fc(t))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
    def forward(self, t):
        h = self.block(t)
        h += t
        return h
net = Net()
def run():
    net(x).sum().backward()
""",
    "a module with a flag": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.ReLU(inplace=True)
    def forward(self, t):
        h = torch.sigmoid(t @ w)
        h = self.drop(h)
        return h
net = Net()
def run():
    net(x).sum().backward()
""",
    "flags in a row of modules": """
linear = nn.Linear(4, 4, dtype=torch.float64)
net = nn.Sequential(nn.Identity(), nn.Sigmoid(), nn.ReLU(inplace=True), nn.Dropout(0.0, inplace=True))
def run():
    net(linear(x)).sum().backward()
""",
    "a backward that writes what it is handed": """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2
    @staticmethod
    def backward(ctx, gradient):
        gradient.mul_(2)
        return gradient
def run():
    h = x @ w
    (Scale.apply(h) + h).square().sum().backward()
""",
    "a backward that writes parts of what it is handed, under another name": """
class Positive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a.clamp(min=0)
    @staticmethod
    def backward(ctx, handed):
        a, = ctx.saved_tensors
        gradient = handed
        gradient[a < 0] = 0
        return gradient
def run():
    h = x @ w
    (Positive.apply(h) + h).square().sum().backward()
""",
    "a backward that writes parts of what it is handed": """
class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 1
    @staticmethod
    def backward(ctx, handed):
        handed[:, 0] *= 0.5
        handed[0] = 0
        return handed
def run():
    h = x @ w
    (Half.apply(h) + h).square().sum().backward()
""",
    "a hook that writes what it is handed": """
def run():
    h = x @ w
    y = h * 1
    y.register_hook(lambda gradient: gradient.mul_(3))
    (y + h).sum().backward()
""",
    "a step of optimizers that are handed over": NETS
    + OPTIMIZERS
    + """
def update(first, second):
    fake = g(x.detach())
    loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
    first.zero_grad()
    loss_d.backward()
    first.step()
    second.zero_grad()
    loss_g.backward()
    second.step()
def run():
    update(opt_d, opt_g)
    x.grad, w.grad = g.weight.detach()[:3].clone(), d.weight.detach().expand(4, 4).clone()
""",
    "a layer that a hook gives another argument": """
class Block(nn.Module):
    def forward(self, h, k):
        h += k
        return h
block, given = Block(), []
def add(module, args):
    return args if len(args) > 1 else (*args, 3)
def run():
    block.register_forward_pre_hook(add)
    y = block(torch.tanh(x @ w), 2).square().sum()
    h = x @ w
    z = block(h)
    (y + (z * h).sum()).backward()
""",
    "a step, beside a tuple with names": NETS
    + OPTIMIZERS
    + "from collections import namedtuple\nTransition = namedtuple('Transition', 'state action')\nlast = None\n"
    + "class Memory:\n    def put(self, *given):\n        self.last = Transition(*given)\n"
    + STEPS
    + "    Memory().put(fake, x)\n"
    + "    x.grad, w.grad = g.weight.detach()[:3].clone(), d.weight.detach().expand(4, 4).clone()\n",
    "a block in a checkpoint": """
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def forward(self, h):
        h += torch.tanh(h @ w)
        return h
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
    def forward(self, start):
        h = start * 2
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return h
def run():
    Net()(x).square().sum().backward()
""",
    "a step of optimizers in a dict": NETS
    + """
opts = {"d": torch.optim.Adam(d.parameters(), 0.1), "g": torch.optim.Adam(g.parameters(), 0.1)}
def run():
    fake = g(x.detach())
    loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
    opts["d"].zero_grad()
    loss_d.backward()
    opts["d"].step()
    opts["g"].zero_grad()
    loss_g.backward()
    opts["g"].step()
    x.grad, w.grad = g.weight.detach()[:3].clone(), d.weight.detach().expand(4, 4).clone()
""",
    "a step before a loss of what a module with a capital gave": """
D, g = nn.Sequential(nn.Linear(4, 1)).double(), nn.Linear(4, 4, dtype=torch.float64)
opt_d, opt_g = torch.optim.SGD(D.parameters(), 0.1), torch.optim.SGD(g.parameters(), 0.1)
def run():
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
    score = D(g(x.detach()))
    opt_d.zero_grad()
    score.mean().backward(retain_graph=True)
    opt_d.step()
    loss_g = -score.mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    x.grad, w.grad = g.weight.detach()[:3].clone(), D[0].weight.detach().expand(4, 4).clone()
""",
    "a step before a backward": NETS
    + OPTIMIZERS
    + TURNS
    + """
    x.grad, w.grad = g.weight.detach()[:3].clone(), d.weight.detach().expand(4, 4).clone()
""",
    "a step before an `if` with the backward": NETS
    + OPTIMIZERS
    + """
def run():
    for turn in range(4):
        point = x.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(d(point).sum(), point, create_graph=True)
        fake = g(x.detach())
        loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean() + slope.square().sum()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        if turn % 2 == 0:
            opt_g.zero_grad()
            loss_g.backward()
            opt_g.step()
        print(loss_d.item())
    x.grad, w.grad = g.weight.detach()[:3].clone(), d.weight.detach().expand(4, 4).clone()
""",
    "a step before a backward whose gradients are noted": NETS
    + OPTIMIZERS
    + TURNS
    + """
        slopes = {name: p.grad.clone() for name, p in g.named_parameters()}
    x.grad, w.grad = slopes["weight"].expand(4, 4)[:3].clone(), d.weight.detach().expand(4, 4).clone()
""",
    "another name for the same": """
def run():
    h = torch.sigmoid(x @ w) + 0
    h = torch.relu(h)
    kept = h
    h += 1
    (kept * h).sum().backward()
""",
    "the variable of a loop": """
def run():
    parts = [torch.sigmoid(x @ w).view(3, 4)]
    for part in parts:
        part += 1
    parts[0].sum().backward()
""",
    "a name of the whole file": """
def change():
    global h
    h += 1
def run():
    global h
    h = torch.relu(x @ w)
    y = h
    change()
    (h * 1).sum().backward()
""",
    "written where no gradient is recorded": """
def run():
    h = torch.sigmoid(x @ w)
    with torch.no_grad():
        h.add_(1)
    (h * h).sum().backward()
""",
    "memory that numpy writes": """
import numpy as np
def run():
    frame = np.ones((3, 4))
    h = x * torch.from_numpy(frame)
    frame[:] = 0
    h.sum().backward()
""",
    "held by nothing after a call that is not known": """
class Plant:
    def rate(self, s, u):
        first, last = s[:, :2], s[:, 2:]
        return torch.cat([torch.sin(first), torch.cos(last)], 1) + u
def control(s):
    return torch.tanh(s @ w)
def run():
    state, plant = x * 1, Plant()
    for _ in range(3):
        state += 0.1 * plant.rate(state, control(state))
    state.sum().backward()
""",
    "an item of a list": """
def model(weights):
    return torch.tanh(weights[0] @ weights[1]).square().mean()
def run():
    fast = [x * 1, w * 1]
    for _ in range(2):
        grads = torch.autograd.grad(model(fast), fast, create_graph=True)
        for i, g in enumerate(grads):
            fast[i].sub_(0.1 * g)
    model(fast).backward()
""",
    "what a module of several layers is given": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.fc = nn.Tanh(), nn.Linear(4, 4, dtype=torch.float64)
    def forward(self, h):
        out = self.fc(self.act(h).square()) * h
        h += out
        return h
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = nn.ModuleList(Block() for _ in range(2)), nn.Sequential(Block(), nn.Sigmoid())
    def forward(self, h):
        h = torch.sigmoid(h)
        for block in self.blocks:
            h = block(h)
        return self.last(h)
net = Net()
def run():
    net(x @ w).sum().backward()
""",
    "a forward that rescales a table which it also reads whole": """
class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 4, max_norm=0.1, dtype=torch.float64)
    def forward(self, rows):
        total = sum(one.square().sum() for one in [self.table.weight])
        return self.table(rows).sum() + total, rows.sum()
scores = Scores()
def run():
    for rows in torch.arange(4).chunk(2):
        loss, count = scores(rows)
        loss.backward()
""",
    "what the ctx of a Function keeps": """
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.a = a
        return a * torch.sigmoid(a)
    @staticmethod
    def backward(ctx, gradient):
        s = torch.sigmoid(ctx.a)
        return gradient * s * (1 + ctx.a * (1 - s))
def run():
    h = x @ w
    out = Swish.apply(h)
    h += out
    h.square().sum().backward()
""",
    "items of a list that is taken apart after the write": """
def run():
    levels = [(x @ w).tanh() for _ in range(3)]
    for i in range(2, 0, -1):
        levels[i - 1] += levels[i] * 0.5
    sum((one * scale).sum() for one, scale in zip(levels, (1, 2, 3))).backward()
""",
    "items of a dict whose keys are taken with other lists": """
def model(weights):
    return torch.tanh(weights["x"] @ weights["w"]).square().mean()
def run():
    fast = {"x": x * 1, "w": w * 1}
    for _ in range(2):
        grads = torch.autograd.grad(model(fast), list(fast.values()), create_graph=True)
        for rate, name, g in zip((0.1, 0.2), fast, grads):
            fast[name] -= rate * g
    model(fast).backward()
""",
    "an item of a dict": """
def run():
    cache = {}
    total = 0
    for _ in range(3):
        if "k" not in cache:
            cache["k"] = x @ w
        total = total + cache["k"].sin().sum()
        cache["k"].mul_(0.5)
    (total + cache["k"].sum()).backward()
""",
    "an attribute": """
class Neuron:
    def __init__(self):
        self.mem = x * 0.5
    def step(self):
        spike = torch.sigmoid(self.mem @ w) + self.mem * self.mem
        self.mem += spike
        return spike
def run():
    neuron = Neuron()
    (neuron.step() + neuron.step() + neuron.step()).sum().backward()
""",
    "a buffer": """
class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(4, dtype=torch.float64))
    def forward(self, t):
        y = t * self.mean
        self.mean.lerp_(t.detach().mean(0), 0.5)
        return y
def run():
    net = Mean()
    (net(x @ w) + net(x)).sum().backward()
    assert torch.equal(net.state_dict()["mean"], net.mean)
""",
    "returned by a module that is not known": """
class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, t):
        h = self.inner(t)
        h += t
        return h
def run():
    nn.Sequential(Block(nn.Sigmoid()), Block(nn.Tanh()))(x @ w).sum().backward()
""",
    "unpacked": """
def parts(z):
    return torch.sigmoid(z), torch.tanh(z)
def run():
    gate, value = parts(x @ w)
    y = gate * value
    gate *= 0.5
    (y + gate).sum().backward()
""",
    "a view that is not read again": """
def flat(t):
    return t.view(-1)
def run():
    h = torch.sigmoid(x @ w)
    row = flat(h)
    norm = row.norm()
    h += 1
    (h.sum() * norm).backward()
""",
    "an argument of the only call": """
def shift(t):
    y = t.sin()
    t += 1
    return y * t
def run():
    shift(x @ w).sum().backward()
""",
    "the value of a write in the middle of a statement": """
def run():
    h = (x @ w).exp()
    y = h.sin().sum()
    peaks = [h.neg_().max().item()]
    (y * peaks[0]).backward()
""",
    "another name, read after a write in the middle of a statement": """
def run():
    h = (x @ w).exp()
    g = h.view(-1)
    y, peaks = h.sin().sum(), []
    peaks.append(h.neg_().max().item() + g.sum().item())
    (y * peaks[0]).backward()
""",
    "another name, read after the call of what writes": """
def low(h):
    h.neg_()
    return h.max().item()
def run():
    h = (x @ w).exp()
    g = h.view(-1)
    y, peaks = h.sin().sum(), []
    peaks.append(low(h) + g.sum().item())
    (y * peaks[0]).backward()
""",
    "another name, read in the branch that a write decides": """
def run():
    h = (x @ w).exp()
    g = h.view(-1)
    y = h.sin().sum()
    k = g.sum().item() if h.neg_().max() < 0 else 1
    (y * k).backward()
""",
    "a tensor that a partial function holds": """
import functools
def run():
    h = (x @ w).exp()
    total = functools.partial(torch.sum, h)
    y = h.sin().sum()
    h.neg_()
    (y * total().item() * h.max().item()).backward()
""",
    "a variable that a text reads": """
def run():
    h = (x @ w).exp()
    y = h.sin().sum()
    k = h.neg_().max().item()
    (y * k * eval("h.sum().item()")).backward()
""",
    "a result of a narrower type on the way": """
def run():
    h, one = torch.ones(3, 4, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float32)
    y = (x @ w * h).sum()
    kinds = [str(torch.add(one, one, out=h).dtype)]
    y.backward()
    assert kinds == ["torch.float64"]
""",
    "a tensor that a branch takes from the caller": """
def gate(a=None):
    h = (x @ w).exp() if a is None else a
    y = h.sin().sum()
    h.sigmoid_()
    return y + h.sum()
def run():
    kept = torch.ones(3, 4, dtype=torch.float64)
    (gate() + gate(kept)).mul(kept.sum()).backward()
""",
    "a part of what each turn makes": """
def run():
    loss = 0
    for turn in range(2):
        speed = x @ w + turn
        loss = loss + (speed * speed).sum()
        speed[speed < 0] *= 0.5
        loss = loss + speed.sum()
    loss.backward()
""",
    "gates that a loop writes": """
def run():
    a, b = (x @ w).exp(), (x @ w).cos()
    y = a.sin().sum() + b.sum()
    for g in (a, b):
        g.mul_(2)
    (y + (a + b).sum()).backward()
""",
    "gates that a loop writes under a condition": """
def run():
    a, b = (x @ w).exp(), (x @ w).tanh()
    y = a.sin().sum() + b.sum()
    for g in (a, b):
        if g.min() < 0:
            g.mul_(2)
    (y + (a + b).sum()).backward()
""",
    "gates that a loop fills from one tensor": """
def run():
    a, b, k = (x @ w).exp(), (x @ w).tanh(), torch.ones(3, 4, dtype=torch.float64)
    y = a.sin().sum() + b.sum()
    for g in (a, b):
        g.copy_(k)
    k.zero_()
    (y * (a + b).sum()).backward()
""",
    "gates that another caller reads": """
def gate(i, f):
    y = i.sin().sum() + f.sum()
    for g in (i, f):
        g.sigmoid_()
    return y + (i * f).sum()
def run():
    a, b = torch.ones(3, 4, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64)
    loss = gate((x @ w).exp(), (x @ w).tanh()) + gate(a, b)
    (loss * a.sum()).backward()
""",
    "an argument that a ctx keeps": """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, a):
        torch.mul(u, 2, out=a)
        ctx.a = a
        return u * u
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.a, None

def run():
    scratch = torch.empty(3, 4, dtype=torch.float64)
    Scaled.apply(Scaled.apply(x @ w, scratch), scratch).sum().backward()
""",
    "a state that a setter copies into": """
class Slots:
    def __init__(self):
        self._v = torch.ones(3, 4, dtype=torch.float64)
    @property
    def v(self):
        return self._v
    @v.setter
    def v(self, new):
        self._v.copy_(new)

def run():
    slots = Slots()
    for _ in range(3):
        slots.v = torch.tanh(slots.v * x @ w)
    slots.v.sum().backward()
""",
    "two tables that a loop fills, of which one is a factor of a write to the other": """
def run():
    alpha, scale = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for t in range(4):
        before = x[:, 0].sigmoid() if t == 0 else alpha[t - 1] @ w[:3, :3].sigmoid()
        alpha[t] = before * x[:, 1].sigmoid()
        scale[t] = alpha[t].sum()
        alpha[t] /= scale[t]
    scale.log().sum().backward()
""",
    "a state that each turn makes anew, brings to length one, and keeps in a list": """
from dataclasses import dataclass
@dataclass
class State:
    q: torch.Tensor

def run():
    state, track = State(torch.ones(4, dtype=torch.float64)), []
    for row in x:
        state.q = state.q + row @ w
        state.q /= state.q.norm()
        track.append(state.q)
    torch.stack(track)[:, 0].sum().backward()
""",
    "two buffers that a power iteration fills, each with the other": """
class Normed(nn.Linear):
    def __init__(self):
        super().__init__(4, 4, dtype=torch.float64)
        self.register_buffer("u", torch.ones(4, dtype=torch.float64))
        self.register_buffer("v", torch.ones(4, dtype=torch.float64))
    def forward(self, h):
        with torch.no_grad():
            torch.mv(w.t(), self.u, out=self.v)
            self.v.div_(self.v.norm())
            torch.mv(w, self.v, out=self.u)
            self.u.div_(self.u.norm())
        return h @ w / torch.dot(self.u, torch.mv(w, self.v))
normed = Normed()

def run():
    (normed(x) + normed(x + 1)).square().sum().backward()
""",
    "an optimizer of two modules, by a name": NETS
    + """
import itertools
e = nn.Linear(4, 4, dtype=torch.float64)
both = itertools.chain(g.parameters(), e.parameters())
opt_d, opt_g = torch.optim.SGD(d.parameters(), 0.1), torch.optim.SGD(both, 0.1)
"""
    + STEPS.replace("g(x.detach())", "e(g(x.detach()))"),
    "parts of what is unbound, of which two are read before the whole is written": """
def run():
    a = torch.ones(3, 2, dtype=torch.float64)
    for step in range(3):
        first, second = a.unbind(-1)
        into = x[0, 0] * first
        out = w[0, 0] * second
        a[:, 0] -= into
        a[:, 1] += into - out
    a.square().sum().backward()
""",
    "a clamp in the closure of an optimizer": """
def run():
    opt = torch.optim.LBFGS([x, w], lr=0.1, max_iter=2)

    def closure():
        opt.zero_grad()
        loss = (x @ w).square().mean()
        with torch.no_grad():
            w.clamp_(min=-0.5)
        loss.backward()
        return loss

    opt.step(closure)
""",
    "a list that a region gets, of which a part moves on": """
from torch.utils.checkpoint import checkpoint

def region(h, state):
    return torch.sin(h + state[1])

def run():
    h, state = x @ w, [None, torch.ones(4, dtype=torch.float64)]
    for _ in range(2):
        h = checkpoint(region, h, state, use_reentrant=False)
        state[1].mul_(0.5)
    h.sum().backward()
""",
    "a buffer that a region gets as an argument, and reads in another way as well": """
from functools import partial
from torch.utils.checkpoint import checkpoint

class Shifted(nn.Module):
    def forward(self, x, by):
        return torch.sin(x + by + self.whole[0].steps)
class Stages(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Shifted()
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
        self.part.whole = [self]
    def advance(self):
        self.steps += 1
    def forward(self, h):
        for _ in range(2):
            h = checkpoint(partial(self.part, by=self.steps), h, use_reentrant=False)
            self.advance()
        return h
stages = Stages()

def run():
    stages(x @ w).sum().backward()
""",
    "a buffer that its module may write as well": """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
    def forward(self, x):
        y = torch.sin(x + self.steps)
        if y.dim() == 1:
            self.steps.zero_()
        return y
stage = Stage()

def run():
    h = x @ w
    for _ in range(2):
        h = checkpoint(stage, h, use_reentrant=False)
        stage.steps += 1
    h.sum().backward()
""",
    "a row of a buffer of a part, between two regions": """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
    def forward(self, x):
        return torch.sin(x + self.steps)
stages = nn.Sequential(nn.Identity(), Stage())

def run():
    h = x @ w
    for _ in range(2):
        h = checkpoint(stages, h, use_reentrant=False)
        stages[1].steps[0] += 1
    h.sum().backward()
""",
    "a buffer of a part of a list, by another number for the same": """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
    def forward(self, x):
        return torch.sin(x + self.steps)
stages = nn.Sequential(nn.Identity(), Stage())

def run():
    h, stage = x @ w, [stages]
    for _ in range(2):
        h = checkpoint(stages, h, use_reentrant=False)
        stage[0][1].steps += 1
    h.sum().backward()
""",
    "a buffer that its module gives a name": """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
    def forward(self, x):
        kept = self.steps
        return torch.sin(x + kept)
stage = Stage()

def run():
    h = x @ w
    for _ in range(2):
        h = checkpoint(stage, h, use_reentrant=False)
        stage.steps += 1
    h.sum().backward()
""",
    "a buffer and another attribute that move on between two regions": """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.ones(4, dtype=torch.float64)
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
    def forward(self, x):
        return torch.sin(x + self.steps) * self.gain
stage = Stage()

def run():
    h = x @ w
    for _ in range(2):
        h = checkpoint(stage, h, use_reentrant=False)
        stage.steps += 1
        stage.gain = stage.gain * 2
    h.sum().backward()
""",
    "regions in a row that move their own averages": STAGES
    + """
def run():
    h = x @ w
    for stage in stages:
        h = checkpoint(stage, h, use_reentrant=False)
    h.square().sum().backward()
""",
    "regions in a row that divide by averages that they move": STAGES.replace("h - self.mean", "h / (1.0 + self.mean)")
    + """
def run():
    h = x @ w
    for stage in stages:
        h = checkpoint(stage, h, use_reentrant=False)
    h.square().sum().backward()
""",
    "regions in a row that move on a place in a chain": """
from torch.utils.checkpoint import checkpoint

class Chain:
    def __init__(self):
        self.levels, self.at = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 0
    def part(self, h):
        level = self.levels[self.at]
        self.at += 1
        return torch.sin(h * level)
    def all(self, h):
        self.at = 0
        for _ in range(3):
            h = checkpoint(self.part, h, use_reentrant=False)
        return h
chain = Chain()

def run():
    chain.all(x @ w).sum().backward()
""",
    "a region that opens another row each time that it runs": """
from torch.utils.checkpoint import checkpoint

class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.ones(5, 4, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(1))
    def forward(self, h):
        self.count.add_(1)
        return torch.sin(h @ self.rows[: int(self.count)].t()).sum(1)
rows = Rows()

def run():
    y = checkpoint(rows, x @ w, use_reentrant=False)
    y.square().sum().backward()
""",
    "a workspace that each call of a Function fills anew, kept beside others": """
class Space:
    def __init__(self):
        self.kernel = torch.empty(3, 4, dtype=torch.float64)
space = Space()

class Soft(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        plan = space.kernel
        torch.exp(h, out=plan)
        plan.div_(2.0)
        ctx.plan, ctx.by = plan, 2.0
        return plan * ctx.by
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.plan * ctx.by

def run():
    (Soft.apply(x @ w) + Soft.apply(x)).sum().backward()
""",
}
SOUND["a result that is moved by one row, as a clone"] = """
def run():
    y = torch.cumprod(x @ w, dim=-1)
    y[:, 1:] = y[:, :-1].clone()
    y[:, 0] = 1.0
    (x * y).sum().backward()
"""
SOUND["keys of a cache that is filled beside them, in a dict"] = """
net = nn.Linear(4, 4, dtype=torch.float64)
def run():
    cache, total = {"k": torch.zeros(3, 3, 4, dtype=torch.float64)}, 0.0
    for t in range(3):
        cache["k"][:, t] = x @ w
        keys = cache["k"][:, : t + 1]
        total = total + torch.einsum("bd,bnd->bn", net(x), keys).sum()
    total.backward()
"""
SCRIPTS = {
    "a step and a backward in methods": NETS
    + """
class Game:
    def __init__(self):
        self.d, self.g = d, g
        self.opt_d = torch.optim.SGD(self.d.parameters(), 0.1)
        self.opt_g = torch.optim.SGD(self.g.parameters(), 0.1)
    def learn(self, given):
        loss = given.mean()
        self.opt_d.zero_grad()
        loss.backward(retain_graph=True)
        self.opt_d.step()
        return loss.item()
    def imitate(self, given):
        loss = -given.mean()
        self.opt_g.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.g.parameters(), 1.0)
        self.opt_g.step()
        return loss
    def play(self):
        seen = self.d(self.g(x.detach()))
        was = self.learn(seen)
        self.imitate(seen)
        return was
game = Game()
def run():
    print([game.play() for _ in range(2)])
    x.grad, w.grad = g.weight.detach()[:3].clone(), d.weight.detach().expand(4, 4).clone()
""",
    "a step in a function, before a backward": NETS
    + OPTIMIZERS
    + """
def learn(loss):
    opt_d.zero_grad()
    loss.backward()
    opt_d.step()
def run():
    for _ in range(2):
        fake = g(x.detach())
        loss_g = -d(fake).mean()
        learn(d(fake.detach()).mean())
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
    x.grad, w.grad = g.weight.detach()[:3].clone(), d.weight.detach().expand(4, 4).clone()
""",
}
"""Programs whose change is sound only where the program begins in their file: another one may call their functions."""
READ_ELSEWHERE = {
    "a mask that a method draws, and its caller keeps": """
class Mask:
    def __init__(self):
        self.buf = torch.empty(3, 4, dtype=torch.float64)
    def draw(self):
        self.buf.bernoulli_(0.5)
        return self.buf
def run():
    torch.manual_seed(1)
    mask, h, kept = Mask(), x @ w, []
    for _ in range(2):
        kept.append(mask.draw())
        h = h.sin() * kept[-1]
    (h.sum() * sum(one.sum() for one in kept)).backward()
""",
    "what a generator reads again when it goes on": """
def batches(kept):
    y = (x @ w).tanh()
    yield y
    kept.append(y.sigmoid().sum())
def run():
    kept = []
    for y in batches(kept):
        y += 1
        loss = y.sum()
    (loss + sum(kept)).backward()
""",
    "the default of a function that is called after the write": """
def run():
    y = (x @ w).tanh()
    def scored(value=y):
        return value.sigmoid().sum()
    y += 1
    (y.sum() + scored()).backward()
""",
    "the old name after the result got one": """
def shifted(image):
    out = image.sub_(image.mean()).mul_(2)
    return out + image
def run():
    image = x * 2
    a = image.square()
    b = (shifted(image) @ w).tanh()
    (a.sum() - b.sum()).backward()
""",
    "weights that a method puts back before a loss that reads them by another name": SIGNS
    + """
def run():
    w.grad, held = torch.zeros_like(w), net.weight
    signs.put()
    out = net(x)
    signs.restore()
    loss = F.mse_loss(out, held[:3])
    loss.backward()
""",
    "weights that a method puts back before a loss of what shows them": SIGNS
    + """
def run():
    w.grad, shown = torch.zeros_like(w), net.weight.detach()[:3]
    signs.put()
    out = net(x)
    signs.restore()
    loss = F.mse_loss(out, shown)
    loss.backward()
""",
    "a row of a list that a method hands out, which another run keeps": """
class Rows:
    def __init__(self):
        self.rows = [None]
    def all(self):
        return [row for row in self.rows]
    def loss(self, all_of_them):
        self.rows[0] = x @ w
        kept = self.all() if all_of_them else []
        loss = self.rows[0].square().sum()
        self.rows[0] += 1
        return loss + self.rows[0].sum() + sum(row.sigmoid().sum() for row in kept)
def run():
    rows = Rows()
    rows.loss(False).backward()
    rows.loss(True).backward()
""",
    "a loss that a function is given, which swaps the weights": """
import contextlib
net = nn.Linear(4, 4, dtype=torch.float64)
@contextlib.contextmanager
def restored():
    saved = net.weight.detach().clone()
    yield
    with torch.no_grad():
        net.weight.copy_(saved)
def finish(loss):
    with restored():
        seen = 1
    loss.backward()
def run():
    loss = net(x @ w).sigmoid().sum()
    net(x.detach())
    finish(loss)
""",
    "weights that a block swaps, whose old ones a loss has read": """
import contextlib
net = nn.Linear(4, 4, dtype=torch.float64)
@contextlib.contextmanager
def halved():
    saved = net.weight.detach().clone()
    with torch.no_grad():
        net.weight.mul_(0.5)
    yield
    with torch.no_grad():
        net.weight.copy_(saved)
def run():
    loss = net(x @ w).sigmoid().sum()
    with halved():
        print(net(x.detach()).sum().item() < 99)
    loss.backward()
""",
    "a value of a wider type": """
def run():
    h = (x @ w).float().tanh()
    h += w[:3]
    (h @ torch.ones(4, 2)).sum().backward()
""",
    "what a module is given, and its caller reads again in one place": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4, dtype=torch.float64)
    def forward(self, h):
        out = self.fc(h.square()) * h
        h += out
        return h
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Block(), Block()
    def forward(self, h, again):
        h = self.first(torch.sigmoid(h))
        skip = h
        return self.last(h) + skip if again else h
net = Net()
def run():
    net(x @ w, False).sum().backward()
""",
    "items of a list that another list got before the write": """
def run():
    levels = [(x @ w).tanh() for _ in range(3)]
    early = [one for one in levels]
    for i in range(2, 0, -1):
        levels[i - 1] += levels[i] * 0.5
    (levels[0] * early[0] * early[1]).sum().backward()
""",
    # The written memory is read by another name too, which must go on to see the write: no new binding is shown.
    "under another name": """
def same(t):
    return t
def run():
    h = torch.exp(x @ w)
    kept = same(h)
    y = h * h
    h += 1
    (y + kept * 3 + h).sum().backward()
""",
    "a view under another name": """
def head(t):
    return t[0]
def run():
    h = torch.exp(x @ w)
    first = head(h)
    y = h * h
    h += 1
    (y.sum() + (first * 3).sum() + h.sum()).backward()
""",
    "stored and returned": """
class Net(nn.Module):
    def features(self):
        self.last = torch.exp(x @ w)
        return self.last
    def forward(self):
        h = self.features()
        y = h * h
        h += 1
        return y + h
def run():
    net = Net()
    (net() + net.last * 2).sum().backward()
""",
    "an argument that the caller reads": """
def shift(t):
    y = t.sin()
    t += 1
    return y * t
def run():
    h = x @ w
    y = shift(h)
    (y + h).sum().backward()
""",
    "an argument that another caller reads": """
def shift(t):
    y = t.sin()
    t += 1
    return y * t
def run():
    first = shift(x @ w)
    h = x @ w
    second = shift(h)
    (first + second + h).sum().backward()
""",
    "an argument that the calling statement reads": """
def shift(t):
    y = t.sin()
    t += 1
    return y
def run():
    h = torch.exp(x @ w)
    y = shift(h) + h
    y.sum().backward()
""",
    "an item that another item is": """
def run():
    cache = {"a": x @ w}
    cache["b"] = cache["a"]
    y = cache["a"].sin()
    cache["a"] += 1
    (y + cache["b"] * cache["a"]).sum().backward()
""",
    "an item of a tuple": """
def run():
    pair = (torch.exp(x @ w), x)
    y = pair[0] * pair[0]
    pair[0].add_(1)
    (y + pair[0]).sum().backward()
""",
    "an attribute that cannot be set": """
import collections
State = collections.namedtuple("State", "h")
def run():
    state = State(torch.exp(x @ w))
    y = state.h * state.h
    state.h.add_(1)
    (y + state.h).sum().backward()
""",
    "in a default argument": """
def run():
    h = torch.exp(x @ w)
    later = lambda v=h: v * 2
    y = h * h
    h += 1
    (y + later() + h).sum().backward()
""",
    "a variable of the file": """
def features():
    global last
    last = torch.exp(x @ w)
    return last
def forward():
    h = features()
    y = h * h
    h += 1
    return y + h
def run():
    (forward() + last).sum().backward()
""",
    "whose gradient is retained": """
def run():
    h = torch.exp(x @ w)
    h.retain_grad()
    y = h * h
    h += 1
    (y + h * 2).sum().backward()
    assert h.grad is not None
""",
    "that a method sets to zero for its object": """
class Net:
    def __init__(self):
        self.states = {"v": x @ w}
    def reset(self):
        state = self.states["v"]
        state.zero_()
def run():
    net = Net()
    y = net.states["v"] ** 2
    net.reset()
    (y + net.states["v"]).sum().backward()
    assert not net.states["v"].any()
""",
}
"""PyTorch raises about these, or is silent: backward gets what was saved once a clone of it is kept."""


def _adapted(x, w):
    for _ in range(2):
        (grad,) = torch.autograd.grad((x @ w).square().mean(), w, create_graph=True)
        w = w - 0.1 * grad
    return w


def _simulated(w, state):
    cost = 0.0
    for _ in range(3):
        state = state + torch.tanh(state @ w.T)
        cost = cost + state.square().sum()
    return cost


def _shrunk_twice(code):
    first = nn.functional.softshrink(code, 1.0)
    code = first + 0.5 * torch.sin(first)
    second = nn.functional.softshrink(code, 0.5)
    return (second * torch.cos(second)).sum()


KEPT = {
    "an attribute that is None": """
class Net:
    kept = None
    def value(self):
        if self.kept is None:
            # made once
            wide = w.sin()
            self.kept = wide.exp()
        return self.kept
net = Net()
value = net.value
""",
    "an attribute that is not there": """
class Net:
    def value(self):
        if not hasattr(self, "kept"):
            self.kept = w.sin().exp()
        return self.kept
net = Net()
value = net.value
""",
    "an item by its name": """
class Net:
    def __init__(self):
        self.kept = {}
    def value(self, name="a"):
        if name not in self.kept:
            self.kept[name] = w.sin().exp()
        return self.kept[name]
net = Net()
value = net.value
""",
    "an attribute that is returned where it is there": """
class Net:
    def __init__(self):
        self.kept = None
    def value(self):
        if self.kept is not None:
            return self.kept
        self.kept = w.sin().exp()
        return self.kept
net = Net()
value = net.value
""",
    "a cached property": """
from functools import cached_property
class Net:
    @cached_property
    def kept(self):
        return w.sin().exp()
net = Net()
def value():
    return net.kept
""",
    "an attribute that `__init__` computes": """
class Net:
    def __init__(self):
        self.weight = w
        self.kept = self.weight.sin().exp()
        self.other = 1.0
nets = []
def value():
    if not nets:
        nets.append(Net())
    return nets[0].kept
""",
    "a variable of the file": """
kept = None
def value():
    global kept
    if kept is None:
        kept = w.sin().exp()
    return kept
""",
}
KEPT_RUN = """
def run():
    opt = torch.optim.SGD([x, w], lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        (x @ value()).square().sum().backward(retain_graph=True)
        opt.step()
"""


def _trained_anew(x, w):
    x, w = (one.detach().clone().requires_grad_() for one in (x, w))
    opt = torch.optim.SGD([x, w], lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        (x @ w.sin().exp()).square().sum().backward()
        opt.step()
    return [x.grad, w.grad]


def _strings_by_closure(x, w):
    x, w = (one.detach().clone().requires_grad_() for one in (x, w))
    pitch = torch.ones(4, dtype=torch.float64, requires_grad=True)
    opt = torch.optim.LBFGS([pitch], max_iter=3)

    def closure():
        opt.zero_grad()
        loss = (pitch * (x @ w) * torch.exp(pitch)).square().mean()
        loss.backward()
        return loss

    opt.step(closure)
    return [x.grad, w.grad]


def _by_closure(x, w):
    x, w = (one.detach().clone().requires_grad_() for one in (x, w))
    opt = torch.optim.LBFGS([x, w], lr=0.1, max_iter=3)

    def closure():
        opt.zero_grad()
        loss = (x @ w.sin().exp()).square().sum()
        loss.backward()
        return loss

    opt.step(closure)
    return [x.grad, w.grad]


SOUND["a loss that is computed before a loop of steps, and belongs to optimizers that step in turn"] = """
def run():
    loss = (x @ w.sin()).square().sum()
    for opt in (torch.optim.SGD([x], lr=0.1), torch.optim.SGD([w], lr=0.1)):
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
"""
REFUSED = {
    **{
        f"a loss that is computed before {where}": (text, lambda x, w: _trained_anew(x, w))
        for where, text in {
            "a loop of steps": """
def run():
    opt = torch.optim.SGD([x, w], lr=0.1)
    loss = (x @ w.sin().exp()).square().sum()
    for _ in range(3):
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
""",
            "a loop of steps, as a sum over the parts of a module": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(w.detach().clone())])
    def forward(self, rows):
        return (rows @ self.parts[0].sin().exp()).square().sum()
def cost(net):
    return net(x) + 0.0 * sum(one.sum() for one in net.parts)

def run():
    net = Net()
    opt = torch.optim.SGD([x, *net.parameters()], lr=0.1)
    loss = cost(net)
    for _ in range(3):
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
    w.grad = net.parts[0].grad
""",
            "a loop of steps by hand, whose graph is freed": """
def run():
    loss = (x @ w.sin().exp()).square().sum()
    for _ in range(3):
        x.grad = w.grad = None
        loss.backward()
        with torch.no_grad():
            x.sub_(0.1 * x.grad)
            w.sub_(0.1 * w.grad)
""",
            "a loop of steps, whose graph is freed": """
def cost(by):
    return (x @ w.sin().exp()).square().sum() * by

def run():
    opt = torch.optim.SGD([x, w], lr=0.1)
    loss = cost(1.0)
    seen = []
    for _ in range(3):
        opt.zero_grad()
        loss.backward()
        seen.append(loss.item())
        opt.step()
""",
        }.items()
    },
    "a loss of a module that is computed before the closure of an optimizer": (
        """
class Strings(nn.Module):
    def __init__(self):
        super().__init__()
        self.pitch = nn.Parameter(torch.ones(4, dtype=torch.float64))
    def forward(self, h):
        return self.pitch * h * torch.exp(self.pitch)
strings = Strings()
opt = torch.optim.LBFGS(strings.parameters(), max_iter=3)

def run():
    loss = strings(x @ w).square().mean()
    def closure():
        opt.zero_grad()
        loss.backward(retain_graph=True)
        return loss
    opt.step(closure)
""",
        lambda x, w: _strings_by_closure(x, w),
    ),
    "a loss that is computed before the closure of an optimizer": (
        """
def run():
    opt = torch.optim.LBFGS([x, w], lr=0.1, max_iter=3)
    loss = (x @ w.sin().exp()).square().sum()
    def closure():
        opt.zero_grad()
        loss.backward(retain_graph=True)
        return loss
    opt.step(closure)
""",
        lambda x, w: _by_closure(x, w),
    ),
    **{
        f"a value that is kept from the first forward on: {how}": (
            f"{text}{KEPT_RUN}",
            lambda x, w: _trained_anew(x, w),
        )
        for how, text in KEPT.items()
    },
    "a backward that scans the gradient that it is given": (
        """
class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.flip(0).cumsum(0).flip(0)
    @staticmethod
    def backward(ctx, handed):
        for row in range(1, len(handed)):
            handed[row] += handed[row - 1]
        return handed

def run():
    h = x @ w
    (Scan.apply(h) + h).sin().sum().backward()
""",
        lambda x, w: torch.autograd.grad(((x @ w).flip(0).cumsum(0).flip(0) + x @ w).sin().sum(), [x, w]),
    ),
    "a backward that computes in a table of its ctx, for the rows of a jacobian": (
        """
class Wave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        ctx.table = torch.cos(h)
        return torch.sin(h)
    @staticmethod
    def backward(ctx, grad):
        slope = ctx.table
        slope *= grad
        return slope

def run():
    y = Wave.apply(x @ w)
    for part in (y[0].sum(), 2 * y[1:].sum()):
        part.backward(retain_graph=True)
""",
        lambda x, w: torch.autograd.grad(torch.sin(x @ w)[0].sum() + 2 * torch.sin(x @ w)[1:].sum(), [x, w]),
    ),
    "a Function that writes its input and gives it back": (
        """
class Shrink(torch.autograd.Function):
    @staticmethod
    def forward(ctx, code, by):
        sign = torch.sign(code)
        code.abs_().sub_(by).clamp_(min=0).mul_(sign)
        ctx.save_for_backward(sign * (code != 0))
        return code
    @staticmethod
    def backward(ctx, grad):
        (active,) = ctx.saved_tensors
        return grad * active.abs(), None

def shrink(code, by):
    return Shrink.apply(code, by)

def run():
    code = x @ w
    code = code + 0.5 * torch.sin(shrink(code, 1.0))
    (code * torch.cos(shrink(code, 0.5))).sum().backward()
""",
        lambda x, w: torch.autograd.grad(_shrunk_twice(x @ w), [x, w]),
    ),
    "a state carried over the steps of a loop that steps now and then": (
        """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    h, total = x.detach(), 0
    for turn in range(4):
        h = cell(x.detach(), h)
        total = total + h.square().sum()
        if turn % 2:
            opt.zero_grad()
            total.backward()
            opt.step()
            total = 0
    w.grad = cell.weight_hh.grad
""",
        lambda x, w: [None, _by_two_turns(x.detach())],
    ),
    "a state that gets its next value from a variable of each turn": (
        """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    state = x.detach()
    for _ in range(3):
        h = cell(x.detach(), state)
        opt.zero_grad()
        h.square().sum().backward()
        opt.step()
        state = h
    w.grad = cell.weight_hh.grad
""",
        lambda x, w: [None, _by_one_turn_of_rnn(x.detach())],
    ),
    "a state of two variables that are both read": (
        """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    state = other = x.detach()
    for _ in range(3):
        h = cell(x.detach(), state) + 0 * other
        opt.zero_grad()
        h.square().sum().backward()
        opt.step()
        state = h
        other = h
    w.grad = cell.weight_hh.grad
""",
        lambda x, w: [None, _by_one_turn_of_rnn(x.detach())],
    ),
    "both parts of the state of a cell": (
        """
cell = nn.LSTMCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    state = x.detach(), x.detach()
    for _ in range(3):
        state = cell(x.detach(), state)
        opt.zero_grad()
        state[0].square().sum().backward(retain_graph=True)
        opt.step()
    w.grad = cell.weight_hh.grad[:4]
""",
        lambda x, w: [None, _by_one_turn(x.detach())],
    ),
    "both parts of the state of a cell, in a method that another one of the class calls in turn": (
        """
class Online:
    def __init__(self):
        self.cell, self.state = nn.LSTMCell(4, 4, dtype=torch.float64), (x.detach(), x.detach())
        self.opt = torch.optim.SGD(self.cell.parameters(), 0.1)
    def turn(self, seen):
        self.opt.zero_grad()
        self.state = self.cell(seen, self.state)
        loss = self.state[0].square().sum()
        loss.backward(retain_graph=True)
        self.opt.step()
        return loss.item()
    def train(self, series):
        return [self.turn(seen) for seen in series]
def run():
    online = Online()
    online.train([x.detach()] * 3)
    w.grad = online.cell.weight_hh.grad[:4]
""",
        lambda x, w: [None, _by_one_turn(x.detach())],
    ),
    "a state of an object whose method updates after each episode": (
        """
class Agent:
    def __init__(self):
        self.cell = nn.RNNCell(4, 4, dtype=torch.float64)
        self.opt = torch.optim.SGD(self.cell.parameters(), 0.1)
        self.h = x.detach()
    def act(self, seen):
        self.h = self.cell(seen, self.h)
        return self.h.square().sum()
    def update(self, losses):
        self.opt.zero_grad()
        sum(losses).backward()
        self.opt.step()
        return len(losses)
def run():
    agent = Agent()
    for _ in range(2):
        agent.update([agent.act(x.detach()) for _ in range(2)])
    w.grad = agent.cell.weight_hh.grad
""",
        lambda x, w: [None, _by_two_turns(x.detach())],
    ),
    "a leaf that steps up its gradient, and is clamped": (
        """
def run():
    delta = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        ((x.detach() + delta) @ w).tanh().sum().backward()
        delta += 0.1 * delta.grad.sign()
        delta.clamp_(-0.15, 0.15)
        delta.grad.zero_()
    w.grad = None
    ((x + delta) @ w).sum().backward()
""",
        lambda x, w: _attacked(x.detach(), w.detach()),
    ),
    "rows that a loop writes in several lines": (
        """
def run():
    maps = x @ w
    for row in maps:
        row -= 0.5 * row.mean()
        row *= 3
    maps.square().sum().backward()
""",
        lambda x, w: _of_product(x, w, _of_rows(x @ w)),
    ),
    "rows that a loop writes beside numbers": (
        """
def scaled(maps):
    for row, scale, shift in zip(maps, (2.0, 3.0, 4.0), (1.0, 1.0, 1.0)):
        row.mul_(scale).add_(shift)
    return maps

def run():
    scaled(x @ w).sum().backward()
""",
        lambda x, w: _of_product(x, w, torch.tensor([[2.0], [3.0], [4.0]], dtype=x.dtype).expand(3, 4)),
    ),
    "rows that a loop writes, of what another name shows": (
        """
def run():
    maps = x @ w
    shown = maps.view(-1)
    for row in maps:
        row *= 3
    (maps.square().sum() + shown.sum()).backward()
""",
        lambda x, w: _gradients(x, w, lambda h: (3 * h).square().sum() + (3 * h).sum()),
    ),
    "rows that a loop counts": (
        """
def run():
    maps = x @ w
    for i, row in enumerate(maps.unbind(0)):
        row *= w[i].sum()
    maps.square().sum().backward()
""",
        lambda x, w: _gradients(x, w, lambda h: (h * w.sum(1)[:3, None]).square().sum()),
    ),
    "edges of a grid, as views that are made without gradients": (
        """
class Frame:
    def edges(self, grid):
        with torch.no_grad():
            top, bottom = grid[:1], grid[-1:]
        return top, bottom
def run():
    grid = x @ w
    for edge in Frame().edges(grid):
        edge *= 0.5
    grid.square().sum().backward()
""",
        lambda x, w: _gradients(x, w, lambda h: (h * h.new_tensor([[0.5], [1], [0.5]])).square().sum()),
    ),
    "a leaf whose ends are set before anything reads it": (
        """
def ends(low=0.5, high=2.0):
    at = (1 + x.detach()).requires_grad_()
    at[0] = low
    at[-1] = high
    return at
def run():
    at = ends()
    (slope,) = torch.autograd.grad((at @ w).square().sum(), at, create_graph=True)
    slope.square().sum().backward()
""",
        lambda x, w: [None, _by_slope_at(x, w)],
    ),
    "weights that are moved to the mean of others": (
        """
net, others = nn.Linear(4, 4, dtype=torch.float64), [nn.Linear(4, 4, dtype=torch.float64) for _ in range(2)]
def run():
    for name, weight in net.named_parameters():
        moved = torch.zeros_like(weight)
        for one in others:
            moved += (dict(one.named_parameters())[name].detach() - weight.detach()) / len(others)
        weight += moved
    net(x).square().sum().backward()
""",
        lambda x, w: [_by_mean(x), None],
    ),
    "rows that a loop writes in one line": (
        """
def scaled(maps):
    for row in maps:
        row.mul_(3)
    return maps

def run():
    scaled(x @ w).square().sum().backward()
""",
        lambda x, w: _of_product(x, w, 18 * (x @ w)),
    ),
    "two halves of a new tensor, taken before both are written": (
        """
def run():
    size = 2
    code = torch.zeros(3, 4, dtype=torch.float64)
    head, tail = code[:, :size], code[:, size:]
    head.copy_((x @ w)[:, :2].sin())
    tail += (x @ w)[:, 2:].exp()
    code.sum().backward()
""",
        lambda x, w: _of_product(x, w, torch.cat([(x @ w)[:, :2].cos(), (x @ w)[:, 2:].exp()], dim=1)),
    ),
    "gates that a loop writes, parts of what is read no more": (
        """
def run():
    gates = (x @ w)
    i, f = gates.chunk(2, dim=1)
    for gate in (i, f):
        gate.sigmoid_()
    (i * f).sum().backward()
""",
        lambda x, w: _of_product(x, w, _of_gates(x @ w)),
    ),
    "a view that a custom Function returns": (
        """
class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.view_as(h)
    @staticmethod
    def backward(ctx, gradient):
        return -gradient

def run():
    net = nn.Sequential(nn.LeakyReLU(0.5, inplace=True))
    h = x @ w
    net(Reverse.apply(h)).sum().backward()
""",
        lambda x, w: _of_product(x, w, -torch.where(x @ w > 0, torch.ones_like(x), 0.5)),
    ),
    "weights of an inner loop that goes through a dict": (
        """
def adapt():
    fast = dict(w=w)
    for _ in range(2):
        loss = (x @ fast["w"]).square().mean()
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        for (name, p), grad in zip(fast.items(), grads):
            p -= 0.1 * grad
    return fast
def run():
    (x @ adapt()["w"]).sum().backward()
""",
        lambda x, w: torch.autograd.grad((x @ _adapted(x, w)).sum(), [x, w]),
    ),
    "weights of an inner loop that goes through a list and counts": (
        """
def adapt():
    fast = [w]
    for _ in range(2):
        loss = (x @ fast[0]).square().mean()
        grads = torch.autograd.grad(loss, fast, create_graph=True)
        for i, (p, grad) in enumerate(zip(fast, grads)):
            p -= 0.1 * grad
    return fast[0]
def run():
    (x @ adapt()).sum().backward()
""",
        lambda x, w: torch.autograd.grad((x @ _adapted(x, w)).sum(), [x, w]),
    ),
    "a part that a method expands for another one": (
        """
class Filter:
    def __init__(self):
        self.mean, self.spread = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    def begin(self):
        return self.mean.expand(3, -1), self.spread.expand(3, -1)
    def run(self):
        mean, spread = self.begin()
        spread *= torch.arange(3.0, dtype=torch.float64)[:, None]
        return mean.sum() + (x @ w * spread).sum() + self.spread.sum()
def run():
    Filter().run().backward()
""",
        lambda x, w: torch.autograd.grad((x @ w * torch.arange(3.0, dtype=x.dtype)[:, None]).sum(), [x, w]),
    ),
    "weights of an inner loop in a dict": (
        """
def adapt():
    fast = dict(w=w)
    for _ in range(2):
        loss = (x @ fast["w"]).square().mean()
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        for name, grad in zip(fast, grads):
            fast[name] -= 0.1 * grad
    return fast
def run():
    (x @ adapt()["w"]).sum().backward()
""",
        lambda x, w: torch.autograd.grad((x @ _adapted(x, w)).sum(), [x, w]),
    ),
    "a state under vmap that each turn moves on, from what is not mapped": (
        """
net = nn.Linear(4, 4, bias=False, dtype=torch.float64)
def simulated(weight, first):
    state, cost = first.clone(), 0.0
    for _ in range(3):
        moved = torch.func.functional_call(net, {"weight": weight}, (state,))
        state += torch.tanh(moved)
        cost = cost + state.square().sum()
    return cost

def run():
    torch.vmap(simulated, in_dims=(0, None))(torch.stack([w, w * 2]), x[0]).sum().backward()
""",
        lambda x, w: torch.autograd.grad(_simulated(w, x[0]) + _simulated(w * 2, x[0]), [x, w]),
    ),
    "a sum under vmap, begun with what is not mapped": (
        """
def features(parts, row):
    total = torch.zeros(4, dtype=torch.float64)
    for part in parts:
        total += torch.tanh(row @ part)
    return total.square().sum()

def run():
    torch.vmap(features, in_dims=(None, 0))([w, w * 2], x).sum().backward()
""",
        lambda x, w: torch.autograd.grad((torch.tanh(x @ w) + torch.tanh(x @ w * 2)).square().sum(), [x, w]),
    ),
    "a buffer of a module that moves on between two regions": (
        """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
    def forward(self, x):
        return torch.sin(x + self.steps)
stage = Stage()

def run():
    h = x @ w
    for _ in range(2):
        h = checkpoint(stage, h, use_reentrant=False)
        stage.steps += 1
    h.sum().backward()
""",
        lambda x, w: torch.autograd.grad(torch.sin(torch.sin(x @ w) + 1).sum(), [x, w]),
    ),
    "a buffer of a part of a module that moves on between two regions": (
        """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
    def forward(self, x):
        return torch.sin(x + self.steps)
stages = nn.Sequential(nn.Identity(), Stage())

def run():
    h = x @ w
    for _ in range(2):
        h = checkpoint(stages, h, use_reentrant=False)
        stages[1].steps += 1
    h.sum().backward()
""",
        lambda x, w: torch.autograd.grad(torch.sin(torch.sin(x @ w) + 1).sum(), [x, w]),
    ),
    "a buffer that a region gets as an argument, and that moves on": (
        """
from functools import partial
from torch.utils.checkpoint import checkpoint

class Shifted(nn.Module):
    def forward(self, x, by):
        return torch.sin(x + by)
class Stages(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Shifted()
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
    def advance(self):
        self.steps += 1
    def forward(self, h):
        for _ in range(2):
            h = checkpoint(partial(self.part, by=self.steps), h, use_reentrant=False)
            self.advance()
        return h
stages = Stages()

def run():
    stages(x @ w).sum().backward()
""",
        lambda x, w: torch.autograd.grad(torch.sin(torch.sin(x @ w) + 1).sum(), [x, w]),
    ),
    "updates by hand, and gradients that are zeroed": (
        """
def step(x, w):
    kept = {"x": x, "w": w}
    for _ in range(2):
        (x @ w).sum().backward()
        x -= 0.1 * x.grad
        x.grad.zero_()
        w -= 0.1 * w.grad
        w.grad = None
    return kept

def run():
    for one in step(x, w).values():
        one.grad = one.detach().clone()
""",
        lambda x, w: _descended(*_descended(x, w)),
    ),
    "a gradient that a hook scales": (
        """
class Damped(nn.Module):
    def forward(self, h):
        f, s = h.cos(), h.sin()
        s.register_hook(self._damp)
        return f + s
    def _damp(self, g):
        g *= 0.5
        return g
damped = Damped()

def run():
    damped(x @ w).square().sum().backward()
""",
        _damped,
    ),
    "a gradient that a hook scales, which a function has made": (
        """
def by(share):
    def damp(g):
        g.mul_(share)
        return g
    return damp
def run():
    h = x @ w
    f, s = h.cos(), h.sin()
    s.register_hook(by(0.5))
    (f + s).square().sum().backward()
""",
        _damped,
    ),
    "a gradient that a hook scales and does not return": (
        """
def run():
    def damp(g):
        g.mul_(0.5)
    h = x @ w
    f, s = h.cos(), h.sin()
    s.register_hook(damp)
    (f + s).square().sum().backward()
""",
        _damped,
    ),
    "a mask that a ctx keeps beside a number, drawn anew for each call": (
        """
class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, mask):
        ctx.mask, ctx.scale = mask, 2.0
        return u * mask * 2.0
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.mask * ctx.scale, None
mask = torch.empty(3, 4, dtype=torch.float64)

def masked(u, share):
    mask.fill_(share)
    return Masked.apply(u, mask)

def run():
    masked(masked(x @ w, 0.5), 0.9).sum().backward()
""",
        lambda x, w: [4 * 0.5 * 0.9 * one for one in _slopes(x, w)],
    ),
    "gradients of both inputs of a sum, scaled in a loop": (
        """
def run():
    a, b = x.detach().requires_grad_(), w[:3].detach().requires_grad_()
    gradients = torch.autograd.grad((a + b).square().sum(), (a, b))
    for one in gradients:
        one.mul_(0.5)
    x.grad, w.grad = gradients[0], torch.cat([gradients[1], torch.zeros(1, 4, dtype=torch.float64)])
""",
        lambda x, w: [x + w[:3], torch.cat([x + w[:3], torch.zeros(1, 4, dtype=torch.float64)])],
    ),
    "a position that a region reads by a method, which another one sets back": (
        """
from torch.utils.checkpoint import checkpoint

class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.zeros(4, dtype=torch.float64))
    def reset(self):
        self.offset.zero_()
    def shifted(self, h):
        return torch.sin(h + self.offset)
    def forward(self, h):
        h = checkpoint(self.shifted, h, use_reentrant=False)
        self.offset += 1
        return h
stream = Stream()

def run():
    stream.reset()
    (stream(x @ w) * stream(w[:3])).sum().backward()
""",
        lambda x, w: torch.autograd.grad(((x @ w).sin() * (w[:3] + 1).sin()).sum(), [x, w]),
    ),
    "what a forward fills and keeps on its ctx, before it writes elsewhere": (
        """
pool = {"cos": torch.empty(3, 4, dtype=torch.float64)}

class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        phase = u * 2
        slope = pool["cos"]
        torch.cos(phase, out=slope)
        ctx.slope = slope
        return phase.sin_()
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.slope * 2

def run():
    Sine.apply(Sine.apply(x @ w)).sum().backward()
""",
        lambda x, w: torch.autograd.grad(((x @ w * 2).sin() * 2).sin().sum(), [x, w]),
    ),
    "what a ctx keeps, in which its backward computes, and which runs again": (
        """
class Waves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.s, ctx.c = u.sin(), u.cos()
        return ctx.s**2
    @staticmethod
    def backward(ctx, gradient):
        slope = ctx.s.mul_(ctx.c).mul_(2)
        return gradient * slope

def run():
    h = Waves.apply(x @ w)
    h.sum().backward(retain_graph=True)
    x.grad = w.grad = None
    h.sum().backward()
""",
        lambda x, w: torch.autograd.grad((x @ w).sin().square().sum(), [x, w]),
    ),
    "a gradient that a module's hook unpacks and scales": (
        """
part = nn.Softplus()
def damp(module, grads):
    (g,) = grads
    g.mul_(0.5)
part.register_full_backward_pre_hook(damp)

def run():
    h = x @ w
    (h.sin() + part(h)).square().sum().backward()
""",
        _of_module,
    ),
    "a gradient that a module's hook scales where it is a matrix": (
        """
part = nn.Softplus()
def damp(module, grads):
    if grads[0].dim() == 2:
        grads[0].mul_(0.5)
part.register_full_backward_pre_hook(damp)

def run():
    h = x @ w
    (h.sin() + part(h)).square().sum().backward()
""",
        _of_module,
    ),
    "rows that a loop takes apart": (
        """
class Gains(nn.Module):
    def forward(self, rows):
        out = []
        for i, row in enumerate(rows.unbind(0)):
            row *= i
            out.append(row)
        return torch.stack(out)
gains = Gains()

def run():
    h = x @ w
    h = gains(h)
    h.sum().backward()
""",
        lambda x, w: torch.autograd.grad(((x @ w) * x.new_tensor([[0.0], [1.0], [2.0]])).sum(), [x, w]),
    ),
    "halves that are turned into each other": (
        """
def turned(t):
    a, b = t.chunk(2, dim=-1)
    new_a, new_b = a * 3 - b, a + b * 3
    a.copy_(new_a)
    b.copy_(new_b)
    return t

def run():
    h = turned(x @ w)
    h.square().sum().backward()
""",
        lambda x, w: torch.autograd.grad(10 * (x @ w).square().sum(), [x, w]),
    ),
    "rows that are scaled where they are": (
        """
def run():
    h = x @ w
    a, b, c = torch.unbind(h)
    b.mul_(2)
    c *= 3
    h.square().sum().backward()
""",
        lambda x, w: torch.autograd.grad(((x @ w) * x.new_tensor([[1.0], [2.0], [3.0]])).square().sum(), [x, w]),
    ),
    "initial values of what has a bias that is no parameter": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.bias = None

def run():
    net = Net()
    net.bias = (x @ w).sum(0)
    net.weight.fill_(0.5)
    net.bias.mul_(2)
    (net.weight * net.bias).sum().backward()
""",
        lambda x, w: torch.autograd.grad((x @ w).sum(), [x, w]),
    ),
    "a buffer that a region reads again after it was written": (
        """
from torch.utils.checkpoint import checkpoint

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64))
    def body(self, x):
        return torch.tanh(x * self.scale)
    def forward(self, x):
        y = checkpoint(self.body, x, use_reentrant=False)
        self.scale.mul_(0.5)
        return y
scaled = Scaled()

def run():
    scaled(x @ w).sum().backward()
""",
        lambda x, w: torch.autograd.grad(torch.tanh(x @ w).sum(), [x, w]),
    ),
    "a buffer that a region advances, which may run without a checkpoint": (
        """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
    def forward(self, h):
        self.steps += 1
        return torch.sin(h + self.steps)
stage, is_deep = Stage(), True

def run():
    y = checkpoint(stage, x @ w, use_reentrant=False) if is_deep else stage(x @ w)
    y.sum().backward()
""",
        lambda x, w: torch.autograd.grad(torch.sin(x @ w + 1).sum(), [x, w]),
    ),
    "a weight and a bias of a module that are set": (
        """
net = nn.Linear(4, 4, dtype=torch.float64)

class Init:
    def __init__(self, net):
        self.net = net
        self.net.weight.fill_(0.5)
        self.net.bias.zero_()
        self.net.bias += 1

def run():
    Init(net)
    (net(x @ w)).square().sum().backward()
""",
        lambda x, w: torch.autograd.grad((F.linear(x @ w, torch.full_like(w, 0.5)) + 1).square().sum(), [x, w]),
    ),
    "a view of a bias, whose values go back to its place": (
        """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4, dtype=torch.float64)
        nn.init.zeros_(self.out.bias)
        self.begin()
    def begin(self):
        bias = self.out.bias.view(2, -1)
        bias[:, 0] += 0.5
        bias[:, 1:] += 0.25
        self.out.bias = nn.Parameter(bias.view(-1), requires_grad=True)

def run():
    head = Head()
    (head.out.bias * (x @ w)).square().sum().backward()
""",
        lambda x, w: torch.autograd.grad((x.new_tensor([0.5, 0.25, 0.5, 0.25]) * (x @ w)).square().sum(), [x, w]),
    ),
    "a variable that a call fills": (
        """
def run():
    h, out = x @ w, torch.empty(3, 4, dtype=torch.float64)
    torch.sigmoid(h, out=out)
    (out * out).sum().backward()
""",
        lambda x, w: torch.autograd.grad(torch.sigmoid(x @ w).square().sum(), [x, w]),
    ),
    "memory that an unpack hook scales each time": (
        """
class Codec:
    def pack(self, t):
        return t / 3, 3.0
    def unpack(self, packed):
        body, scale = packed
        return body.to(torch.float64).mul_(scale)

def run():
    codec = Codec()
    with torch.autograd.graph.saved_tensors_hooks(codec.pack, codec.unpack):
        y = torch.exp(x @ w)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
""",
        lambda x, w: [2 * one for one in torch.autograd.grad(torch.exp(x @ w).sum(), [x, w])],
    ),
    "memory that an unpack hook scales before it gives it": (
        """
def unpack(t):
    t.mul_(3)
    return t

def run():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t / 3, unpack):
        y = torch.exp(x @ w)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
""",
        lambda x, w: [2 * one for one in torch.autograd.grad(torch.exp(x @ w).sum(), [x, w])],
    ),
    "both parts of what was divided": (
        """
def run():
    a, b = (x @ w).chunk(2, 1)
    a.tanh_()
    b.sigmoid_()
    (a * b).sum().backward()
""",
        _divided,
    ),
    "an update by hand": (
        """
def run():
    (x @ w).sum().backward()
    for one in (x, w):
        one -= 0.1 * one.grad
        one.grad = one.detach().clone()
""",
        _descended,
    ),
    "two updates by hand": (
        """
def run():
    (x @ w).sum().backward()
    update()
    x.grad, w.grad = x.detach().clone(), w.detach().clone()
def update():
    global x, w
    x -= 0.1 * x.grad
    w -= 0.1 * w.grad
""",
        _descended,
    ),
    "an update by what `autograd.grad` gives": (
        """
def run():
    global x, w
    gx, gw = torch.autograd.grad((x @ w).sum(), (x, w))
    x -= 0.1 * gx
    w -= 0.1 * gw
    x.grad, w.grad = x.detach().clone(), w.detach().clone()
""",
        _descended,
    ),
    "a row of a parameter that is set": (
        """
w = nn.Parameter(w.detach())
def run():
    w[0] = 0.0
    (x @ w).sum().backward()
""",
        lambda x, w: [
            (w * (w.new_ones(4, 1).cumsum(0) > 1)).sum(1).expand(3, 4),
            x.sum(0)[:, None].expand(4, 4),
        ],
    ),
    "a tensor whose elements share memory": (
        """
def run():
    h = (x @ w).sum(0).expand(3, 4)
    h += x
    h.square().sum().backward()
""",
        lambda x, w: [
            2 * ((x @ w).sum(0) + x) + (2 * ((x @ w).sum(0) + x)).sum(0) @ w.T,
            x.sum(0)[:, None] * (2 * ((x @ w).sum(0) + x)).sum(0),
        ],
    ),
    "weights clipped": (
        """
BOUND = 0.5
def run():
    (x @ w).sum().backward()
    for one in (x, w):
        one.clamp_(-BOUND, BOUND)
        one.grad = one.detach().clone()
""",
        lambda x, w: [x.clamp(-0.5, 0.5), w.clamp(-0.5, 0.5)],
    ),
    "a part that is bound anew with the others below the write": (
        """
def run():
    a, b = (x @ w).chunk(2, dim=1)
    a *= 2
    a, b = map(torch.tanh, (a, b))
    (a * b).sum().backward()
""",
        lambda x, w: _of_two_halves(x, w),
    ),
    "weights brought back to length one below a step": (
        """
net = nn.Linear(4, 4, bias=False, dtype=torch.float64)
net.weight = nn.Parameter(w.detach().clone())
opt = torch.optim.SGD(net.parameters(), 0.1)
def run():
    for _ in range(2):
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()
        net.weight /= net.weight.norm(dim=1, keepdim=True)
    w.grad = net.weight.detach().clone()
""",
        lambda x, w: _by_two_steps_and_lengths(x, w),
    ),
    "weights that a method brings back to length one after each step": (
        """
class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(w.detach().clone())
    def project(self):
        self.weight /= self.weight.norm(dim=1, keepdim=True)
    def forward(self, h):
        return h @ self.weight.t()
net = nn.ModuleDict({"rows": Rows()})
rows = net["rows"]
opt = torch.optim.SGD(rows.parameters(), 0.1)
def run():
    for _ in range(2):
        opt.zero_grad()
        rows(x).sum().backward()
        opt.step()
        rows.project()
    w.grad = rows.weight.detach().clone()
""",
        lambda x, w: _by_two_steps_and_lengths(x, w),
    ),
    "a value that overlaps what it is written to": (
        """
def run():
    h = torch.ones(4, 4, dtype=torch.float64) * 2
    h[1:] = h[:-1]
    (x @ h).sum().backward()
""",
        lambda x, w: [x * 0 + 8, None],
    ),
    "a canvas filled under vmap, of a function that others call as well": (
        """
def row(values):
    canvas = torch.zeros(4)
    canvas[0] = values[0]
    return canvas

def run():
    row(torch.ones(4))
    torch.vmap(row)(x @ w).sum().backward()
""",
        _of_first_column,
    ),
    "a canvas filled under vmap, where one argument is not mapped": (
        """
def row(table, values):
    canvas = torch.zeros(4)
    canvas[0] = values[0]
    return canvas

def run():
    torch.vmap(row, in_dims=(None, 0))(torch.ones(4), x @ w).sum().backward()
""",
        _of_first_column,
    ),
    "a canvas filled under vmap": (
        """
def row(values, offset):
    canvas = torch.zeros(4, 4)
    for i in range(4):
        canvas[i, i] = values[i] * offset
    return canvas

def run():
    torch.vmap(row)(x @ w, torch.arange(3)).pow(2).sum().backward()
""",
        lambda x, w: [2 * _squared(x) * (x @ w) @ w.T, x.T @ (2 * _squared(x) * (x @ w))],
    ),
    "losses of one forward, each with a backward of its own": (
        """
def terms(h):
    return {"mean": h.square().mean(), "sum": h.sigmoid().sum()}
def run():
    losses = terms(torch.tanh(x @ w))
    for name, term in losses.items():
        (2 * term if name == "sum" else term).backward()
""",
        _of_both,
    ),
    "both halves of a parameter that are set": (
        """
w = nn.Parameter(w.detach())
angles = torch.arange(8.0, dtype=torch.float64).view(4, 2)
def fill(out, angles):
    out[:, 0::2] = torch.sin(angles)
    out[:, 1::2] = torch.cos(angles)
def run():
    fill(w, angles)
    (x @ w).sum().backward()
""",
        lambda x, w: [_waves(w).sum(1).expand(3, 4), x.sum(0)[:, None].expand(4, 4)],
    ),
    "weights stepped by hand in the loop that computes the loss": (
        """
def run():
    for _ in range(2):
        loss = (x @ w).square().sum()
        loss.backward()
        speed = w.grad * 0.9
        w.sub_(speed)
""",
        lambda x, w: _stepped_between(x.detach(), w.detach()),
    ),
    "weights that decay by what they are, stepped in the loop that reads their gradients": (
        """
def decayed(weights):
    for one in weights:
        step = one.grad
        if one.dim() > 1:
            step = step + 0.9 * one.detach()
        one -= 0.1 * step
        one.grad = None
def run():
    for _ in range(2):
        (x.detach() @ w).square().sum().backward()
        decayed([w])
    (x.detach() @ w).square().sum().backward()
""",
        lambda x, w: [None, _after_decay(x.detach(), w.detach())],
    ),
    "a state that each turn makes anew and hands over": (
        """
cell = nn.LSTMCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
class State:
    def __init__(self, h, c):
        self.h, self.c = h, c
class Learner:
    def __init__(self):
        self.state = None
def run():
    learner = Learner()
    learner.state = State(x.detach(), x.detach())
    for _ in range(3):
        h, c = cell(x.detach(), (learner.state.h, learner.state.c))
        latent = State(h, c)
        opt.zero_grad()
        latent.h.square().sum().backward()
        opt.step()
        learner.state = latent
    w.grad = cell.weight_hh.grad[:4]
""",
        lambda x, w: [None, _by_one_turn(x.detach())],
    ),
    "weights stepped by hand in a generator": (
        """
def updates(weights):
    for one in weights:
        step = 0.1 * one.grad
        one.mul_(0.9)
        one.sub_(step)
        yield one.square().sum()
def run():
    (x @ w).sum().backward()
    sum(updates([x, w])).backward()
""",
        lambda x, w: [g + 2 * one for g, one in zip(_slopes(x, w), _moved(x, w), strict=True)],
    ),
    "weights that decay, by the name of an update": (
        """
def run():
    (x @ w).sum().backward()
    for one in (x, w):
        update = one.grad + 0.1 * one
        one -= 0.1 * update
    x.grad, w.grad = x.detach().clone(), w.detach().clone()
""",
        lambda x, w: [0.99 * one - 0.1 * g for g, one in zip(_slopes(x, w), (x, w), strict=True)],
    ),
    "a point that moves by what is computed without gradients": (
        """
def run():
    point = x.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad((point @ w).sum(), point)
    with torch.no_grad():
        drift, scale = 0.1 * slope, 2.0
    point -= scale * drift
    (point @ w).sum().backward()
    x.grad = point.detach()
""",
        lambda x, w: [x - 0.2 * _slopes(x, w)[0], (x - 0.2 * _slopes(x, w)[0]).sum(0)[:, None].expand(4, 4)],
    ),
    "weights stepped by hand in several statements": (
        """
class Descent:
    def __init__(self, weights, rate):
        self.weights, self.rate = weights, rate
        self.speeds = {name: torch.zeros_like(one) for name, one in weights.items()}
    def step(self):
        for name, one in self.weights.items():
            if one.grad is None:
                continue
            speed = self.speeds[name]
            speed.mul_(0.9).add_(one.grad)
            one.mul_(1 - self.rate)
            one -= self.rate * speed
def run():
    descent = Descent({"x": x, "w": w}, 0.1)
    (x @ w).sum().backward()
    descent.step()
    x.grad, w.grad = x.detach().clone(), w.detach().clone()
""",
        lambda x, w: [0.9 * x - 0.1 * w.sum(1).expand(3, 4), 0.9 * w - 0.1 * x.sum(0)[:, None].expand(4, 4)],
    ),
    "features made for inference": (
        """
@torch.inference_mode()
def features():
    return torch.ones(3, 4, dtype=torch.float64)
def run():
    (features() * x).sum().backward()
""",
        lambda x, w: [x * 0 + 1, None],
    ),
    "what spreads out is returned written": (
        """
def scaled(t):
    return t.mul_(2).add_(1)
def run():
    (scaled(torch.ones(1, 4, dtype=torch.float64).expand(3, 4)) * x).sum().backward()
""",
        lambda x, w: [x * 0 + 3, None],
    ),
    "gates of one tensor, written in a loop": (
        """
def run():
    i, f = (x @ w).chunk(2, 1)
    for g in (i, f):
        g.sigmoid_()
    (i * f).sum().backward()
""",
        lambda x, w: torch.autograd.grad(((x @ w)[:, :2].sigmoid() * (x @ w)[:, 2:].sigmoid()).sum(), [x, w]),
    ),
    "losses that are summed and never set anew": (
        """
opt = torch.optim.SGD([w], 0.0)
def run():
    total = 0
    for _ in range(2):
        total += (x @ w).square().sum()
        total.backward()
        opt.step()
""",
        lambda x, w: torch.autograd.grad(2 * (x @ w).square().sum(), [x, w]),
    ),
    "losses whose sum is read": (
        """
opt = torch.optim.SGD([w], 0.0)
def run():
    total = 0
    for _ in range(2):
        total = total + (x @ w).square().sum() * (1 + float(total))
        total.backward()
        opt.step()
""",
        lambda x, w: torch.autograd.grad((x @ w).square().sum() * (2 + (x @ w).square().sum().item()), [x, w]),
    ),
}
"""PyTorch refuses these, so they have no gradients of their own: with the gradients that the change is to give."""

WORDS = {
    "weights of an inner loop that come back by the name of the argument": """
def adapted(theta):
    fast = theta
    fast -= 0.5
    theta = fast
    return theta

def run():
    net = nn.Linear(4, 4, bias=False, dtype=torch.float64)
    quick = adapted(net.weight)
    (F.linear(x @ w, quick).sin() + net(x @ w)).sum().backward()
""",
    "a view of a bias that goes on in another place": """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4, dtype=torch.float64)
        bias = self.out.bias.view(-1)
        bias += 0.5
        self.shifted = nn.Parameter(bias.view(-1))
    def forward(self, h):
        return h * self.out.bias + h.sin() * self.shifted

def run():
    Head()(x @ w).sum().backward()
""",
    "a picture of what is read no more, beside one of what is printed": """
def draw(values):
    heat = values.data
    heat -= heat.amin()
    return heat.tolist()

def run():
    other = torch.arange(4.0)
    attention = torch.softmax(x @ w, -1)
    read = (attention @ w).sin().sum()
    drawn = draw(attention[0]), draw(other), other.tolist()
    read.backward()
""",
    "a buffer that no region reads, beside a counter that nobody sees": """
from torch.utils.checkpoint import checkpoint

seen = {"n": 0}
def turns():
    seen["n"] += 1
    return seen["n"] > 1
class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
    def forward(self, h):
        return torch.sin(torch.exp(h) if self.training and turns() else h)
stage = Stage()

def run():
    y = checkpoint(stage, x @ w, use_reentrant=False)
    stage.calls.add_(1)
    y.sum().backward()
""",
    "a region that keeps its state, which the program then writes through `.data`": """
from torch.utils.checkpoint import checkpoint

class Stage:
    def __init__(self):
        self.state, self.at = torch.ones(4, dtype=torch.float64), 1.0
    def run(self, h):
        self.at += 1.0
        self.state = self.state * 0.5
        return torch.sin(h * self.state) * self.at
stage = Stage()

def run():
    y = checkpoint(stage.run, x @ w, use_reentrant=False)
    stage.state.data.mul_(10.0)
    y.sum().backward()
""",
    "a region that moves on a place, and whose graph is kept for a second backward": """
from torch.utils.checkpoint import checkpoint

class Stage:
    at = 1.0
    def run(self, h):
        self.at += 1.0
        return torch.sin(h * self.at)
stage = Stage()

def run():
    y = checkpoint(stage.run, x @ w, use_reentrant=False).sum()
    y.backward(retain_graph=True)
    y.backward()
""",
    "a weight that a forward clips and reads, where some turns have no backward": """
class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.leak = nn.Parameter(torch.full((4,), 0.5, dtype=torch.float64))
    def forward(self, h):
        self.leak.clamp_(0.0, 1.0)
        return torch.sin(h * self.leak)
leaky = Leaky()

def run():
    total = 0.0
    for turn in range(4):
        total = total + leaky(x @ w).sum()
        if turn % 2:
            total.backward()
            total = 0.0
""",
    "a weight that what a forward calls clips, where it runs for each part": """
class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.leak = nn.Parameter(torch.full((4,), 0.5, dtype=torch.float64))
    def clip(self):
        self.leak.clamp_(0.0, 1.0)
    def forward(self, h):
        self.clip()
        return torch.sin(h * self.leak)
leaky = Leaky()

def run():
    sum([leaky(one).sum() for one in (x @ w).unbind(0)]).backward()
""",
    "a mask on a ctx that is a number in other calls": """
class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, mask):
        if torch.is_tensor(mask):
            mask.copy_(u.detach() + 1.0)
        ctx.mask = mask
        return u * mask
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.mask, None

def run():
    mask, apply = torch.zeros(3, 4, dtype=torch.float64), Masked.apply
    (apply(x @ w, mask) + apply(x, mask) + apply(x, 2.0)).sum().backward()
""",
    "a buffer between regions that are reentrant": """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(4, dtype=torch.float64))
    def forward(self, x):
        return torch.sin(x + self.steps)
stage = Stage()

def run():
    h = x @ w
    for _ in range(2):
        h = checkpoint(stage, h, use_reentrant=True)
        stage.steps += 1
    h.sum().backward()
""",
    "what a ctx keeps, in which its backward computes, and which it reads by another name": """
class Waves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.s, ctx.c = u.sin(), u.cos()
        return ctx.s**2
    @staticmethod
    def backward(ctx, gradient):
        s = ctx.s
        slope = ctx.s.mul_(ctx.c)
        return gradient * (slope + s)

def run():
    h = Waves.apply(x @ w)
    h.sum().backward(retain_graph=True)
    h.sum().backward()
""",
    "a buffer that a region gets, and reads without its name": """
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("by", torch.ones(4, dtype=torch.float64))
    def inner(self, h, by):
        return (h * by / getattr(self, "by").norm()).sin()
    def forward(self, h):
        y = checkpoint(self.inner, h, self.by, use_reentrant=False)
        self.by += 1.0
        return y
net = Net()

def run():
    net(x @ w).sum().backward()
""",
    "weights that a method brings back after each step, and after a forward": """
class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(w.detach().clone())
    def project(self):
        self.weight /= self.weight.norm(dim=1, keepdim=True)
    def forward(self, h):
        return h @ self.weight.t()
rows = Rows()
opt = torch.optim.SGD(rows.parameters(), 0.1)
def run():
    out = rows(rows(x))
    for _ in range(2):
        opt.zero_grad()
        out.sum().backward()
        opt.step()
        out = rows(rows(x))
        rows.project()
""",
    "gradients that share memory, some of which may be none": """
def run():
    a, b, c = (torch.ones(3, requires_grad=True) for _ in range(3))
    gradients = torch.autograd.grad((a + b).square().sum(), (a, b, c), None, None, False, True, True)
    for one in gradients[:2]:
        one.mul_(0.5)
    (x @ w).sum().backward()
""",
    "gradients that share memory, in a function with a tuple of its own": """
def scaled(loss, a, b, tuple):
    gradients = torch.autograd.grad(loss, (a, b))
    for one in gradients:
        one.mul_(tuple[0])
    return gradients

def run():
    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    scaled((a + b).square().sum(), a, b, (0.5, 2))
    (x @ w).sum().backward()
""",
    "factors of a write to a view, which another call gives as numbers": """
def scan(rows, scale):
    for t in range(3):
        rows[t] = x[t].square()
        if isinstance(scale, torch.Tensor):
            scale[t] = rows[t].sum()
        rows[t] /= scale[t]
    return rows

def run():
    total = scan(torch.zeros(3, 4, dtype=torch.float64), torch.ones(3, dtype=torch.float64)).sum()
    total = total + scan(torch.zeros(3, 4, dtype=torch.float64), [1.0, 2.0, 3.0]).sum()
    (total + (x @ w).sum()).backward()
""",
    "an input that a ctx keeps, with a penalty on the gradient": """
class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.u = u
        return u * u
    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.u * gradient

def run():
    h = x @ w
    out = Squared.apply(h).sum()
    h.data.mul_(2)
    (slope,) = torch.autograd.grad(out, h, create_graph=True)
    (slope.square().sum() + (x @ w).sum()).backward()
""",
    "weights that a method brings back to length one after each step, and in the forward": """
class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(w.detach().clone())
    def project(self):
        self.weight /= self.weight.norm(dim=1, keepdim=True)
    def forward(self, h):
        self.project()
        return h @ self.weight.t()
net = nn.ModuleDict({"rows": Rows()})
rows = net["rows"]
opt = torch.optim.SGD(rows.parameters(), 0.1)
def run():
    for _ in range(2):
        opt.zero_grad()
        rows(x).sum().backward()
        opt.step()
        rows.project()
    w.grad = rows.weight.detach().clone()
""",
    "weights that are written before a backward whose loss is still added to by another name": """
net = nn.Linear(4, 4, dtype=torch.float64)
def run():
    loss = net(net(x)).square().sum()
    total = loss
    with torch.no_grad():
        net.weight.mul_(0.5)
    total += net.bias.sum()
    loss.backward()
    w.grad = net.weight.grad
""",
    "weights that are written before a backward by what an optimizer of the turn may follow": """
net = nn.Linear(4, 4, dtype=torch.float64)
def run():
    loss = net(net(x)).square().sum()
    with torch.no_grad():
        net.weight.mul_(0.5)
    for one in net.parameters():
        one.requires_grad = False
    loss.backward()
    w.grad = net.weight.grad
""",
    "a leaf whose first values may carry a gradient in the next turn": """
low = torch.tensor(0.5, dtype=torch.float64)
def points():
    at = torch.ones(4, dtype=torch.float64).requires_grad_()
    at[0] = low
    return at
def run():
    for _ in range(2):
        (points() @ w).sum().backward()
        low.requires_grad_(True)
""",
    "a leaf that gets a number and a weight of the same object": """
class Ends(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = torch.tensor(0.5, dtype=torch.float64)
        self.high = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    def forward(self):
        at = torch.ones(4, dtype=torch.float64).requires_grad_()
        at[0] = self.low
        at[-1] = self.high
        return at
ends = Ends()
def run():
    (ends() @ w).sum().backward()
""",
    "rows that a loop writes by what saves its result": """
def run():
    maps = x @ w
    for row in maps.unbind(0):
        row.tanh_()
    maps.square().sum().backward()
""",
    "a view that is made without gradients, and read as a constant too": """
def run():
    h = x @ w
    with torch.no_grad():
        top = h[:1]
    gap = h[1:] - top
    top.add_(1)
    (gap.square().sum() + h.sum()).backward()
""",
    "rows that a loop writes, of a list in other runs": """
def scaled(maps):
    for row in maps:
        row -= 1
        row *= 3
    return maps[0].sum()
def run():
    maps = x @ w
    if len(maps) > 9:
        maps = list(maps)
    scaled(maps).backward()
""",
    "rows that a loop writes, one of which is read in other runs": """
def scaled(maps, first):
    maps = maps * 2
    one = maps[0] if first else None
    for row in maps:
        row -= 1
        row *= 3
    return one if first else maps
def run():
    scaled(x @ w, False).square().sum().backward()
""",
    "weights that are written by one of several callbacks": """
teacher = nn.Linear(4, 4, dtype=torch.float64)
def update():
    teacher.weight.data.mul_(0.6)
def log():
    seen.append(teacher.weight.grad is not None)
def fire(callbacks):
    for each in callbacks:
        each()
seen = []
def run():
    teacher.weight.grad = None
    loss = teacher(teacher(x)).square().mean()
    fire([update, log])
    loss.backward()
    w.grad = teacher.weight.grad
""",
    "leaves in a list beside fewer slopes": """
def run():
    fast = [w, x]
    (slope,) = slopes = torch.autograd.grad((x @ fast[0]).square().mean(), fast[:1], create_graph=True)
    for p, grad in zip(fast, slopes):
        p -= 0.1 * grad
    (fast[1] @ fast[0]).sum().backward()
""",
    "leaves in a dict that an object keeps": """
class Inner:
    def adapt(self):
        fast = dict(w=w)
        self.fast = fast
        grads = torch.autograd.grad((x @ fast["w"]).square().mean(), list(fast.values()), create_graph=True)
        for (name, p), grad in zip(fast.items(), grads):
            p -= 0.1 * grad
def run():
    inner = Inner()
    inner.adapt()
    (x @ inner.fast["w"]).sum().backward()
""",
    "data that is written before the save by another name": """
def run():
    p = (x @ w) * 1
    data = p.data
    p.mul_(2)
    loss = (p * p).sum()
    data.mul_(0.5)
    loss.backward()
    w.grad += data.sum()
""",
    "what an object expands once, and fills later": """
class Slots:
    def __init__(self):
        self.first = torch.zeros(4, dtype=torch.float64)
        self.rows = self.first.expand(3, 4)
    def of(self, h):
        self.first.copy_(w.detach().sum(0))
        rows = self.rows
        rows += h
        return rows
def run():
    Slots().of(x @ w).square().sum().backward()
""",
    "a view of a result, made under no_grad": """
def run():
    h = (x @ w).exp()
    with torch.no_grad():
        top, size = h[:2], h.max()
    top.mul_(2)
    (h / size).sum().backward()
""",
    "weights of an inner loop that goes through a list of its caller": """
def adapt(fast):
    grads = torch.autograd.grad((x @ fast[0]).square().mean(), fast, create_graph=True)
    for p, grad in zip(fast, grads):
        p -= 0.1 * grad
def run():
    fast = [w]
    adapt(fast)
    (x @ fast[0]).sum().backward()
""",
    "statistics of a module that a call in eval mode keeps": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).double()
    def forward(self, x):
        return self.features(x).tanh()
def run():
    net = Net().eval()
    clean = net(x @ w)
    noisy = net.train()(x + 1)
    (clean - noisy).square().mean().backward()
""",
    "an array that a function works on in a loop that reads the tensor": """
def stretched(array):
    array *= 2

def run():
    out, loss = torch.sigmoid(x @ w), 0
    for _ in range(2):
        loss = loss + out.square().sum()
        stretched(out.detach().numpy())
    loss.backward()
""",
    "the argument of a later call of a chain": """
def scaled(image, by):
    return image.sub_(image.mean()).mul_(by)
def run():
    image = x * 2
    a = image.square()
    b = (scaled(image, image) @ w).tanh()
    (a.sum() - b.sum()).backward()
""",
    "an assignment to a row of an expanded parameter, in a loop": """
start = nn.Parameter(torch.randn(1, 4, dtype=torch.float64))
def run():
    h = start.expand(4, -1)
    for i in range(2):
        h[i] = 0.0
    h.square().sum().backward()
""",
    "two forwards of a function, before two loops of their steps": """
net = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, 4, dtype=torch.float64))
opt = torch.optim.SGD(net.parameters(), 0.1)
def ev(t):
    return net(t)
def run():
    h = ev(x.detach())
    old = ev(x.detach()) * 1
    for _ in range(2):
        for index in (slice(0, 2), slice(1, 3)):
            opt.zero_grad()
            loss = (h[index] - old[index] - 1).square().sum()
            loss.backward(retain_graph=True)
            opt.step()
""",
    "two forwards, one before each loop of their steps": """
net = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, 4, dtype=torch.float64))
opt = torch.optim.SGD(net.parameters(), 0.1)
head = nn.Linear(4, 4, dtype=torch.float64)
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], 0.1)
def run():
    f = net(x.detach())
    for _ in range(2):
        h = head(f)
        for index in (slice(0, 2), slice(1, 3)):
            opt.zero_grad()
            h[index].square().sum().backward(retain_graph=True)
            opt.step()
""",
    "a state of which more is kept than is handed over": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    state = torch.zeros(3, 4, dtype=torch.float64)
    kept = []
    for turn in range(4):
        h = cell(x.detach(), state)
        loss = h.square().sum() + sum(one.sum() for one in kept)
        opt.zero_grad()
        loss.backward()
        opt.step()
        state = h
        kept[:] = [h * 2]
""",
    "a state that only some turns hand over": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    state = torch.zeros(3, 4, dtype=torch.float64)
    kept = []
    for turn in range(4):
        if turn % 2 == 0:
            h = cell(x.detach(), state)
        loss = h.square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        state = h
""",
    "a step of an optimizer whose name another one has outside": NETS
    + OPTIMIZERS
    + STEPS.replace("def run():", "def train(opt_d, opt_g):")
    + """
def run():
    train(torch.optim.SGD([*d.parameters(), *g.parameters()], 0.1), torch.optim.SGD(g.parameters(), 0.1))
""",
    "a step of a parameter that a loss reads by its name": NETS
    + "scale = nn.Parameter(torch.ones(1, dtype=torch.float64))\n"
    + "opt_d, opt_g = torch.optim.SGD([*d.parameters(), scale], 0.1), torch.optim.SGD(g.parameters(), 0.1)\n"
    + STEPS.replace("    opt_g.zero_grad()", "    loss_g = loss_g + (fake * scale).sum()\n    opt_g.zero_grad()"),
    "the whole of parts that another block makes": """
def run():
    packed = x @ w
    if packed.shape[0] > 1:
        a, b = packed.split(2, dim=-1)
    packed.mul_(2)
    (a * b).sum().backward()
""",
    "the whole of parts, given another shape": """
def run():
    packed = (x @ w)[:, :3]
    a, b, c = packed.split(1, dim=-1)
    packed.t_()
    (a * b * c).sum().backward()
""",
    "the whole of parts whose sizes change before it is written": """
sizes = [1, 3]
def run():
    packed = x @ w
    a, b = packed.split(sizes, dim=-1)
    sizes.reverse()
    packed.mul_(2)
    (a.sum() * b.sum()).backward()
""",
    "the whole of parts that are made twice": """
def run():
    packed = x @ w
    a, b = packed.split(2, dim=-1)
    c, d = packed.split(2, dim=-1)
    packed.mul_(2)
    (a * b * c * d).sum().backward()
""",
    "a step by hand beside a penalty of gradients": """
def run():
    params = [x, w]
    loss = (x @ w).square().sum()
    torch.autograd.grad(loss, x, create_graph=True)[0].square().sum().backward()
    for i in range(2):
        params[i] -= 0.1 * params[i].grad * w.sum()
    (x @ w).sum().backward()
""",
    "a moving average of weights in a dict": """
def run():
    average = dict(w=w)
    (grad,) = torch.autograd.grad((x @ w).square().sum(), x, create_graph=True)
    average["w"] += 0.1 * (grad.sum() * 0 + x.mean() - average["w"])
    (x @ w).sum().backward()
""",
    "a slot that a pack hook gives away before it fills it": """
slots = [torch.zeros(12, dtype=torch.float64) for _ in range(2)]
turns = []
def pack(saved):
    turns.append(saved)
    slot = slots[len(turns) % 2]
    if saved.numel() > 12:
        return slot, saved.shape
    slot.copy_(saved.detach().reshape(-1))
    return slot, saved.shape
def unpack(kept):
    slot, shape = kept
    return slot.view(shape)
def run():
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = (x * 2).exp().sin().cos()
    (y.sum() + (x @ w).sum()).backward()
""",
    "a slot by which an unpack hook looks something up": """
slots = [torch.zeros(12, dtype=torch.float64) for _ in range(2)]
turns, shapes = [], {}
def pack(saved):
    turns.append(saved)
    slot = slots[len(turns) % 2]
    slot.copy_(saved.detach().reshape(-1))
    shapes[id(slot)] = saved.shape
    return slot
def unpack(slot):
    return slot.view(shapes[id(slot)])
def run():
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = (x * 2).exp().sin().cos()
    (y.sum() + (x @ w).sum()).backward()
""",
    "a save that each turn of a backward writes under another name": """
class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        s = torch.sigmoid(h)
        ctx.save_for_backward(s)
        return 2 * s
    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        for _ in range(2):
            slope = s.mul_(0.5)
        return g * slope
def run():
    y = Gate.apply(x @ w)
    y.sum().backward(retain_graph=True)
    y.square().sum().backward()
""",
    "a pack hook that keeps its slot too": """
slots = [torch.empty(12, dtype=torch.float64) for _ in range(2)]
turns = []
def pack(saved):
    turns.append(saved)
    slot = slots[len(turns) % 2]
    torch.Tensor.copy_(slot, saved.detach().reshape(-1)[:12])
    return len(turns) % 2, saved.shape, slots
def unpack(kept):
    number, shape, held = kept
    return held[number].view(shape)
def run():
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = (x * 2).exp().sin().cos()
    (y.sum() + (x @ w).sum()).backward()
""",
    "the whole of parts that are read before it is written": """
def run():
    packed = x @ w
    a, b = packed.split(2, dim=-1)
    c = a * 1
    packed.mul_(2)
    (a * b * c).sum().backward()
""",
    "the whole of parts, bound anew before it is written": """
def run():
    packed = x @ w
    a, b = packed.split(2, dim=-1)
    packed, other = packed.view(-1), packed * 1
    packed.mul_(2)
    (a * b).sum().backward()
""",
    "a Function that saves what it has computed, written by others": """
class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        s = torch.sigmoid(h)
        ctx.save_for_backward(s)
        Gate.last = s
        return 2 * s
    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return 2 * g * s * (1 - s)
def run():
    h = x @ w
    y = Gate.apply(h)
    Gate.last.mul_(0.5)
    y.sum().backward()
""",
    "a save that a backward reads again under its own name": """
class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        s = torch.sigmoid(h)
        ctx.save_for_backward(s)
        return 2 * s
    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        slope = s.mul_(1 - s)
        return 2 * g * s * slope.sign()
def run():
    y = Gate.apply(x @ w)
    y.sum().backward(retain_graph=True)
    y.square().sum().backward()
""",
    "fast weights in a list beside fewer slopes": """
def run():
    fast = [w.clone(), w * 2, w * 3]
    for _ in range(2):
        loss = (torch.tanh(x @ fast[0]) @ fast[1]).square().sum()
        grads = torch.autograd.grad(loss, fast[:2], create_graph=True)
        for one, slope in zip(fast, grads):
            one -= 0.1 * slope
    (torch.tanh(x @ fast[0]) @ fast[1] @ fast[2]).sum().backward()
""",
    "fast weights in a list, one of them by another name": """
def run():
    fast = [w.clone(), w * 2]
    first = fast[0]
    for _ in range(2):
        loss = (torch.tanh(x @ fast[0]) @ fast[1]).square().sum()
        grads = torch.autograd.grad(loss, fast, create_graph=True)
        for one, slope in zip(fast, grads):
            one -= 0.1 * slope
    (torch.tanh(x @ first) @ fast[1]).sum().backward()
""",
    "fast weights in a list that a dict holds": """
def run():
    fast = [w.clone(), w * 2]
    kept = {"fast": fast}
    for _ in range(2):
        loss = (torch.tanh(x @ fast[0]) @ fast[1]).square().sum()
        grads = torch.autograd.grad(loss, fast, create_graph=True)
        for one, slope in zip(fast, grads):
            one -= 0.1 * slope
    (torch.tanh(x @ kept["fast"][0]) @ fast[1]).sum().backward()
""",
    "fast weights that each turn reads another of": """
def run():
    fast = [w.clone(), w * 2]
    for _ in range(2):
        loss = (torch.tanh(x @ fast[0]) @ fast[1]).square().sum()
        grads = torch.autograd.grad(loss, fast, create_graph=True)
        for one, slope in zip(fast, grads):
            one -= 0.1 * slope + fast[0]
    (torch.tanh(x @ fast[0]) @ fast[1]).sum().backward()
""",
    "fast weights in a list of what others hold": """
def run():
    fast = [w.clone(), w * 2]
    own = w.clone()
    fast = [own, w * 2]
    for _ in range(2):
        loss = (torch.tanh(x @ fast[0]) @ fast[1]).square().sum()
        grads = torch.autograd.grad(loss, fast, create_graph=True)
        for one, slope in zip(fast, grads):
            one -= 0.1 * slope
    (torch.tanh(x @ own) @ fast[1]).sum().backward()
""",
    "a level that another run keeps by a name of its own": """
class State:
    def __init__(self, level):
        self.level = level
kept = []
def step(state, keeps):
    state.level = state.level * w
    now = state.level
    if keeps:
        kept.append(now)
    y = now.sum() if keeps else now.square().sum()
    state.level.add_(0.5)
    return y
def run():
    state = State((x @ w).sum(0))
    step(state, False).backward()
    step(State(x.sum(0)), True)
    kept[0].square().sum().backward()
""",
    "weights brought to length one before a loss of them": """
net = nn.Linear(4, 4, dtype=torch.float64)
def run():
    net.weight /= net.weight.norm(dim=1, keepdim=True)
    net(x @ w).square().sum().backward()
""",
    "a result that is filled through a detached name, and read again": """
def run():
    share = torch.softmax(x @ w, 1)
    target = share.detach()
    target.fill_(0.1)
    ((x @ w) * target + share.amax(1, keepdim=True)).sum().backward()
""",
    "weights that decay by a learned rate": """
rate = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
def run():
    (x @ w).sum().backward()
    update = w.grad + rate * w
    w.sub_(update)
""",
    "weights that step by gradients with a graph": """
def run():
    (w @ w).sum().backward(create_graph=True)
    w.sub_(0.1 * w.grad)
    (x @ w).sum().backward()
""",
    "a weight of a module that is moved by noise for one forward": """
layer = nn.Linear(4, 4, dtype=torch.float64)
def run():
    weight = layer.weight
    with torch.no_grad():
        noise = 0.1 * torch.ones_like(weight)
    weight += noise
    F.linear(x, weight).sum().backward()
""",
    "a row of a weight set under another name for one forward": """
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))
    def forward(self, t):
        weight = self.weight
        weight[0] = 0.0
        return F.linear(t, weight)
masked = Masked()
def run():
    masked(x @ w).sum().backward()
""",
    "a row of an argument that is set, whose caller reads it again": """
def blanked(table):
    rows = table[:2]
    rows[0] = 0.0
    return rows.sum()
def run():
    (blanked(w) + w.square().sum()).backward()
""",
    "a point that moves before the backward which has saved it": """
def run():
    point = x.detach().clone().requires_grad_()
    energy = (point * w[0]).square().sum()
    with torch.no_grad():
        drift = 0.1 * w[1]
    point += drift
    energy.backward()
""",
    "a point that moves in turns which are summed for one backward": """
def run():
    point, total = x.detach().clone().requires_grad_(), 0
    for _ in range(2):
        with torch.no_grad():
            drift = 0.1 * w[1]
        total = total + (point * w[0]).square().sum()
        point += drift
    total.backward()
""",
    "weights stepped by hand between two backwards of one forward": """
def run():
    first, second = (x @ w).square().sum(), (w ** 3).sum()
    first.backward()
    w.sub_(0.1 * w.grad)
    second.backward()
""",
    "weights stepped by hand between the backwards of losses in a list": """
def run():
    for loss in [(x @ w).square().sum(), (w ** 3).sum()]:
        loss.backward()
        w.sub_(0.1 * w.grad)
""",
    "an attack that begins with the point itself": """
def run():
    attacked = x
    for _ in range(2):
        slope, = torch.autograd.grad((attacked @ w).square().sum(), attacked)
        attacked += 0.1 * slope.sign()
    (x @ w - attacked @ w).square().sum().backward()
""",
    "weights of an inner loop that begins with the outer ones": """
def adapted(weight):
    slope, = torch.autograd.grad((x @ weight).square().sum(), weight)
    weight -= 0.1 * slope
    return weight
def run():
    fast = adapted(w)
    ((x @ fast).square().sum() + w.square().sum()).backward()
""",
    "weights that decay by an update which is kept": """
updates = []
def run():
    (x @ w).sum().backward()
    update = w.grad + 0.1 * w
    w.sub_(0.1 * update)
    updates.append(update)
""",
    "a point that is scaled by what is computed without gradients": """
def run():
    with torch.no_grad():
        keep = (x > 0).to(x.dtype)
    point = x.detach().requires_grad_()
    point *= keep
    (point @ w).sum().backward()
""",
    "a point that moves by what only one branch computes without gradients": """
def run():
    if x.sum() > 0:
        drift = torch.tanh(w[0])
    else:
        with torch.no_grad():
            drift = torch.tanh(w[0])
    point = x.detach().requires_grad_()
    point -= drift.detach() if drift.requires_grad else drift
    (point @ w).sum().backward()
""",
    "what a function works on through data, whose rows an attribute keeps": HARD
    + """
class Kept:
    def __init__(self):
        self.rows = []
kept = Kept()
def run():
    out = torch.sigmoid(x @ w)
    kept.rows += out
    loss = out.square().sum()
    hard(out)
    (loss + kept.rows[0].detach().sum()).backward()
""",
    "what a function works on through data, by a layer that is named like a method": HARD
    + """
class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.Identity()
part = Part()
def run():
    h = torch.sigmoid(x @ w)
    out = part.norm(h)
    loss = out.square().sum()
    hard(out)
    (loss + h.detach().sum()).backward()
""",
    "what a function works on through data, kept by an object that has a method of a tensor": HARD
    + """
class Log(list):
    def add_(self, one):
        self.append(one)
log = Log()
def run():
    out = torch.sigmoid(x @ w)
    log.add_(out)
    loss = out.square().sum()
    hard(out)
    (loss + log.pop().detach().sum()).backward()
""",
    "what a function works on through data, of a module that another name builds": HARD
    + """
class Kept(nn.Module):
    def forward(self, h):
        self.code = torch.sigmoid(h)
        return self.code

def head():
    return nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()).double()
if True:
    head = Kept

net = head()

def run():
    out = net(x @ w)
    loss = out.square().sum()
    hard(out)
    (loss * net.code.detach().sum()).backward()
""",
    "what a function works on through data, whose parts a list has": HARD
    + """
def run():
    rows = []
    out = torch.sigmoid(x @ w)
    loss = out.square().sum()
    rows += out
    hard(out)
    (loss * torch.stack(rows).detach().sum()).backward()
""",
    "what a function works on through data, which a plus sign hands on": HARD
    + """
def run():
    out = torch.sigmoid(x @ w)
    kept = +out
    loss = out.square().sum()
    hard(out)
    (loss * kept.detach().sum()).backward()
""",
    "what a function works on through data, and an inner function reads beside a variable of its own": HARD
    + """
def run():
    out = torch.sigmoid(x @ w)
    def rows():
        return sum(out.detach().sum() for out in out)
    loss = out.square().sum()
    hard(out)
    (loss * rows()).backward()
""",
    "what a function works on through data, and returns at the same time": """
def scored(out):
    try:
        return out
    finally:
        hard(out.data)

def hard(answer):
    answer[answer >= 0.5] = 1

def run():
    out = torch.sigmoid(x @ w)
    loss = out.square().sum()
    (loss * scored(out).detach().sum()).backward()
""",
    "what a subclass keeps of what a function works on through data": HARD
    + """
class Base(nn.Module):
    def encode(self, x):
        return torch.sigmoid(x @ w)
    def forward(self, x):
        out = self.encode(x)
        loss = out.square().sum()
        hard(out)
        return loss

class Kept(Base):
    def encode(self, x):
        self.code = torch.sigmoid(x @ w)
        return self.code
net = Kept()

def run():
    loss = net(x)
    (loss * net.code.detach().sum()).backward()
""",
    "scratch memory that a ctx keeps, and a backward changes for the next one": """
mean = torch.zeros(4, dtype=torch.float64)

class Centered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        kept = torch.mul(mean, 1, out=mean)
        ctx.kept = kept
        return u * 2
    @staticmethod
    def backward(ctx, gradient):
        ctx.kept.add_(gradient.mean(0))
        return gradient * 2 - ctx.kept

def run():
    y = Centered.apply(x @ w)
    mean.add_(1)
    y.sum().backward()
""",
    "what a function works on through data, and its caller reads again": HARD
    + """
def run():
    out = torch.sigmoid(x @ w)
    loss = F.mse_loss(out, torch.zeros_like(out))
    hard(out)
    (loss + out.detach().sum()).backward()
""",
    "what a function works on through data, of which a part is read again": HARD
    + """
def run():
    out = torch.sigmoid(x @ w)
    first = out[0]
    loss = out.square().sum()
    hard(out)
    (loss * first.detach().sum()).backward()
""",
    "what a function works on through data, and a module has kept": HARD
    + """
class Net(nn.Module):
    def forward(self, x):
        self.last = torch.sigmoid(x @ w)
        return self.last
net = Net()

def run():
    out = net(x)
    loss = out.square().sum()
    hard(out)
    (loss * net.last.detach().sum()).backward()
""",
    "a state that a method clears at the end of some turns": """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.state = nn.Parameter(w.detach().clone()), None
    def reset(self):
        self.state = None
    def forward(self, x):
        self.state = torch.tanh((x if self.state is None else self.state) @ self.weight)
        return self.state
cell = Cell()
opt = torch.optim.SGD(cell.parameters(), lr=0.1)

def run():
    for turn in range(4):
        loss = cell(x.detach()).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if turn % 2 == 1:
            cell.reset()
    x.grad, w.grad = cell.weight.detach(), cell.weight.grad
""",
    "an operand that is a number in another call": """
def scaled(h, factor):
    return h * factor
def run():
    h = x.exp() + 1
    h.add_(1)
    y = scaled(x, h)
    z = scaled(x, 0.5)
    kept = [h]
    h.mul_(3)
    (y + z + kept[0]).sum().backward()
""",
    "what a region reads is a number at first": """
from torch.utils.checkpoint import checkpoint

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 1.0
    def warm(self):
        self.scale = torch.full((4,), 0.5, dtype=torch.float64)
    def decay(self):
        self.scale.mul_(0.9)
    def region(self, h):
        return torch.tanh(h * self.scale)
    def forward(self, h):
        return checkpoint(self.region, h, use_reentrant=False)

def run():
    net = Scaled()
    net(x @ w).sum().backward()
    net.warm()
    y = net(x @ w).sum()
    net.decay()
    y.backward()
""",
    "a region that has a variable with the name of what it reads": """
from torch.utils.checkpoint import checkpoint

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.full((4,), 0.5, dtype=torch.float64)
    def region(self, h):
        for scale in range(2):
            h = torch.tanh(h * self.scale)
        return h
    def forward(self, h):
        y = checkpoint(self.region, h, use_reentrant=False)
        self.scale += 0.25
        return y

def run():
    Scaled()(x @ w).sum().backward()
""",
    "parts in a list, of a tensor that a loop writes": """
def run():
    h = x @ w
    rows = list(h.unbind(0))
    for row in rows:
        row.mul_(3)
    h.sum().backward()
""",
    "parts that are read below the loop which writes them": """
def run():
    h = x @ w
    rows = h.unbind(0)
    for row in rows:
        row.mul_(3)
    (h.sum() + rows[0].sum()).backward()
""",
    "a state that the function of the backward has by another name": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(w.detach().clone())
        self.state = x.detach()
    def loss(self):
        self.state = torch.tanh(self.state @ self.weight)
        return self.state.square().sum()

class Trainer:
    def __init__(self, model):
        self.model, self.opt = model, torch.optim.SGD(model.parameters(), lr=0.1)
    def fit(self):
        loss = self.model.loss()
        self.opt.zero_grad()
        loss.backward(retain_graph=True)
        self.opt.step()

def run():
    model = Net()
    trainer = Trainer(model)
    for _ in range(3):
        trainer.fit()
    x.grad, w.grad = model.state.detach(), model.weight.grad
""",
    "parts that a name has, of a tensor that is bound anew": """
def run():
    h = x @ w
    parts = h.unbind(1)
    h = h * 2
    for one in parts:
        one *= 2
    h.sum().backward()
""",
    "a mask that a ctx keeps, where another call may give none": """
class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, mask=None):
        ctx.mask, ctx.scale = mask, 2.0
        return u * mask * 2.0 if mask is not None else u
    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.mask if ctx.mask is not None else 1) * ctx.scale, None
mask = torch.empty(3, 4, dtype=torch.float64)

def masked(u, share):
    mask.fill_(share)
    return Masked.apply(u, mask)

def run():
    masked(masked(x @ w, 0.5), 0.9).sum().backward()
""",
    "what a ctx keeps is written on in the same forward": """
scratch = torch.empty(3, 4, dtype=torch.float64)

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        kept = torch.mul(u, 1, out=scratch)
        ctx.kept = kept
        kept.mul_(2)
        return u * u
    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.kept

def run():
    Scaled.apply(Scaled.apply(x @ w)).sum().backward()
""",
    "images that a function changes twice, and gives back": """
def brighter(img):
    img[:1] = 0
    return img

def run():
    img = torch.rand(3, 4, dtype=torch.float64)
    a = brighter(img) @ w
    b = brighter(img) @ w
    (a * b).sum().backward()
    x.sum().backward()
""",
    "images that a function changes in each turn of a comprehension, and gives back": """
def brighter(img):
    img *= 2
    return img

def run():
    img = torch.rand(3, 4, dtype=torch.float64)
    (sum((brighter(img) @ w).square().sum() for _ in range(2)) + x.sum()).backward()
""",
    "images that two functions hand each other, and give back": """
def brighter(img, more):
    img[:1] = 0
    img = darker(img, more - 1) if more else img
    return img

def darker(img, more):
    img = brighter(img, more)
    return img

def run():
    img = torch.rand(3, 4, dtype=torch.float64)
    (torch.sigmoid(img @ w) * (darker(img, 1) @ w).sum() + (darker(img, 1) @ w) + x).sum().backward()
""",
    "images that a function changes in each turn, and gives back": """
def brighter(img):
    img[:1] = 0
    return img

def run():
    img, loss = torch.rand(3, 4, dtype=torch.float64), x.sum()
    for _ in range(2):
        loss = loss + (brighter(img) @ w).square().sum()
    loss.backward()
""",
    "a leaf that moves by numbers, and no turn makes it one again": """
def run():
    start = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    position = start
    for _ in range(3):
        position += 0.1
    (x * position @ w).sum().backward()
""",
    "a state that the next step goes on with": """
class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).to(u.dtype)
    @staticmethod
    def backward(ctx, g):
        return g / (1 + ctx.saved_tensors[0].abs()) ** 2
spike = Spike.apply

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.reset()
    def reset(self):
        self.state = None
    def forward(self, t):
        if self.state is None:
            self.state = torch.zeros_like(t)
        self.state = 0.9 * self.state + t
        fired = spike(self.state)
        self.state[fired > 0] = 0.0
        return fired
cell, kept = Cell(), []

def run():
    for _ in range(2):
        cell(x @ w).sum().backward()
        kept.append(cell.state)
""",
    "operands that have one name": """
class Queue:
    def __init__(self):
        self.rows = torch.ones(4, 5, dtype=torch.float64)
    def score(self, t):
        given = [t, self.rows]
        return torch.einsum("nc,ck->nk", given)

def run():
    queue = Queue()
    y = queue.score(x @ w)
    queue.rows[:, 0] = 0
    y.sum().backward()
""",
    "a buffer that a region saves and then writes": """
from torch.utils.checkpoint import checkpoint

class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("heat", torch.full((4,), 2.0, dtype=torch.float64))
    def forward(self, h):
        y = torch.tanh(h / self.heat)
        self.heat.data.mul_(0.5)
        return y @ w
stage = Stage()

def run():
    h = x @ w
    for _ in range(2):
        h = h + checkpoint(stage, h, use_reentrant=False)
    h.sum().backward()
""",
    "a sum that a loop of updates fills": """
def run():
    total = torch.zeros((), dtype=torch.float64)
    (x @ w).sum().backward()
    for one in (x, w):
        step = 0.1 * one.grad
        total.add_(one.pow(2).sum())
        one -= step
    total.backward()
""",
    "states that a later turn makes of weights": """
kept = nn.Parameter(torch.zeros(4, 4, dtype=torch.float64))
def run():
    h = torch.zeros(4, dtype=torch.float64)
    for t in range(3):
        kept[t] = h
        h = torch.tanh(x[t] @ w + h)
    (kept.sum() + h.sum()).backward()
""",
    "what a checkpointed region gives, written later": """
from torch.utils.checkpoint import checkpoint
class Block:
    def __init__(self):
        self.scale = torch.ones(4, dtype=torch.float64)
    def run(self, h):
        self.scale += 0.5
        return torch.tanh(h @ w * self.scale)
block = Block()
def run():
    y = checkpoint(block.run, x, use_reentrant=False)
    y += 1
    (y ** 2).sum().backward()
""",
    "an update by gradients that have a graph": """
def run():
    global x
    (x @ w).square().sum().backward(create_graph=True)
    x -= 0.1 * x.grad
    w.grad = None
    x.sum().backward()
""",
    "a state that a setter copies into, of which the caller keeps what it was": """
class Slots:
    def __init__(self):
        self._v = torch.ones(3, 4, dtype=torch.float64)
    @property
    def v(self):
        return self._v
    @v.setter
    def v(self, new):
        self._v.copy_(new)

def run():
    slots, seen = Slots(), []
    for _ in range(3):
        seen.append(slots.v)
        slots.v = torch.tanh(slots.v * x @ w)
    (slots.v.sum() + sum(seen).sum()).backward()
""",
    "a gradient that a hook scales and keeps": """
kept = []
def damp(g):
    kept.append(g)
    g *= 0.5
    return g

def run():
    h = x @ w
    f, s = h.cos(), h.sin()
    s.register_hook(damp)
    (f + s).square().sum().backward()
""",
    "a gradient that a hook scales, which a function has made and kept": """
made = []
def by(share):
    def damp(g):
        g.mul_(share)
        return g
    made.append(damp)
    return damp

def run():
    h = x @ w
    f, s = h.cos(), h.sin()
    s.register_hook(by(0.5))
    (f + s).square().sum().backward()
""",
    "a gradient that a module's hook scales and keeps": """
kept, part = [], nn.Softplus()
def damp(module, grads):
    kept.append(grads)
    grads[0].mul_(0.5)
part.register_full_backward_pre_hook(damp)

def run():
    h = x @ w
    (h.sin() + part(h)).square().sum().backward()
""",
    "a gradient that a hook scales, or else leaves": """
def damp(g):
    g *= 0.5
    if g.dim() == 1:
        return g

def run():
    h = x @ w
    f, s = h.cos(), h.sin()
    s.register_hook(damp)
    (f + s).square().sum().backward()
""",
    "a gradient that a function scales for others as well": """
def damp(g):
    g *= 0.5
    return g

def run():
    h = x @ w
    f, s = h.cos(), h.sin()
    s.register_hook(damp)
    (f + s).square().sum().backward()

damp(torch.ones(3))
""",
    "rows of what the caller reads": """
class Gains(nn.Module):
    def forward(self, rows):
        out = []
        for i, row in enumerate(rows.unbind(0)):
            row *= i
            out.append(row)
        return torch.stack(out)
gains = Gains()

def run():
    h = x @ w
    (gains(h) + h).sum().backward()
""",
    "rows of what another caller reads": """
def scaled(rows):
    out = []
    for row in rows.unbind(0):
        row *= 2
        out.append(row)
    return torch.stack(out)

def later(h):
    return scaled(h) + h

def run():
    h = x @ w
    h = scaled(h)
    later(h).sum().backward()
""",
    "rows of what the loop goes through again": """
def run():
    h, total = x @ w, 0
    rows = h.unbind(0)
    for _ in range(2):
        for row in rows:
            row *= 2
            total = total + row.sum()
    total.backward()
""",
    "halves of what the caller reads": """
def turned(t):
    a, b = t.chunk(2, dim=-1)
    new_a, new_b = a * 3 - b, a + b * 3
    a.copy_(new_a)
    b.copy_(new_b)
    return t

def run():
    h = x @ w
    (turned(h) + h).sum().backward()
""",
    "halves of what another name shows": """
def run():
    h = x @ w
    row = h[0]
    a, b = h.chunk(2, dim=-1)
    a.mul_(2)
    b.mul_(3)
    (h.sum() + row.sum()).backward()
""",
    "halves of what is read between": """
def run():
    h = x @ w
    a, b = h.chunk(2, dim=-1)
    a.mul_(2)
    y = h.sin()
    b.mul_(3)
    (h.sum() + y.sum()).backward()
""",
    "halves that are written by turns": """
def run():
    h = x @ w
    a, b = h.chunk(2, dim=-1)
    for _ in range(2):
        a.mul_(2)
        b.mul_(3)
    h.sum().backward()
""",
    "a cache that the next step goes on with": """
class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = torch.zeros(5, 4, dtype=torch.float64)
    def put(self, n, t):
        self.k[n] = t
        return self.k[: n + 1]
    def forward(self, n, t):
        keys = self.put(n, t)
        return torch.einsum("d,nd->n", t, keys).sum()
net = Cached()

def run():
    (net(0, x[0] @ w) + net(1, x[1] @ w)).backward()
    net(2, x[2] @ w).backward()
""",
    "what a Function gives back and saves": """
class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        y = u.exp()
        ctx.save_for_backward(y)
        return y
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]
same = Same.apply
kept = []

def run():
    h = x @ w
    h = same(h)
    kept.append(h)
    h += 1
    (h + kept[0]).sum().backward()
""",
    "a buffer that a region also reads by a method": """
from torch.utils.checkpoint import checkpoint

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64))
    def body(self, x):
        return torch.tanh(x * self.scale + self.factor())
    def factor(self):
        return 2 * self.scale
    def forward(self, x):
        y = checkpoint(self.body, x, use_reentrant=False)
        self.scale.mul_(0.5)
        return y
scaled = Scaled()

def run():
    scaled(x @ w).sum().backward()
""",
    "weights that an update by hand changes": """
net = nn.Linear(4, 4, dtype=torch.float64)

def run():
    loss = net(x @ w).square().sum()
    grads = torch.autograd.grad(loss, net.parameters(), retain_graph=True)
    with torch.no_grad():
        for p, g in zip(net.parameters(), grads):
            p.copy_(p - 0.1 * g)
    (loss + net(x @ w).square().sum()).backward()
""",
    "scratch that another method reads": """
class Scratch:
    def __init__(self):
        self.a = torch.empty(3, 4, dtype=torch.float64)
    def last(self):
        return self.a.sum()
    def __call__(self, h):
        torch.exp(h, out=self.a)
        return self.a * 2

def run():
    scratch = Scratch()
    (scratch(x @ w).sum() + scratch.last()).backward()
""",
    "scratch that is read before a branch fills it": """
class Scratch:
    def __init__(self):
        self.a = torch.zeros(3, 4, dtype=torch.float64)
    def __call__(self, h, fresh):
        if fresh:
            torch.exp(h, out=self.a)
        return self.a * 2

def run():
    Scratch()(x @ w, True).sum().backward()
""",
    "memory that an unpack hook scales, which other code calls": """
kept = []
def pack(t):
    kept.append(t / 3)
    return kept[-1]
def unpack(t):
    return t.mul_(3)

def run():
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = torch.exp(x @ w)
    unpack(kept[0])
    y.sum().backward()
""",
    "an attribute that several lines write and others hold": """
class Cell:
    def __init__(self):
        self.state = torch.ones(3, 4, dtype=torch.float64)
    def step(self, given):
        self.state *= 0.9
        self.state += given
        return torch.sigmoid(self.state) * self.state

def run():
    cell = Cell()
    shown = cell.state
    y = sum(cell.step(x @ w) for _ in range(3))
    (y + shown).sum().backward()
""",
    "parts of an argument that other callers read": """
def act(gates):
    i, f = gates.chunk(2, dim=1)
    for gate in (i, f):
        gate.sigmoid_()
    return i * f
def run():
    try:
        act(x @ w).sum().backward()
    finally:
        z = x.detach().clone()
        act(z)
        print(z)
""",
    "weights stepped in a loop that measures them for the next turn": """
def run():
    size = 0.0
    for _ in range(2):
        ((x.detach() @ w).square().sum() + size).backward()
        for one in (w,):
            step = one.grad + 0.9 * one.detach().tanh()
            one -= 0.1 * step
            size = one.clone().square().sum()
""",
    "a state that a turn may keep by a choice": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
gain = nn.Parameter(torch.ones(4, dtype=torch.float64))
opt = torch.optim.SGD([*cell.parameters(), gain], 0.1)
def run():
    h = torch.zeros(3, 4, dtype=torch.float64)
    for turn in range(4):
        h = cell(x.detach(), h) if turn % 2 == 0 else h
        opt.zero_grad()
        h.square().sum().backward()
        opt.step()
""",
    "a state that only some cases set": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
gain = nn.Parameter(torch.ones(4, dtype=torch.float64))
opt = torch.optim.SGD([*cell.parameters(), gain], 0.1)
def run():
    h = torch.zeros(3, 4, dtype=torch.float64)
    for turn in range(4):
        match turn % 2:
            case 0:
                h = cell(x.detach(), h)
            case _:
                pass
        opt.zero_grad()
        h.square().sum().backward()
        opt.step()
""",
    "a state beside a weight in one dict": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
gain = nn.Parameter(torch.ones(4, dtype=torch.float64))
opt = torch.optim.SGD([*cell.parameters(), gain], 0.1)
def run():
    state = {"h": torch.zeros(3, 4, dtype=torch.float64), "gain": gain}
    for _ in range(3):
        state["h"] = cell(x.detach(), state["h"]) * state["gain"]
        opt.zero_grad()
        state["h"].square().sum().backward()
        opt.step()
""",
    "a state that cannot be set": """
from dataclasses import dataclass
@dataclass(frozen=True)
class State:
    h: torch.Tensor
cell = nn.RNNCell(4, 4, dtype=torch.float64)
gain = nn.Parameter(torch.ones(4, dtype=torch.float64))
opt = torch.optim.SGD([*cell.parameters(), gain], 0.1)
def run():
    state = State(torch.zeros(3, 4, dtype=torch.float64))
    for _ in range(3):
        state = State(cell(x.detach(), state.h))
        opt.zero_grad()
        state.h.square().sum().backward()
        opt.step()
""",
    "weights that cool by their gradients, read by name": """
net = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, 4, dtype=torch.float64))
class Cooling:
    def __init__(self, weights):
        self.weights = weights
    def step(self):
        for one in self.weights:
            slope = getattr(one, "grad")
            one.data.sub_(0 if slope is None else slope)
def run():
    cooling = Cooling(list(net.parameters()))
    for _ in range(2):
        loss = net(x).square().sum()
        cooling.step()
        loss.backward()
""",
    "rows of a first forward, one for each turn of the loop of its steps": """
net = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, 4, dtype=torch.float64))
opt = torch.optim.SGD(net.parameters(), 0.1)
def run():
    h = net(x.detach())
    pairs = zip(h, x.detach())
    for _ in range(3):
        opt.zero_grad()
        a, b = next(pairs)
        loss = (a - b).square().sum()
        loss.backward(retain_graph=True)
        opt.step()
""",
    "a state of an object that only some calls set": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
class Learner:
    def __init__(self):
        self.h = torch.zeros(3, 4, dtype=torch.float64)
    def learn(self, given, turn):
        if turn != 2:
            self.h = cell(given, self.h)
        opt.zero_grad()
        self.h.square().sum().backward()
        opt.step()
def run():
    learner = Learner()
    for turn in range(4):
        learner.learn(x.detach(), turn)
""",
    "a state of an object whose method updates only some episodes": """
class Agent:
    def __init__(self):
        self.cell = nn.RNNCell(4, 4, dtype=torch.float64)
        self.opt = torch.optim.SGD(self.cell.parameters(), 0.1)
        self.h = x.detach()
    def act(self, seen):
        self.h = self.cell(seen, self.h)
        return self.h.square().sum()
    def update(self, losses, steps):
        sum(losses).backward()
        if steps:
            self.opt.step()
            self.opt.zero_grad()
def run():
    agent = Agent()
    for turn in range(2):
        agent.update([agent.act(x.detach()) for _ in range(2)], turn % 2)
""",
    "a state that the method which updates gives back": """
class Agent:
    def __init__(self):
        self.cell = nn.RNNCell(4, 4, dtype=torch.float64)
        self.opt = torch.optim.SGD(self.cell.parameters(), 0.1)
        self.h = x.detach()
    def act(self, seen):
        self.h = self.cell(seen, self.h)
        return self.h.square().sum()
    def update(self, losses):
        self.opt.zero_grad()
        sum(losses).backward()
        self.opt.step()
        return self.h
def run():
    agent = Agent()
    for turn in range(2):
        agent.update([agent.act(x.detach()) for _ in range(2)])
""",
    "fast weights of a dict that is handed on": """
net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4)).double()
kept = []
def run():
    kept.clear()
    fast = {name: p.clone() for name, p in net.named_parameters()}
    kept.append(fast)
    y = torch.func.functional_call(net, fast, (x @ w,))
    slopes = torch.autograd.grad(y.square().mean(), fast.values(), create_graph=True)
    for (name, p), slope in zip(fast.items(), slopes):
        p -= 0.1 * slope
    torch.func.functional_call(net, kept[0], (x,)).square().sum().backward()
""",
    "a mask on a view of a weight, which is then read": """
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
        self.mask = (torch.rand(4, 4) > 0.5).double()
    def forward(self, h):
        v = self.weight.t()
        v *= self.mask
        return h @ v

def run():
    Masked()(x @ w).sum().backward()
""",
    "rows that a loop writes, one of which is kept before": """
def run():
    maps, kept = x @ w, []
    for row in maps:
        kept.append(row)
        row *= 3
    (maps.square().sum() + sum(kept).sum()).backward()
""",
    "a state that a method detaches after it has called itself": """
class Steps:
    def __init__(self):
        self.weight = w.detach().clone().requires_grad_()
        self.optimizer = torch.optim.SGD([self.weight], 0.01)
        self.h = torch.zeros(3, 4, dtype=torch.float64)
    def update(self, left):
        self.h = torch.tanh(x @ self.weight + self.h)
        self.optimizer.zero_grad()
        self.h.square().sum().backward()
        self.optimizer.step()
        if left:
            self.update(left - 1)
def run():
    Steps().update(2)
""",
    "a state that a method detaches, of which another method goes backward": """
class Steps:
    def __init__(self):
        self.weight = w.detach().clone().requires_grad_()
        self.optimizer = torch.optim.SGD([self.weight], 0.01)
        self.h, self.total = torch.zeros(3, 4, dtype=torch.float64), 0
    def update(self):
        self.h = torch.tanh(x @ self.weight + self.h)
        self.total = self.total + self.h.mean()
        self.optimizer.zero_grad()
        self.h.square().sum().backward()
        self.optimizer.step()
    def finish(self):
        self.total.backward()
def run():
    steps = Steps()
    for _ in range(3):
        steps.update()
    steps.finish()
""",
    "a sum of turns that goes backward after the loop that steps": """
def run():
    weight = w.detach().clone().requires_grad_()
    optimizer, h, total = torch.optim.SGD([weight], 0.01), torch.zeros(3, 4, dtype=torch.float64), 0
    for turn in range(4):
        h = torch.tanh(x @ weight + h)
        total = total + h.sum()
        if turn % 2:
            optimizer.zero_grad()
            h.square().sum().backward()
            optimizer.step()
    total.backward()
""",
    "rows that a loop writes, some without autograd": """
def run():
    maps = x @ w
    for row in maps:
        with torch.no_grad():
            row.clamp_(-1, 1)
        row *= 3
    maps.square().sum().backward()
""",
    "rows that a loop writes as long as they are small": """
def run():
    maps = x @ w
    for row in maps:
        while row.abs().sum() < 20:
            row *= 2
    maps.square().sum().backward()
""",
    "halves of a new tensor, one of which the next turn reads": """
def run():
    total = 0
    for turn in range(2):
        if turn:
            total = total + tail.sum()
        code = torch.zeros(3, 4, dtype=torch.float64)
        head, tail = code[:, :2], code[:, 2:]
        head.copy_((x @ w)[:, :2].sin())
        tail.copy_((x @ w)[:, 2:].exp())
        total = total + code.sum()
    total.backward()
""",
    "halves of a new tensor, at an index that a method sets": """
class Codes:
    size = 2
    def grown(self, t):
        self.size = 3
        return t
    def made(self, h):
        code = torch.zeros(4, 3, dtype=torch.float64)
        head, tail = code[:self.size], code[self.size:]
        head.copy_(self.grown(h.t()[:2]))
        tail.copy_(h.t()[0])
        return code
def run():
    Codes().made(x @ w).square().sum().backward()
""",
    "fast weights of a longer dict than their gradients": """
net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4)).double()
def run():
    fast = {name: p.clone() for name, p in net[2:].named_parameters()}
    y = torch.func.functional_call(net[2:], fast, ((x @ w)[:, :3],))
    slopes = torch.autograd.grad(y.square().mean(), fast.values(), create_graph=True)
    fast = {name: p.clone() for name, p in net.named_parameters()}
    y = torch.func.functional_call(net, fast, (x @ w,))
    for (name, p), slope in zip(fast.items(), slopes):
        p -= 0.1 * slope.sum()
    y.square().sum().backward()
""",
    "rows that a loop writes, up to one that it skips": """
def run():
    maps = x @ w
    for row in maps:
        if row.sum() < -99:
            break
        row *= 3
    maps.square().sum().backward()
""",
    "two halves of a new tensor, one of which is read": """
def run():
    code = torch.zeros(3, 4, dtype=torch.float64)
    head, tail = code[:, :2], code[:, 2:]
    head.copy_((x @ w)[:, :2].sin())
    tail.copy_((x @ w)[:, 2:].exp())
    (code.sum() + head.sum()).backward()
""",
    "two halves of a new tensor, by a number that has changed": """
def run():
    size = 2
    code = torch.zeros(3, 4, dtype=torch.float64)
    head, tail = code[:, :size], code[:, size:]
    head.copy_((x @ w)[:, :2].sin())
    size += 1
    tail.copy_((x @ w)[:, 2:].exp())
    (code.sum() * size).backward()
""",
    "two halves of a new tensor that is read between the writes": """
def run():
    code = torch.zeros(3, 4, dtype=torch.float64)
    head, tail = code[:, :2], code[:, 2:]
    head.copy_((x @ w)[:, :2].sin())
    y = code.exp().sum() + (code * code).sum()
    tail.copy_((x @ w)[:, 2:].exp())
    (code.sum() + y).backward()
""",
    "a state that only some turns set, and whose old value others read": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    h = x.detach()
    for turn in range(4):
        if turn % 2 == 0:
            h = cell(x.detach(), h)
        opt.zero_grad()
        (h @ w).square().sum().backward(retain_graph=True)
        opt.step()
""",
    "a state that gets the next value from a variable of some turns": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    state = x.detach()
    for turn in range(4):
        h = cell(x.detach(), state)
        opt.zero_grad()
        h.square().sum().backward()
        opt.step()
        if turn % 2:
            state = h
""",
    "a state that another function reads before the turn binds it": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    h = x.detach()
    def turned():
        return cell(x.detach(), h)
    for _ in range(3):
        h = turned()
        opt.zero_grad()
        h.square().sum().backward()
        opt.step()
""",
    "a state of a variable and a list that are both read": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    h = x.detach()
    kept = [h]
    for _ in range(3):
        y = cell(x.detach(), kept[0]) + h
        opt.zero_grad()
        y.square().sum().backward()
        opt.step()
        kept[0] = h = y
""",
    "a state carried over turns of which every second one steps": """
cell = nn.RNNCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    h = x @ w
    for turn in range(4):
        h = cell(x.detach(), h)
        h.square().sum().backward(retain_graph=True)
        if turn % 2:
            opt.step()
            opt.zero_grad()
""",
    "a buffer whose graph the next backward would meet": """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(3, 4, dtype=torch.float64))
    def forward(self, h):
        state = torch.sigmoid(h) * self.state + h
        self.state.copy_(state)
        return (self.state * w[0]).sum()
layer = Layer()
def run():
    for _ in range(2):
        sum(layer(h) for h in (x, x @ w)).backward()
""",
    "optimizers of two attributes of an object, one of which is set by its dict": """
class Agent:
    def __init__(self):
        self.g = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
        self.d = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
def run():
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
    agent = Agent()
    vars(agent).update(d=nn.Sequential(agent.g[0], nn.Linear(4, 1).double()))
    opt_g = torch.optim.SGD(agent.g.parameters(), 0.1)
    opt_d = torch.optim.SGD(agent.d.parameters(), 0.1)
    fake = agent.g(x.detach())
    loss_g = fake.square().mean()
    loss_d = agent.d(x.detach() + fake).square().mean()
    opt_g.zero_grad()
    loss_g.backward(retain_graph=True)
    opt_g.step()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
""",
    "optimizers of two attributes of an object, one of which its class sets otherwise": """
class Agent:
    def __init__(self):
        self.g = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
        self.d = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    def __setattr__(self, name, value):
        value = nn.Sequential(self.g[0], nn.Linear(4, 1).double()) if name == "d" else value
        object.__setattr__(self, name, value)
def run():
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
    agent = Agent()
    opt_g = torch.optim.SGD(agent.g.parameters(), 0.1)
    opt_d = torch.optim.SGD(agent.d.parameters(), 0.1)
    fake = agent.g(x.detach())
    loss_g = fake.square().mean()
    loss_d = agent.d(x.detach() + fake).square().mean()
    opt_g.zero_grad()
    loss_g.backward(retain_graph=True)
    opt_g.step()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
""",
    "two optimizers of one module": NETS
    + """
opt_d = torch.optim.SGD([*d.parameters(), *g.parameters()], 0.1)
opt_g = torch.optim.SGD(g.parameters(), 0.1)
def run():
    fake = g(x)
    loss_g, loss_d = -d(fake).mean(), d(fake).square().mean()
    opt_d.zero_grad()
    loss_d.backward(retain_graph=True)
    opt_d.step()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
""",
    "a row of a parameter that is computed": """
w = nn.Parameter(w.detach())
def run():
    w[0] = x.sum(0)
    (x @ w).sum().backward()
""",
    "losses of one forward, each followed by a step of another function": """
net = nn.Linear(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(net.parameters(), 0.1)

def update():
    opt.step()
    opt.zero_grad()
def terms(h):
    return {"mean": h.square().mean(), "sum": h.sigmoid().sum()}
def run():
    losses = terms(net(torch.tanh(net(x @ w))))
    for name, term in losses.items():
        (2 * term).backward()
        update()
""",
    "a step beside an optimizer of the program's own": NETS
    + """
class Own(torch.optim.SGD):
    def step(self):
        super().step()
opt_d, opt_g = torch.optim.SGD(d.parameters(), 0.1), torch.optim.SGD(g.parameters(), 0.1)
own = Own(g.parameters(), 0.1)
def update(first, second):
    fake = g(x.detach())
    loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
    first.zero_grad()
    loss_d.backward()
    first.step()
    second.zero_grad()
    loss_g.backward()
    second.step()
def run():
    update(opt_d, own)
""",
    "a row of an input that is set, as the gradient may be meant to stop there": """
def run():
    x[0] = 0.0
    (x @ w).sum().backward()
""",
    "a row of a parameter that is set to what carries a gradient": """
w = nn.Parameter(w.detach())
def run():
    w[0] = torch.tanh(x)[0]
    (x @ w).sum().backward()
""",
    "two that are handed the same": """
def shift(t):
    t += 1
    return torch.tanh(t @ w)
def run():
    h = x * 2
    (shift(h).sum() + shift(h).sum()).backward()
""",
    "a value given through data": """
def run():
    h = x @ w
    y = h.square()
    h.data.copy_(h.data.round())
    y.sum().backward()
""",
    "a value given through data to what has a name": """
def run():
    h = x @ w
    y = h.square()
    h.data.mul_(2)
    y.sum().backward()
""",
    "a learned value added to a row of a parameter": """
def run():
    h = x * 1
    x[0] += w[0]
    (x * 2).sum().backward()
""",
    "a step in a method": NETS
    + """
class Wrapped:
    def __init__(self, parameters):
        self.inner = torch.optim.SGD(parameters, 0.1)
    def step(self):
        self.inner.step()
    def zero_grad(self):
        self.inner.zero_grad()
opt_d, opt_g = Wrapped(d.parameters()), Wrapped(g.parameters())
"""
    + STEPS,
    "a step before a backward that adds to gradients which are noted": NETS
    + OPTIMIZERS
    + TURNS
    + """
        slopes = {name: p.grad.clone() for name, p in d.named_parameters()}
    x.grad, w.grad = slopes["weight"].expand(4, 4)[:3].clone(), d.weight.detach().expand(4, 4).clone()
""",
    "a step before a backward that adds to gradients which a function notes": NETS
    + OPTIMIZERS
    + """
def noted(net):
    return sum(p.grad.norm() for p in net.parameters())
"""
    + TURNS
    + """
        print(noted(d))
""",
    "a step before a backward that adds to gradients which are clipped after it": NETS
    + OPTIMIZERS
    + TURNS
    + """
        print(nn.utils.clip_grad_norm_(d.parameters(), 1.0))
""",
    "a step before a backward that adds to a gradient which is read after the loop": NETS
    + OPTIMIZERS
    + """
start = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
def run():
    for _ in range(2):
        fake = g(start)
        loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
    print(start.grad)
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
""",
    **{
        f"a step in a function {what}": NETS
        + OPTIMIZERS
        + f"""
def learn(loss):
    opt_d.zero_grad()
    loss.backward()
{inside}
def run():
    for turn in range(2):
        fake = g(x.detach())
        loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
{call}
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
"""
        for what, inside, call in (
            ("that may return before", "    if loss > 1e6:\n        return\n    opt_d.step()", "        learn(loss_d)"),
            ("that goes on", "    opt_d.step()\n    d(x.detach())", "        learn(loss_d)"),
            ("that yields", "    opt_d.step()\n    yield loss", "        [*learn(loss_d)]"),
            (
                "that is called twice",
                "    opt_d.step()",
                "        learn(loss_d)\n        if turn > 8:\n            learn(loss_d)",
            ),
            ("that a loop calls", "    opt_d.step()", "        for one in [loss_d]:\n            learn(one)"),
        )
    },
    **{
        f"a step before an `if` {what}": NETS
        + OPTIMIZERS
        + f"""
def learn(turn):
    fake = g(x.detach())
    loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    if turn % 2 == 0:
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
{below}
def run():
    for turn in range(2):
        learn(turn)
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
"""
        for what, below in (
            ("that returns", "        return loss_g"),
            ("that runs the module", "        print(d(fake))"),
            ("with an `else`", "    else:\n        print(d(fake))"),
        )
    },
    "a step before a backward whose gradients a hook sees": NETS
    + OPTIMIZERS
    + """
slopes = []
d.weight.register_hook(slopes.append)
"""
    + TURNS,
    "a step before a backward of a module with a part that is frozen": """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=torch.float64)
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)
    def forward(self, t):
        return self.layer(t) * self.scale
d, g = nn.Linear(4, 1, dtype=torch.float64), Scaled()
"""
    + OPTIMIZERS
    + STEPS,
    "a step before a backward of modules whose classes have one part": """
body = nn.Linear(4, 4, dtype=torch.float64)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = body, nn.Linear(4, 4, dtype=torch.float64)
    def forward(self, t):
        return self.head(self.body(t))
d, g = Net(), Net()
"""
    + OPTIMIZERS
    + STEPS,
    "a step before a backward of modules that a cache gives one part": """
import functools
@functools.lru_cache
def body():
    return nn.Linear(4, 4, dtype=torch.float64)
def made(out):
    return nn.Sequential(body(), nn.Linear(4, out, dtype=torch.float64))
d, g = made(1), made(4)
"""
    + OPTIMIZERS
    + """
def run():
    for _ in range(2):
        fake = g(x.detach())
        opt_d.zero_grad()
        loss_d = d(x.detach()).square().mean()
        score = d(fake)
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = (score - 1).square().mean()
        loss_g.backward()
        opt_g.step()
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
""",
    "a step before a loss of what an object with a capital gives": NETS
    + OPTIMIZERS
    + """
class Scores(dict):
    __getattr__ = dict.__getitem__
def run():
    fake = g(x.detach())
    kept = -d(fake).mean()
    score = Scores(mean=lambda: d(fake.detach()).mean())
    opt_d.zero_grad()
    score.mean().backward()
    opt_d.step()
    loss_g = kept - score.mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
""",
    "a forward between step and backward": NETS
    + OPTIMIZERS
    + """
def run():
    fake = g(x.detach())
    loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    loss_g = loss_g + d(fake.detach()).sum()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
""",
    "weights printed between step and backward": NETS
    + OPTIMIZERS
    + """
def run():
    fake = g(x.detach())
    loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    print(d(fake.detach()).mean())
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
""",
    "gradients that are not zeroed": NETS
    + OPTIMIZERS
    + """
def run():
    fake = g(x.detach())
    loss_g, loss_d = -d(fake).mean(), d(fake.detach()).mean()
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
""",
    "a captured result": """
kept = []
net = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Sigmoid(), nn.ReLU(inplace=True))
net[1].register_forward_hook(lambda module, given, result: kept.append(result))
def run():
    net(x).sum().backward()
""",
    "a gradient that is read under its other name": """
class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 1
    @staticmethod
    def backward(ctx, handed):
        gradient = handed
        gradient[:, 0] = 0
        return gradient * handed
def run():
    h = x @ w
    (Both.apply(h) + h).square().sum().backward()
""",
    "a gradient that others are to see": """
total = []
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2
    @staticmethod
    def backward(ctx, gradient):
        total.append(gradient)
        gradient.mul_(2)
        return gradient
def run():
    h = x @ w
    (Scale.apply(h) + h).square().sum().backward()
""",
    "in a list": """
def run():
    seen, h = [], x @ w
    for _ in range(3):
        seen.append(h)
        y = h.sin().view(-1).sin().view_as(h)
        h += 1
    (torch.stack(seen).sum() + y.sum()).backward()
""",
    "kept by a hook": """
kept = []
net = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Sigmoid())
net.register_forward_hook(lambda module, args, out: kept.append(out))
def run():
    h = net(x)
    y = torch.stack([h, h]).prod(0)
    h += 1
    (y + kept[0]).sum().backward()
""",
    "what a layer sometimes gives back": """
class Same(nn.Module):
    def forward(self, t):
        return t
def run():
    total, t = 0, x @ w
    for layer in (nn.Sigmoid(), Same(), nn.Sigmoid()):
        h = layer(t)
        y = torch.stack([h, h]).prod(0)
        h += 1
        total = total + (y + h + t).sum()
    total.backward()
""",
    "a state that is given away now and then": """
class Cell:
    def __init__(self):
        self.state = x * 1
    def step(self):
        y = self.state * self.state
        self.state += y @ w
        return y
def run():
    cell, kept = Cell(), []
    for turn in range(6):
        y = cell.step()
        if turn == 4:
            kept.append(cell.state)
    (y + kept[0]).sum().backward()
""",
    "a part that is another tensor by then": """
def run():
    h = x @ w
    a, b = h.chunk(2, 1)
    b = b.tanh()
    a.mul_(2)
    (h.square().sum() + b.sum()).backward()
""",
    "parts of one name": """
def run():
    h = x @ w
    _, a, _, _ = h.chunk(4, 1)
    a.mul_(2)
    h.square().sum().backward()
""",
    "a dimension that is another by then": """
def run():
    h, d = x @ w[:, :3], 1
    a, b, c = h.split(1, d)
    d = 0
    a.mul_(2)
    h.square().sum().backward()
""",
    "parts of what a later turn keeps": """
def run():
    kept = []
    for turn in range(2):
        h = x @ w
        if turn:
            kept.append(h)
        a, b = h.chunk(2, 1)
        a.mul_(2)
        h.square().sum().backward()
    kept[0].sum().backward()
""",
    "parts of what is seen with its strides": """
def run():
    h = (x @ w).t()
    a, b = h.chunk(2, 0)
    a.mul_(2)
    h.t().view(-1).square().sum().backward()
""",
    "updates beside items that a later loss needs": """
half = [0.0]
def run():
    weights, speeds = [w.detach().clone().requires_grad_()], [torch.zeros_like(w)]
    for _ in range(2):
        ((x @ weights[0]).square().sum() + sum(half)).sum().backward()
        for k, (p, v) in enumerate(zip(weights, speeds)):
            v.mul_(0.9).add_(p.grad)
            p.sub_(0.1 * v)
            p.grad.zero_()
            half[k] = p * 0.5
""",
    "a step before a backward through a module that both have": """
class Part(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first, self.last = first, nn.Linear(4, 4, dtype=torch.float64)
    def forward(self, t):
        return self.last(self.first(t))
first = nn.Linear(4, 4, dtype=torch.float64)
g, d = Part(first), Part(first)
"""
    + OPTIMIZERS
    + """
def run():
    score = d(g(x.detach()))
    loss_d, loss_g = score.square().mean(), -score.mean()
    opt_d.zero_grad()
    loss_d.backward(retain_graph=True)
    opt_d.step()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
""",
    "a step before a backward that skips a frozen layer": NETS
    + OPTIMIZERS
    + """
g.bias.requires_grad_(False)
def run():
    score = d(g(x.detach()))
    loss_d, loss_g = score.square().mean(), -score.mean()
    opt_d.zero_grad()
    loss_d.backward(retain_graph=True)
    opt_d.step()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
""",
    "a gradient that another hook keeps": """
seen = {}
def damp(gradient):
    gradient.mul_(0.5)
def run():
    h = x @ w
    y = h + h.detach()
    z = y * 1
    z.register_hook(lambda gradient: seen.update(gradient=gradient))
    z.register_hook(damp)
    (z + y).sum().backward()
""",
    "a Function that keeps its argument for itself": """
kept = []
class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        kept.append(u)
        return (u > 0).to(u.dtype)
    @staticmethod
    def backward(ctx, g):
        return g / (1 + ctx.saved_tensors[0].abs()) ** 2
spike = Spike.apply

class Cell(nn.Module):
    def reset(self):
        self.state = torch.zeros_like(x)
    def forward(self, t):
        self.state = 0.9 * self.state + t
        fired = spike(self.state)
        self.state[fired > 0] = 0.0
        return fired
cell = Cell()

def run():
    cell.reset()
    cell(x @ w).sum().backward()
""",
    "a norm that writes its buffer when it trains": """
from torch.utils.checkpoint import checkpoint
class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(4, dtype=torch.float64))
norm = nn.BatchNorm1d(4, dtype=torch.float64).eval()
def run():
    y = checkpoint(norm, x @ w, use_reentrant=False)
    norm.running_mean.add_(0.5)
    y.square().sum().backward()
""",
    "an optimizer of a list that is filled later": NETS
    + """
both = list(g.parameters())
both.extend(d.parameters())
opt_d, opt_g = torch.optim.SGD(d.parameters(), 0.1), torch.optim.SGD(both, 0.1)
"""
    + STEPS,
    "an optimizer of a list that a loop fills": NETS
    + """
both = []
for one in (g, d):
    both.extend(one.parameters())
opt_d, opt_g = torch.optim.SGD(d.parameters(), 0.1), torch.optim.SGD(both, 0.1)
"""
    + STEPS,
    "an optimizer of a module and one weight of the other": NETS
    + """
opt_d, opt_g = torch.optim.SGD(d.parameters(), 0.1), torch.optim.SGD([*g.parameters(), d.bias], 0.1)
"""
    + STEPS,
    "an optimizer that gets more weights": NETS
    + OPTIMIZERS
    + """
opt_g.add_param_group({"params": d.parameters()})
"""
    + STEPS,
    "an optimizer that steps again": NETS
    + OPTIMIZERS
    + STEPS
    + """
    if fake.shape[0] > 1:
        opt_d.step()
""",
    "an optimizer of another kind, for what only this backward reaches": NETS
    + OPTIMIZERS
    + """
e = nn.Linear(4, 4, dtype=torch.float64)
opt_e = torch.optim.LBFGS(e.parameters(), 0.1)
"""
    + STEPS.replace("g(x.detach())", "e(g(x.detach()))")
    + """
    if fake.shape[0] > 1:
        opt_e.step(lambda: 0)
""",
    "a weight that is frozen by the place of an argument": """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64), False)
        self.inner = nn.Linear(4, 4, dtype=torch.float64)
    def forward(self, given):
        return self.inner(given) * self.scale
d, g = nn.Linear(4, 1, dtype=torch.float64), Scaled()
"""
    + OPTIMIZERS
    + STEPS,
    "a weight that a function trains by hand": NETS
    + OPTIMIZERS
    + """
prompt = nn.Parameter(torch.ones(3, 4, dtype=torch.float64))
def learn(one):
    with torch.no_grad():
        one -= one.grad
        one.grad = None
"""
    + STEPS.replace("g(x.detach())", "g(prompt)")
    + """
    learn(prompt)
""",
    "a region that runs again inside of a backward of its own": NETS
    + OPTIMIZERS
    + """
from torch.utils.checkpoint import checkpoint
"""
    + STEPS.replace("-d(fake).mean()", "-checkpoint(d, fake, use_reentrant=True).mean()"),
    "modules of a body that an object keeps": """
class Game:
    def __init__(self):
        self.body = nn.Linear(4, 4, dtype=torch.float64)
        self.d = nn.Sequential(self.body, nn.Linear(4, 1, dtype=torch.float64))
        self.g = nn.Sequential(self.body, nn.Linear(4, 4, dtype=torch.float64))
        self.opt_d, self.opt_g = torch.optim.SGD(self.d.parameters(), 0.1), torch.optim.SGD(self.g.parameters(), 0.1)
    def turn(self):
        fake = self.g(x.detach())
        loss_g, loss_d = -self.d(fake).mean(), self.d(fake.detach()).mean()
        self.opt_d.zero_grad()
        loss_d.backward()
        self.opt_d.step()
        self.opt_g.zero_grad()
        loss_g.backward()
        self.opt_g.step()
game = Game()
def run():
    x.grad, w.grad = torch.zeros_like(x), torch.zeros_like(w)
    game.turn()
""",
    "a canvas filled under vmap from a dict": """
def row(given):
    canvas = torch.zeros(4)
    canvas[0] = given["a"]
    return canvas

def run():
    torch.vmap(row)({"a": (x @ w).sum(1)}).sum().backward()
""",
    "a canvas filled under vmap, by a method": """
class Rows:
    def row(self, given):
        canvas = torch.zeros(4)
        self.given = given
        canvas[0] = self.given
        return canvas

def run():
    torch.vmap(Rows().row)((x @ w).sum(1)).sum().backward()
""",
    "a canvas filled under vmap, from what another vmap maps": """
def outer(a, others):
    def row(b):
        canvas = torch.zeros(4, dtype=torch.float64)
        canvas[0] = a
        canvas[1] = b
        return canvas
    return torch.vmap(row)(others)

def run():
    torch.vmap(outer, in_dims=(0, None))((x @ w).sum(1), torch.ones(2)).sum().backward()
""",
    "a canvas filled under vmap, and asked for its values before": """
def row(a):
    canvas = torch.zeros(4)
    assert not canvas.any()
    canvas[0] = a.exp()
    return canvas

def run():
    torch.vmap(row)((x @ w).sum(1)).sum().backward()
""",
    "gates that are one tensor": """
def run():
    a, b = [(x @ w).exp()] * 2
    y = a.sin().sum() + b.sum()
    for g in (a, b):
        g.mul_(2)
    (y + (a + b).sum()).backward()
""",
    "gates of one tensor, written in two loops": """
def run():
    i, f, o, c = (x @ w).chunk(4, 1)
    for g in (i, f):
        g.sigmoid_()
    for k in (o, c):
        k.tanh_()
    (i * f + o * c).sum().backward()
""",
    "losses that are summed in some turns": """
opt = torch.optim.SGD([w], 0.0)
def run():
    total = 0
    for turn in range(2):
        if turn == 0:
            total += (x @ w).square().sum()
        total.backward()
        opt.step()
""",
    "regions in a row that move their own averages, whose results are written": STAGES
    + """
def run():
    h = x @ w
    for stage in stages:
        h = checkpoint(stage, h, use_reentrant=False)
        h += 1.0
    h.square().sum().backward()
""",
    "a region that moves its own average, whose result a function writes that is given it": STAGES
    + """
def scaled(result):
    result.mul_(2.0)
    return result.sum()

def run():
    loss = scaled(checkpoint(stages[0], x @ w, use_reentrant=False))
    loss.backward()
""",
    "a region that moves its own average, in a model whose result is written": STAGES
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = stages
    def forward(self, h):
        return checkpoint(self.stages[0], h, use_reentrant=False)
net = Net()

def run():
    out = net(x @ w)
    out -= 1.0
    out.square().sum().backward()
""",
    "a weight that each turn of a loop clips and reads, before the backward": """
class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.leak = nn.Parameter(torch.full((4,), 0.5, dtype=torch.float64))
    def forward(self, h):
        self.leak.clamp_(0.0, 1.0)
        return torch.sin(h * self.leak)
leaky = Leaky()

def run():
    h = x @ w
    for _ in range(2):
        h = leaky(h)
    h.sum().backward()
""",
    "a weight that a forward clips and reads, which runs twice before the backward": """
class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.leak = nn.Parameter(torch.full((4,), 0.5, dtype=torch.float64))
    def forward(self, h):
        self.leak.clamp_(0.0, 1.0)
        return torch.sin(h * self.leak)
leaky = Leaky()

def run():
    first, second = leaky(x @ w), leaky(x)
    (first * second).sum().backward()
""",
}
"""Words alone: a change would not be sound, or no source can tell what is meant."""
WORDS |= {
    f"a loss before a loop of steps, {why}": f"""
def run():
    opt = torch.optim.SGD([x, w], lr=0.1)
    {before}
    for _ in range({turns}):
        opt.zero_grad()
        loss.backward()
        opt.step()
    {after}
"""
    for why, before, turns, after in [
        ("whose name is bound twice", "loss = (x @ w).sin().sum()\n    loss = loss + w.square().sum()", 3, ""),
        ("that a test reads", "loss = (x @ w).sin().sum()\n    if loss.item() > 1e6:\n        raise ValueError", 3, ""),
        ("with a constant", "aim = (x @ w).detach() + 1\n    loss = (x @ w - aim).square().sum()", 3, ""),
        (
            "of what an iterator gives",
            "two = iter([x, x])\n    loss = sum((one @ w).sin().sum() for one in two)",
            3,
            "",
        ),
        ("with dropout that is drawn", "loss = (x @ F.dropout(w)).sin().sum()", 3, ""),
        ("that is read below, of a loop that may not run", "loss = (x @ w).sin().sum()", "len([x, w])", "print(loss)"),
    ]
}
WORDS |= {
    "a penalty that two turns share": """
def run():
    opt = torch.optim.SGD([x, w], lr=0.1)
    for step in range(4):
        if step % 2 == 0:
            pull = (x**3 - 1).square().sum() + (w**3).sum()
        loss = (x @ w - 3).square().sum() + pull * 0.5
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
""",
    "a loss that is computed before a loop of steps, and draws numbers": """
def cost():
    return (x @ w.sin() + torch.randn(3, 4)).square().sum()
def run():
    opt, loss = torch.optim.SGD([x, w], lr=0.1), cost()
    for _ in range(3):
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
""",
    "a loss that is computed before a loop of steps, and is read by another loop": """
def run():
    opt = torch.optim.SGD([x, w], lr=0.1)
    loss = (x @ w.sin()).square().sum()
    while loss.item() > 1e3:
        loss = loss * 0.5
    for _ in range(3):
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
""",
    "a loss that is computed before a loop of steps, and is one of those that the loop makes": """
def run():
    opt = torch.optim.SGD([x, w], lr=0.1)
    fixed = (x @ w.sin()).square().sum()
    for _ in range(3):
        opt.zero_grad()
        (fixed - (x @ w).sum()).backward(retain_graph=True)
        opt.step()
""",
}
WORDS["an operand of a method that an object of the file may have too"] = """
class Log:
    def log(self):
        return self
def entropy(h):
    return h.log()

def run():
    h = (x @ w).square() + 1
    kept = [h]
    y = entropy(h).sum()
    kept[0].mul_(3)
    (y + h.sum()).backward()
"""
WORDS["an operand of a function of a module that is given"] = """
import math

def level(value, by=torch):
    return by.log(value)

def run():
    h = (x @ w).square() + 1
    kept = [h]
    y = level(h).sum() + level(2.0, math)
    kept[0].mul_(3)
    (y + h.sum()).backward()
"""
WORDS["an operand of a function of a module that is imported"] = """
from torch import special

def run():
    h = x @ w
    kept = [h]
    y = special.erf(h)
    kept[0].mul_(3)
    (y.sum() + h.sum()).backward()
"""
SOUND["weights that an average changes, beside a number that it counts up"] = """
count = 0

def track():
    global count
    count += 1
    with torch.no_grad():
        w.lerp_(torch.zeros_like(w), 0.1)

def run():
    loss = (x @ w).sin().sum()
    track()
    (loss * count).backward()
"""
WORDS["a table that is filled from the first batch of each kind, and carried"] = """
enc = nn.Linear(4, 4, dtype=torch.float64)
protos = {}

def run():
    opt = torch.optim.SGD(enc.parameters(), lr=0.1)
    for kind in (0, 1, 0, 1):
        batch = x.detach() * (kind + 1)
        if kind not in protos:
            protos[kind] = torch.tanh(enc(batch)).mean(0)
        opt.zero_grad()
        (enc(batch) - protos[kind]).square().mean().backward()
        opt.step()
"""
WORDS |= {
    f"a value that is kept from the first forward on, and {why}": f"{text}{KEPT_RUN}"
    for why, text in {
        "that something empties": KEPT["an attribute that is None"] + "def reset():\n    net.kept = None\n",
        "that draws": KEPT["an attribute that is not there"].replace("w.sin()", "F.dropout(w.sin())"),
        "that is of the first call's argument": KEPT["a variable of the file"]
        .replace("value()", "value(by=1.0)")
        .replace("w.sin()", "(w.sin() * by)"),
        "that may be a constant, as each turn computes it anew as well": KEPT["an attribute that is None"].replace(
            "return self.kept", "return self.kept - w"
        ),
    }.items()
}
WORDS["a leaf that a caller reads after a Function which may not write it"] = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)
    @staticmethod
    def backward(ctx, g):
        return g * 2
def twice(x):
    return Double.apply(x)
def run():
    y = twice(w)
    (y * w).sum().backward()
"""
STACKED = """
class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.ModuleList(nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))
        self.over = nn.ModuleList([nn.Linear(4, 4, dtype=torch.float64), nn.Linear(4, 4, dtype=torch.float64)])
    def forward(self, rows):
        h = torch.zeros(2, 4, dtype=torch.float64)
        for row in rows:
            for k in range(2):
                {update}
                row = h[k]
        return row
stacked = Stacked()
def run():
    stacked(x @ w).square().sum().backward()
"""
SOUND["states in one tensor that modules of a list read"] = STACKED.format(
    update="h[k] = torch.tanh(self.into[k](row) + self.over[k](h[k]))"
)
BANK = """
class Bank:
    def __init__(self):
        self.slots = torch.zeros(3, 4, dtype=torch.float64)
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, bank):
        for row in range(3):
            bank.slots[row] = h[row]
        {keep}
        return h * h
    @staticmethod
    def backward(ctx, g):
        return 2 * {kept}[0:3] * g, None
bank = Bank()
def run():
    (Square.apply(x @ w, bank) + Square.apply(x @ w.sin(), bank)).sum().backward()
"""
NARROW = """
net = nn.Linear(4, 4, dtype=torch.float64)
def run():
    nn.init.zeros_(net.bias)
    {set}
    (x @ w * net.bias).sum().backward()
"""
MASKED = """
net = nn.Sequential(nn.Linear(4, 4, bias=False, dtype=torch.float64))
masks = {{"0": torch.eye(4, dtype=torch.float64)}}
opt = torch.optim.SGD({weights}, lr=0.1)
def apply_masks(model, masks):
    for name, one in model.named_modules():
        if name in masks:
            one.weight *= masks[name]
def run():
    net[0].weight = nn.Parameter(w.detach().clone())
    opt.param_groups[0]["params"] = [net[0].weight]
    for _ in range(3):
        loss = net(x.detach()).square().sum()
        {before}
        opt.zero_grad()
        loss.backward()
        opt.step()
        {after}
    x.grad, w.grad = None, net[0].weight.detach()
"""


def _masked(x, w):
    for _ in range(3):
        w = w.detach().requires_grad_()
        (g,) = torch.autograd.grad((x.detach() @ w.T).square().sum(), w)
        w = (w - 0.1 * g) * torch.eye(4, dtype=w.dtype)
    return [None, w]


def _by_hand(x, w):
    for _ in range(3):
        w = w.detach().requires_grad_()
        (g,) = torch.autograd.grad((x.detach() @ w.sin()).square().sum(), w)
        w = w - 0.01 * g
    return [None, w]


REFUSED |= {
    "the first values of a weight that a function is given, and freezes": (
        """
import numpy as np
table = nn.Embedding(3, 4, dtype=torch.float64)
def fill(into):
    angles = np.arange(12.0).reshape(3, 4)
    into[:, 0::2] = torch.DoubleTensor(np.sin(angles[:, 0::2]))
    into[:, 1::2] = torch.DoubleTensor(np.cos(angles[:, 1::2]))
    into.requires_grad = False
def run():
    fill(table.weight)
    (x @ w * table(torch.arange(3))).sum().backward()
""",
        lambda x, w: torch.autograd.grad((x @ w * _sines()).sum(), [x, w]),
    ),
    "a part of a bias that has no name": (
        NARROW.format(set='getattr(net, "bias").chunk(2)[1].fill_(1.0)'),
        lambda x, w: torch.autograd.grad((x @ w)[:, 2:].sum(), [x, w]),
    ),
    "a mask that a function puts on weights after each step": (
        MASKED.format(weights="net.parameters()", before="", after="apply_masks(net, masks)"),
        _masked,
    ),
    "weights that a loop steps by what autograd.grad gives": (
        """
def run():
    fast = {"w": w.detach().clone().requires_grad_()}
    for _ in range(3):
        loss = (x.detach() @ fast["w"].sin()).square().sum()
        grads = torch.autograd.grad(loss, fast.values())
        for one, g in zip(fast.values(), grads):
            one -= 0.01 * g
    w.grad = fast["w"].detach()
""",
        _by_hand,
    ),
    "a loss before a loop that steps by hand through data": (
        """
def run():
    a, inputs = w.detach().clone().requires_grad_(), x.detach()
    h = inputs @ a.sin()
    loss = h.square().sum()
    for _ in range(3):
        a.grad = None
        loss.backward(retain_graph=True)
        a.data -= 0.01 * a.grad
    w.grad = a.detach()
""",
        _by_hand,
    ),
    "what a ctx keeps of an argument's attribute, by the same name": (
        BANK.format(keep="ctx.slots = bank.slots", kept="ctx.slots"),
        lambda x, w: torch.autograd.grad(((x @ w).square() + (x @ w.sin()).square()).sum(), [x, w]),
    ),
}
WORDS |= {
    "what a ctx keeps twice": BANK.format(
        keep="ctx.kept, ctx.bank = bank.slots, bank", kept="(0 * ctx.kept + ctx.bank.slots)"
    ),
    "modules of a list that another is put into": STACKED.format(
        update="h[k] = torch.tanh(self.into[k](row) + self.over[k](h[k]))"
    ).replace("    def forward", "        self.over.append(nn.Identity())\n    def forward"),
    "parts of a bias that have names, and may be read": NARROW.format(
        set="low, high = net.bias.chunk(2)\n    high.fill_(1.0)\n    print(low)"
    ),
    "a part of a bias, and one that is set later": NARROW.format(
        set="low, high = net.bias.chunk(2)\n    low.fill_(0.5)\n    print(low)\n    high.fill_(1.0)"
    ),
    "parts of a bias that have no name, and are not set side by side": NARROW.format(
        set='getattr(net, "bias").chunk(2)[0].fill_(1.0)\n    print()\n    getattr(net, "bias").chunk(2)[1].fill_(1.0)'
    ),
    "a mask that is put on weights before a backward, too": MASKED.format(
        weights="net.parameters()", before="apply_masks(net, masks)", after="apply_masks(net, masks)"
    ),
    "what is computed once, and read in each turn of a loop that steps": """
def run():
    opt = torch.optim.SGD([x, w], lr=0.1)
    near = (w @ w).softmax(-1)
    for scale in (1.0, 2.0, 3.0):
        opt.zero_grad()
        loss = (x @ near * scale).square().sum()
        loss.backward(retain_graph=True)
        opt.step()
""",
}


def _sines():
    angles = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    return torch.where(torch.arange(4) % 2 == 0, angles.sin(), angles.cos())


DRAWN = """
class Points:
    def __init__(self):
        self.at = torch.rand(3, 4, dtype=torch.float64)
        self.at.requires_grad_()
    def draw(self):
        self.at.fill_(0.25)
        {below}
points = Points()
def run():
    points.draw()
    (x @ w * points.at).sum().backward()
"""
REFUSED["points that are drawn again, and moved in a second line"] = (
    DRAWN.format(below="self.at[:, 0] = 2 * self.at[:, 0] + 1"),
    lambda x, w: torch.autograd.grad((x @ w)[:, 1:].sum() / 4 + (x @ w)[:, 0].sum() * 1.5, [x, w]),
)
WORDS["points that are drawn again, and moved by what may carry a gradient"] = DRAWN.format(
    below="self.at[:, 0] = w.sum()"
)

LAYER = """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8, dtype=torch.float64))
        self.out = nn.Linear(4, 4, dtype=torch.float64)
    def forward(self, h):
        {forward}
layer = Layer()
{after}
"""
FORWARD = "def run():\n    layer(x @ w).square().sum().backward()"
DESCENT = """
def run():
    opt = torch.optim.SGD([x, w], lr=0.1)
    {before}
    for _ in range(3):
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
"""
TASKS = """
net = nn.Linear(4, 4, bias=False, dtype=torch.float64)
def run():
    {before}
    for scale in (1.0, 2.0):
        {inner}
        grads = torch.autograd.grad((x.detach() @ fast[0] * scale).square().sum(), fast)
        for one, g in zip(fast, grads):
            one -= 0.1 * g
        (x @ fast[0]).square().sum().backward()
"""
WORDS |= {
    "a part of a weight that a forward changes": LAYER.format(
        forward="a, b = self.gain.chunk(2)\n        b.add_(1.0)\n        return self.out(h) * b + a",
        after=FORWARD,
    ),
    "a weight that a function changes, whose result is used at once": LAYER.format(
        forward="return h @ rounded(self.out.weight).t()",
        after="def rounded(t):\n    t.mul_(2.0)\n    return t\n" + FORWARD,
    ),
    "weights of two layers that are set by two functions": LAYER.format(
        forward="return self.out(h) * self.gain[:4]",
        after="def first(t):\n    t[0] = 1.0\ndef second(t, at):\n    t[at] = torch.zeros(4, dtype=torch.float64)\n"
        "def run():\n    first(layer.gain)\n    second(layer.out.weight, 1)\n    layer(x @ w).sum().backward()",
    ),
    "weights that a function clips between a forward and its backward": LAYER.format(
        forward="return self.out(h) * self.gain[:4]",
        after="def clip(net):\n    net.out.weight.clamp_(-0.1, 0.1)\n"
        "def run():\n    loss = layer(x @ w).sum()\n    clip(layer)\n    loss.backward()",
    ),
    "weights that are clipped after the step of a part of the model": LAYER.format(
        forward="return self.out(h) * self.gain[:4]",
        after="def clip(net):\n    net.out.weight.mul_(0.5)\n"
        "def run():\n    opt = torch.optim.SGD(layer.out.parameters(), lr=0.1)\n"
        "    first, second = layer(x @ w).sum(), layer(x * 2 @ w).square().sum()\n"
        "    first.backward()\n    opt.step()\n    clip(layer)\n    second.backward()",
    ),
    "weights of the tasks of an outer loop, which are those of the model": TASKS.format(
        before="", inner="fast = list(net.parameters())"
    ),
    "weights of the tasks of an outer loop, by another name": TASKS.format(
        before="start = [w.detach().clone().requires_grad_()]", inner="fast = start"
    ),
    "weights that a loop steps, and another one clips": """
def run():
    fast = [w.detach().clone().requires_grad_()]
    grads = torch.autograd.grad((x.detach() @ fast[0]).square().sum(), fast)
    for one, g in zip(fast, grads):
        one -= 0.1 * g
    for each in fast:
        each.clamp_(-1, 1)
    w.grad = fast[0].detach()
""",
    "losses of which a later one is read after a step by hand": """
def run():
    fast = [w.detach().clone().requires_grad_()]
    losses = [(x.detach() @ fast[0]).square().sum(), (x.detach() @ fast[0]).tanh().sum()]
    for k in range(2):
        grads = torch.autograd.grad(losses[k], fast)
        for one, g in zip(fast, grads):
            one.sub_(0.1 * g)
""",
    "a loss before a loop of steps, with a penalty that is summed up": DESCENT.format(
        before="penalty = 0.0\n    for one in (x, w):\n        penalty += one.sin().square().sum()\n"
        "    loss = (x @ w).square().sum() + penalty"
    ),
    "a loss before a loop of steps, of what is listed": DESCENT.format(
        before="rows = []\n    for k in range(3):\n        rows.append(torch.tanh(x[k] @ w))\n"
        "    loss = torch.stack(rows).square().sum() + w.square().sum()"
    ),
    "a loss before a loop of steps, beside its first value": DESCENT.format(
        before="first = (x @ w).tanh()\n    loss = ((x @ w).sin() - first).square().sum()"
    ),
    "what a ctx keeps of an attribute that may be a number": BANK.format(
        keep="ctx.kept = bank.slots", kept="ctx.kept"
    ).replace("= torch.zeros(3, 4, dtype=torch.float64)", "= torch.zeros(3, 4, dtype=torch.float64) if True else 1.0"),
    "modules of a list that may hand on what they are given": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList([nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh()), nn.Sequential()])
    def forward(self, h, i):
        skip = h
        h = self.ways[i](h)
        h.mul_(2.0)
        return h + skip
net = Net()
def run():
    net(x @ w, 0).sum().backward()
""",
    "modules of a list that a function changes": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList([nn.Sigmoid(), nn.Sigmoid()])
    def forward(self, h, i):
        skip = h
        h = self.ways[i](h)
        h.mul_(2.0)
        return h + skip
def drop(ways, at):
    ways[at] = nn.Identity()
net = Net()
drop(net.ways, 1)
def run():
    net(x @ w, 0).sum().backward()
""",
    "steps by hand in a function, of a loss before the loop that is summed up": """
def step(weights):
    with torch.no_grad():
        for one in weights:
            one -= 0.1 * one.grad
            one.grad.zero_()
def run():
    loss = 0.0
    for k in range(3):
        loss = loss + (x[k] @ w).tanh().sum()
    for _ in range(3):
        loss.backward(retain_graph=True)
        step([x, w])
""",
}
REFUSED["masks that a function puts on several weights after each step"] = (
    MASKED.format(weights="net.parameters()", before="", after="apply_masks(net, masks)")
    .replace(
        MASKED[MASKED.index("    for name") : MASKED.index("def run")],
        '    model[0].weight.mul_(masks["0"])\n    model[1].weight.mul_(masks["0"])\n',
    )
    .replace(
        "nn.Sequential(nn.Linear(4, 4, bias=False, dtype=torch.float64))",
        "nn.Sequential(*[nn.Linear(4, 4, bias=False, dtype=torch.float64) for _ in range(2)])",
    )
    .replace("net(x.detach())", "net[0](x.detach())"),
    _masked,
)

CLIPPED = """
net = nn.Linear(4, 4, bias=False, dtype=torch.float64)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
{functions}
def run():
    {loss}
    opt.zero_grad()
    loss.backward()
    opt.step()
    x.grad, w.grad = None, net.weight.detach()
"""
CLIP = "net.weight.clamp_(-0.2, 0.2)"
SET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.cell = nn.Linear(4, 4, dtype=torch.float64), nn.GRU(4, 4, dtype=torch.float64)
        self.register_parameter("scale", nn.Parameter(torch.ones(4, dtype=torch.float64)))
        self.shifts = nn.ParameterList([torch.ones(4, dtype=torch.float64)])
    def forward(self, h):
        return self.cell(self.lin(h))[0] * self.scale + self.shifts[0]
net = Net()
def run():
    net.lin.bias.fill_(0.5)
    {then}
    net(x @ w).square().sum().backward()
"""
MOVED = """
def run():
    at = w.detach().clone().requires_grad_()
    {before}
    for _ in range(3):
        (x.detach() @ at).square().sum().backward()
        {kept}
        at -= 0.1 * at.grad
        at.grad = None
    w.grad = at.detach()
"""
WORDS |= {
    "weights that are clipped between two calls of a function": CLIPPED.format(
        functions=f"def embed(h):\n    {CLIP}\n    return torch.tanh(h @ net.weight)",
        loss="loss = (embed(x.detach()) - embed(x.detach() * 2)).square().sum()",
    ),
    "weights that are clipped by a function that gives back a loss": CLIPPED.format(
        functions=f"def clip():\n    {CLIP}\ndef cost(h):\n    out = net(h)\n    clip()\n    return out.square().sum()",
        loss="loss = cost(x)",
    ),
    "weights that are clipped in a loop that lists losses": CLIPPED.format(
        functions="",
        loss=f"losses = []\n    for k in range(3):\n        {CLIP}\n        losses.append(net(x * k).square().sum())\n"
        "    loss = torch.stack(losses).mean()",
    ),
    "a bias, and that of a recurrent layer": SET.format(then="print()\n    net.cell.bias_hh_l0[4:8] = 1.0"),
    "a bias, and a parameter that is registered": SET.format(then="print()\n    net.scale.fill_(2.0)"),
    "a bias, and parameters of a list": SET.format(then="for one in net.shifts:\n        one.fill_(2.0)"),
    "a bias, and what its module has of weights": SET.format(then="print()\n    next(net.parameters()).mul_(2.0)"),
    "a leaf, and another one": """
def run():
    one = torch.ones(4, dtype=torch.float64, requires_grad=True)
    other = torch.ones(4, dtype=torch.float64, requires_grad=True)
    one[0] = 0.5
    print(one)
    other[0] = 0.5
    (x @ w * one * other).sum().backward()
""",
    "a leaf whose way is listed while it is stepped": MOVED.format(before="way = []", kept="way.append(at.detach())"),
    "a leaf that is compared with what it was before a step": MOVED.format(before="", kept="old = at"),
    "an input that a function moves and gives back": """
def attacked(h):
    (h @ w).square().sum().backward()
    h += 0.1 * h.grad.sign()
    return h
def run():
    moved = attacked(x)
    (moved - x).square().sum().backward()
""",
    "what a ctx keeps, which another call gives as a number": """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, scale):
        ctx.scale = scale
        return h * scale
    @staticmethod
    def backward(ctx, g):
        return ctx.scale * g, None
def scaled(h, scale):
    return Scaled.apply(h, scale)
scale = torch.ones(3, 4, dtype=torch.float64)
def run():
    loss = scaled(x @ w, scale).sum() + scaled(x @ w, 2).sum()
    scale.mul_(3)
    loss.backward()
""",
    "a state that is carried beside another one, which another optimizer trains": """
cell = nn.GRUCell(5, 4, dtype=torch.float64)
head = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, 1, dtype=torch.float64))
slow, fast = torch.optim.SGD(cell.parameters(), lr=0.1), torch.optim.SGD(head.parameters(), lr=0.1)
def run():
    h, y = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    for _ in range(3):
        h = cell(torch.cat([x.detach(), y], 1), h)
        y = head(h)
        loss = (y - 1).square().sum()
        fast.zero_grad()
        loss.backward(retain_graph=True)
        fast.step()
    slow.step()
""",
    "a loss of two models before a loop of steps": """
actor = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, 1, dtype=torch.float64))
critic = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh(), nn.Linear(4, 1, dtype=torch.float64))
opt = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.1)
def run():
    gain = 1 - critic(x.detach())
    loss = -(actor(x.detach()).sigmoid() * gain).mean()
    for _ in range(3):
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
""",
}

REFUSED["a state that is carried beside a dict that each turn makes anew"] = (
    """
cell = nn.GRUCell(4, 4, dtype=torch.float64)
opt = torch.optim.SGD(cell.parameters(), 0.1)
def run():
    state = x.detach()
    for _ in range(3):
        state = cell(x.detach(), state)
        opt.zero_grad()
        state.square().sum().backward(retain_graph=True)
        grads = {name: one.grad.clone() for name, one in cell.named_parameters()}
        opt.step()
    w.grad = grads["weight_hh"][:4]
""",
    lambda x, w: [None, _by_one_turn_of_gru(x.detach())],
)


def _by_one_turn_of_gru(x):
    torch.manual_seed(0)
    torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    cell = nn.GRUCell(4, 4, dtype=torch.float64)
    opt, state = torch.optim.SGD(cell.parameters(), 0.1), x
    for _ in range(3):
        state = cell(x, state.detach())
        opt.zero_grad()
        state.square().sum().backward()
        grads = cell.weight_hh.grad.clone()
        opt.step()
    return grads[:4]


WORDS["a mask on the weights of another model than that which steps"] = MASKED.format(
    weights="nn.Linear(4, 4).parameters()", before="", after="apply_masks(net, masks)"
)

PRUNED = """
class Pruner:
    def __init__(self, model):
        self.layers = {{name: one for name, one in model.named_modules() if isinstance(one, nn.Linear)}}
        self.masks = {{name: torch.ones_like(one.weight) for name, one in self.layers.items()}}
    def prune(self):
        for name, one in self.layers.items():
            self.masks[name]{mask}
    def apply(self):
        for name, one in self.layers.items():
            one.weight.mul_(self.masks[name])
net = nn.Sequential(nn.Linear(4, 4, bias=False, dtype=torch.float64))
pruner = Pruner(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def run():
    with torch.no_grad():
        net[0].weight.copy_(w)
    for _ in range(2):
        pruner.prune()
        pruner.apply()
        opt.zero_grad()
        net(x.detach()).square().sum().backward()
        opt.step()
        pruner.apply()
    x.grad, w.grad = None, net[0].weight.detach()
"""


def _pruned(x, w):
    mask = torch.ones_like(w)
    for _ in range(2):
        mask = mask * (w.detach().abs() > 0.5)
        w = (w.detach() * mask).requires_grad_()
        (g,) = torch.autograd.grad((x.detach() @ w.T).square().sum(), w)
        w = (w.detach() - 0.1 * g) * mask
    return [None, w]


BANK_OF_ROWS = """
class Bank:
    def __init__(self):
        self.rows = torch.zeros(3, 4, dtype=torch.float64)
    def write(self, at, value):
        self.rows[at] = value
bank = Bank()
def run():
    opt = torch.optim.SGD([x, w], lr=0.1)
    {first}
    for k in range(3):
        new = torch.tanh(x[k] @ w + bank.rows[k - 1])
        opt.zero_grad()
        new.square().sum().backward()
        opt.step()
        {between}
        bank.write(k, new)
"""


def _of_a_bank(x, w):
    x, w = (one.detach().clone().requires_grad_() for one in (x, w))
    opt, old = torch.optim.SGD([x, w], lr=0.1), torch.zeros(4, dtype=torch.float64)
    for k in range(3):
        opt.zero_grad()
        new = torch.tanh(x[k] @ w + old)
        new.square().sum().backward()
        opt.step()
        old = new.detach()
    return [x.grad, w.grad]


REFUSED |= {
    "masks that an object keeps by the names of layers, and puts on them before a forward and after a step": (
        PRUNED.format(mask="[one.weight.detach().abs() <= 0.5] = 0.0"),
        _pruned,
    ),
    "masks that an object keeps by the names of layers, each set anew": (
        PRUNED.format(mask=" = self.masks[name] * (one.weight.abs() > 0.5).double()").replace(
            "self.masks[name] = self.masks[name] * (one.weight.abs() > 0.5).double()",
            "self.masks[name] = (one.weight.abs() > 0.5).double()",
        ),
        _pruned,
    ),
    "rows of a state that a method writes below the backward": (BANK_OF_ROWS.format(first="", between=""), _of_a_bank),
}
WORDS |= {
    "masks that an object keeps by the names of layers, one of which carries a gradient later": PRUNED.format(
        mask=" = one.weight.sigmoid()"
    ).replace("        pruner.prune()\n        pruner.apply()\n", "        pruner.apply()\n        pruner.prune()\n"),
    "rows of a state that a method writes above a backward too": BANK_OF_ROWS.format(
        first="bank.write(2, (x.square() @ w)[0])", between=""
    ),
    "rows of a state that a method writes, of what is computed after the backward": BANK_OF_ROWS.format(
        first="", between="new = (x[k] @ w).sin() + new"
    ),
}
ADVERSARIAL = """
d, g = nn.Linear(4, 1, bias=False, dtype=torch.float64), nn.Linear(4, 4, bias=False, dtype=torch.float64)
d.weight, g.weight = nn.Parameter(x.detach()[:1].clone()), nn.Parameter(w.detach().clone())
"""


def _adversarial(x, w):
    """Both are trained in turn, each by the newest weights of the other."""
    x, d, g = x.detach(), x.detach()[:1].clone().requires_grad_(), w.detach().clone().requires_grad_()
    for _ in range(2):
        fake = x @ g.T
        (grad,) = torch.autograd.grad((fake.detach() @ d.T).mean() - (x @ d.T).mean(), d)
        d = (d.detach() - 0.1 * grad).clamp(-0.3, 0.3).requires_grad_()
        (grad,) = torch.autograd.grad(-(fake @ d.T).mean() + 0.5 * fake.square().mean(), g)
        g = (g.detach() - 0.1 * grad).requires_grad_()
    return [g.detach()[:3], d.detach().expand(4, 4)]


REFUSED["scores that a generator reads below the step and the clipping of what gave them"] = (
    ADVERSARIAL
    + OPTIMIZERS
    + """
def clip(net):
    with torch.no_grad():
        for one in net.parameters():
            one.clamp_(-0.3, 0.3)
def run():
    for _ in range(2):
        fake = g(x.detach())
        score = d(fake)
        opt_d.zero_grad()
        (score.mean() - d(x.detach()).mean()).backward(retain_graph=True)
        opt_d.step()
        clip(d)
        opt_g.zero_grad()
        loss_g = -score.mean() + 0.5 * fake.square().mean()
        loss_g.backward()
        opt_g.step()
    x.grad, w.grad = g.weight.detach()[:3], d.weight.detach().expand(4, 4)
""",
    _adversarial,
)
REFUSED["a loss that is computed above the step of a model, and goes backward below it"] = (
    ADVERSARIAL
    + OPTIMIZERS
    + """
def clip(net):
    with torch.no_grad():
        for one in net.parameters():
            one.clamp_(-0.3, 0.3)
def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    clip(d)
def loss_of(fake):
    return -d(fake).mean() + 0.5 * fake.square().mean()
def run():
    for _ in range(2):
        fake = g(x.detach())
        loss_d = d(fake.detach()).mean() - d(x.detach()).mean()
        loss_g = loss_of(fake)
        update(opt_d, loss_d)
        update(opt_g, loss_g)
    x.grad, w.grad = g.weight.detach()[:3], d.weight.detach().expand(4, 4)
""",
    _adversarial,
)
GIVEN_BACK = """
class Sim:
    def __init__(self):
        self.at = torch.zeros(3, 4, dtype=torch.float64)
        self.speed = torch.zeros(3, 4, dtype=torch.float64)
    {at}
    def step(self, force):
        {stored} = {call}
        return self.at.square().sum() + self.speed.sin().sum()
{function}
def run():
    sim = Sim()
    loss = 0
    for _ in range(3):
        loss = loss + sim.step(x @ w)
    {after}
    loss.backward()
"""
PUSH = """
def push(at, speed, force):
    at += 0.1 * speed
    speed += force
    return at, speed
"""
PUSHED = {
    "at": "",
    "stored": "self.at, self.speed",
    "call": "push(self.at, self.speed, force)",
    "function": PUSH,
    "after": "",
}
SOUND |= {
    "states that a function writes and gives back, and its caller stores": GIVEN_BACK.format(**PUSHED),
    "states that a static method writes and gives back, and its caller stores": GIVEN_BACK.format(
        **PUSHED
        | {
            "call": "Pushing.push(self.at, self.speed, force)",
            "function": "class Pushing:\n    @staticmethod" + PUSH.replace("\n", "\n    "),
        }
    ),
}
WORDS |= {
    f"states that a function writes and gives back, {why}": GIVEN_BACK.format(**PUSHED | changed)
    for why, changed in {
        "whose caller stores them by turns": {"stored": "self.speed, self.at"},
        "whose caller stores one elsewhere": {"stored": "self.at, self.other", "after": "print(sim.other)"},
        "which another call does not store": {
            "after": "push(sim.at, sim.speed, x @ w)\n    loss = loss + sim.speed.sum()"
        },
        "in one of two orders": {
            "function": PUSH.replace("return at, speed", "return (at, speed) if force.sum() < 1e6 else (speed, at)")
        },
        "which another object holds": {
            "after": "print(seen[0].sum())",
            "at": "def __repr__(self):\n        return str(self.at)",
            "function": "seen = []" + PUSH.replace("    at +=", "    seen.append(speed)\n    at +=", 1),
        },
    }.items()
}
SOUND |= {
    "a state that is made anew, taken, and brought to length one": """
from types import SimpleNamespace

def run():
    state, track = SimpleNamespace(q=torch.ones(4, dtype=torch.float64)), []
    for row in x:
        state.q = state.q + row @ w
        track.append(state.q)
        state.q /= state.q.norm()
    torch.stack(track)[:, 0].sum().backward()
""",
    "returned by a helper whose argument the caller reads again": """
def unit_(t):
    size = t.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return t.div_(size)

def loss(a):
    return unit_(a).sum() + a.sum()

def run():
    loss(torch.tanh(x @ w)).backward()
""",
    "returned by a helper that another call uses for what it writes": """
def unit_(t):
    size = t.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return t.div_(size)

def scaled(h):
    unit_(h)
    return h

def run():
    (unit_(torch.tanh(x @ w)) + scaled(torch.sigmoid(x @ w))).sum().backward()
""",
}
BELOW = (
    ADVERSARIAL
    + OPTIMIZERS
    + """
def clip(net):
    with torch.no_grad():
        for one in net.parameters():
            one.clamp_(-0.3, 0.3)
rows, pool = x.detach(), [x.detach()]
def run():
    for _ in range(2):
        fake = g(rows)
        {above}
        opt_d.zero_grad()
        {loss_d}.backward(retain_graph=True)
        opt_d.step()
        clip(d)
        {between}
        opt_g.zero_grad()
        loss_g = {loss}
        loss_g.backward()
        opt_g.step()
        {after}
    x.grad, w.grad = g.weight.detach()[:3], d.weight.detach().expand(4, 4)
"""
)
SCORED = {
    "above": "score = d(fake)",
    "loss_d": "(score.mean() - d(rows).mean())",
    "between": "",
    "loss": "-score.mean() + 0.5 * fake.square().mean()",
    "after": "",
}
VALUED = SCORED | {"above": "value = d(rows)", "loss_d": "(value - 1).square().mean()"}
REFUSED["scores that a generator reads below the step, in a program of many other lines"] = (
    BELOW.format(**SCORED | {"between": "print(len(pool), rows.mean().item())"}),
    _adversarial,
)
DEEP = "d = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Tanh(), d)\nopt_d, opt_g ="
WORDS |= {
    f"a forward above a step, {why}": BELOW.format(**changed).replace("opt_d, opt_g =", DEEP)
    for why, changed in {
        "whose result is a factor": VALUED | {"loss": "(fake.mean(1, keepdim=True) * value).mean()"},
        "whose result is a factor of what a distribution gives": VALUED
        | {"loss": "(torch.distributions.Normal(fake, 1.0).log_prob(rows) * value).mean()"},
        "whose result is a target": VALUED | {"loss": "(fake.mean(1, keepdim=True) - value).square().mean()"},
        "whose result is given to a loss beside another one": VALUED
        | {"loss": "F.mse_loss(fake.mean(1, keepdim=True), value)"},
        "whose result is the old one in a ratio": VALUED | {"loss": "(d(fake) - value).exp().mean()"},
        "with the loss in which it is a factor": VALUED
        | {
            "above": "value = d(rows)\n        loss_g = (fake.mean(1, keepdim=True) * value).mean()",
            "loss": "loss_g",
        },
        "whose result is read below, too": SCORED | {"after": "print(score.mean())"},
        "of a model that is frozen below": SCORED
        | {
            "between": "for one in d.parameters():\n            one.requires_grad_(False)",
            "after": "for one in d.parameters():\n            one.requires_grad_(True)",
        },
        "of a model whose mode is another one below": SCORED | {"between": "d.eval()", "after": "d.train()"},
        "of what a list gives, from which something is taken": SCORED
        | {"above": "score = d(g(pool[-1]))", "between": "pool.append(rows + 1)"},
        "of numbers that are drawn": SCORED | {"above": "score = d(g(torch.rand_like(rows)))"},
    }.items()
}
WORDS |= {
    "a forward above a step whose gradients are zeroed below it": BELOW.format(
        **SCORED | {"between": "opt_d.zero_grad()"}
    ).replace("        opt_d.zero_grad()\n        (score", "        (score"),
    "a forward with dropout above a step": BELOW.format(**SCORED).replace(
        "opt_d, opt_g =", "d = nn.Sequential(d, nn.Dropout(0.1))\nopt_d, opt_g ="
    ),
}
WORDS |= {
    f"masks that an object keeps by the names of layers, {why}": PRUNED.format(
        mask="[one.weight.detach() > 9] = 0.0"
    ).replace(
        "    def apply",
        f"    def soften(self):\n        for name, one in self.layers.items():\n            {row}\n    def apply",
    )
    for why, row in {
        "which an update makes others": "self.masks.update({name: one.weight.sigmoid()})",
        "which are multiplied by what may carry a gradient": "self.masks[name] *= one.weight.sigmoid()",
        "which another name is bound to": "kept = self.masks; kept[name] = one.weight.sigmoid()",
        "which get a factor below a comparison": "self.masks[name] = (one.weight > 0).float().mul(one.weight)",
        "which are set by their name": 'setattr(self, "masks", {name: one.weight.sigmoid()})',
        "which are written in a loop": "[mask.mul_(one.weight) for mask in self.masks.values()]",
    }.items()
}
WORDS |= {
    "rows of a state that a method writes below one of two backwards": BANK_OF_ROWS.format(
        first="", between="bank.write(k, new)\n        (bank.rows.var(0).mean() + (x @ w).sum()).backward()"
    ),
    "rows of a state that a method writes, of numbers too": BANK_OF_ROWS.format(
        first="", between="bank.write(k - 1, new.sum().item())"
    ),
    "rows of a state that a method writes at once with another": BANK_OF_ROWS.format(first="", between="").replace(
        "self.rows[at] = value", "self.rows[at], self.last = value, value"
    ),
    "rows of a state that a method writes, where some turns go backward": BANK_OF_ROWS.format(
        first="", between=""
    ).replace("new.square().sum().backward()", "if k != 9:\n            new.square().sum().backward()"),
}
WORDS |= {
    f"states that a function writes and gives back, {why}": GIVEN_BACK.format(**PUSHED | changed).replace(
        "    sim = Sim()\n", f"    sim = Sim()\n    {first}\n"
    )
    for why, first, changed in [
        ("which another attribute holds", "sim.shown = sim.speed", {"after": "loss = loss + sim.shown.sum()"}),
        (
            "a part of which another attribute holds",
            "sim.first = sim.speed[0]",
            {"after": "loss = loss + sim.first.sum()"},
        ),
        (
            "which another object holds by the same name",
            "twin = Sim()\n    twin.speed = sim.speed",
            {"after": "loss = loss + twin.speed.sum()"},
        ),
        (
            "which is read while it runs",
            "seen.append(lambda: sim.speed.sum().item())",
            {
                "function": "seen = []\nkept = []"
                + PUSH.replace("    return", "    kept.append(seen[-1]())\n    return"),
                "after": "print(kept)",
            },
        ),
    ]
}
WORDS["a memory of keys that are computed after the step"] = """
key = nn.Linear(4, 4, dtype=torch.float64)
class Bank:
    def __init__(self):
        self.rows = torch.zeros(3, 4, dtype=torch.float64)
    def write(self, at, value):
        self.rows[at] = value
bank = Bank()
def run():
    opt = torch.optim.SGD([w, *key.parameters()], lr=0.1)
    for k in range(6):
        loss = (bank.rows @ w - 1).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        bank.write(k % 3, key(x.detach()[k % 3]))
"""
ADVANTAGE = (
    NETS
    + DEEP
    + OPTIMIZERS.removeprefix("\nopt_d, opt_g =")
    + """
def run():
    for _ in range(2):
        pose = g(x.detach())
        adv = 1 - d(x.detach()){bonus}
        opt_d.zero_grad()
        adv.square().mean().backward(retain_graph=True)
        opt_d.step()
        loss = (pose.tanh().mean(1, keepdim=True) * adv).mean()
        opt_g.zero_grad()
        loss.backward()
        opt_g.step()
    x.grad, w.grad = g.weight.detach()[:3].clone(), d[2].weight.detach().expand(4, 4).clone()
"""
)
SOUND |= {
    "an advantage that a loss below the step multiplies by": ADVANTAGE.format(bonus=""),
    "an advantage with a bonus, which a loss below the step multiplies by": ADVANTAGE.format(
        bonus=" + pose.square().mean(1, keepdim=True)"
    ),
}
REFUSED["values of a bias that becomes a parameter, some of which may be a tensor"] = (
    """
net = nn.Linear(4, 4, dtype=torch.float64)
nn.init.zeros_(net.bias)
def begin(layer, low=None):
    rows = layer.bias.view(2, -1)
    rows[0] = 1.0
    rows[1] += 2.0 if low is None else low.log()
    layer.bias = nn.Parameter(rows.view(-1))
def run():
    begin(net)
    x.grad, w.grad = None, net.bias.detach().expand(4, 4).clone()
""",
    lambda x, w: [None, torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=torch.float64).expand(4, 4)],
)


def _gated(x, w):
    h = torch.zeros(4, dtype=torch.float64)
    for row in x:
        i, f = (row @ w + h).chunk(2)
        h = torch.cat([i.tanh(), (f + 1.0).sigmoid()])
    return torch.autograd.grad(h.sum(), [x, w])


REFUSED["an operand that is bound anew before it is read again"] = (
    """
def gates(rows, h):
    return rows @ w + h
def run():
    h = torch.zeros(4, dtype=torch.float64)
    for row in x:
        i, f = gates(row, h).chunk(2)
        f += 1.0
        h = torch.cat([i.tanh(), f.sigmoid()])
    h.sum().backward()
""",
    _gated,
)


def _scaled(x, w):
    base, x = w.detach().clone().requires_grad_(), x.detach()
    opt = torch.optim.SGD([base], lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        (x @ base.sin()).square().sum().backward()
        opt.step()
    return [None, base.grad]


KEPT_AT_THE_END = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {first}
        self.base = nn.Parameter(w.detach().clone())
        self.scaled = self.base.sin()
    def forward(self, rows):
        return (rows @ self.scaled).square().sum()
def run():
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        net(x.detach()).backward()
        opt.step()
    x.grad, w.grad = None, net.base.grad
"""
REFUSED["what the last line of an __init__ computes of a parameter"] = (KEPT_AT_THE_END.format(first=""), _scaled)
WORDS["what the last line of an __init__ computes of a parameter, and another one sets"] = KEPT_AT_THE_END.format(
    first="self.scaled = None"
)
SOUND["a buffer that is filled in place, and is a parameter in another mode"] = """
class Book(nn.Module):
    def __init__(self, learnable=False):
        super().__init__()
        if learnable:
            self.rows = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))
        else:
            self.register_buffer("rows", torch.ones(4, 4, dtype=torch.float64))
    def forward(self, given):
        scores = given @ self.rows
        self.rows.copy_(0.9 * self.rows + 0.1 * given.detach().mean(0))
        return scores
def run():
    book = Book()
    sum(book(x @ w).logsumexp(-1).sum() for _ in range(2)).backward()
    Book(learnable=True)
"""
SOUND |= {
    f"a result that is bound anew, where {why}": f"""
def run():
    total = 0
    {head}
        h = (row @ w).tanh()
        last = h
        h *= 0.5
        {between}
        h = torch.zeros_like(h)
    {tail}
    (total + last.square().sum()).backward()
"""
    for why, head, between, tail in [
        (
            "a loop may end before",
            "for row in x:",
            "if row is x[1]:\n            total = total + h.sum()\n            break",
            "",
        ),
        (
            "an error may come before",
            "row = x[0]\n    try:",
            "total = total + h.sum()\n        if total < 1e9:\n            raise ValueError",
            "except ValueError:\n        total = total + h.square().sum()",
        ),
    ]
}
SOUND |= {
    "a state that is carried through `.data`, and gets what is in the graph": """
def run():
    state, loss = torch.zeros(3, 4, dtype=torch.float64), 0
    for _ in range(3):
        h = torch.tanh(x @ w + state * w.sum())
        loss = loss + h.square().sum()
        state.data.copy_(h)
    loss.backward()
""",
    "a membrane that is moved through `.data` by what is in the graph": """
class Cell:
    def __init__(self):
        self.mem = torch.zeros(3, 4, dtype=torch.float64)

def run():
    cell, loss = Cell(), 0
    for _ in range(3):
        spike = torch.sigmoid(5 * (x @ w + cell.mem * w.mean() - 1))
        loss = loss + (spike * cell.mem).sum() + spike.square().sum()
        cell.mem.data.mul_(0.9).add_(x @ w).sub_(spike)
    loss.backward()
""",
}
WORDS |= {
    "a gradient in a tuple that a module's hook scales and gives back": """
part = nn.Softplus()
def damp(module, grads):
    grads[0].mul_(0.5)
    return grads
part.register_full_backward_pre_hook(damp)

def run():
    h = x @ w
    (h.sin() + part(h)).square().sum().backward()
""",
    "a gradient among all the arguments of a backward": """
class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, *grads):
        grads[0].mul_(0.5)
        return grads[0], grads[0]

def run():
    h = x @ w
    (h.sin() + Halved.apply(h * 2, h * 3)).square().sum().backward()
""",
}
