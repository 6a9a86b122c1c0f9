"""What programs are made of, as tables: the prelude, the statements by kind, the losses.

A statement is a template. `{r}` and `{s}` are new variables, `{a}` is any variable, `{b}` one of the same shape, `{m}`
and `{n}` have shape (3, 4), `{q}` has (4, 4), `{v}` has (4,). Statements are separated by a bar; to add one, add it.

Everything is small, float64 and tame. Left out is what crashes PyTorch 2.13 itself or makes it wrong without any write:
hooks on views of a written base, fused steps on strided parameters, `addmm_` and `masked_scatter_` on their own
operand, `untyped_storage().resize_(0)`, and batch norm on (N, C) with a strided weight.
"""

from __future__ import annotations

import re

PRELUDE = """\
import ctypes
import numpy as np
import torch
from concurrent.futures import ThreadPoolExecutor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import Parameter, functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
w = Parameter(torch.randn(4, 4, dtype=torch.float64) / 2)
b = Parameter(torch.randn(4, dtype=torch.float64))
k = Parameter(torch.randn(3, 3, 3, dtype=torch.float64) / 3)
c = torch.randn(3, 4, dtype=torch.float64)
buf = np.linspace(-1, 1, 12).reshape(3, 4)
t = torch.from_numpy(buf)
mean, var = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
mask, idx = c > 0, torch.tensor([2, 0, 1], dtype=torch.int64)
cols = torch.tensor([[0, 3, 1, 2]] * 3, dtype=torch.int64)
grads = {}
def gradients():
    return [None if p.grad is None else p.grad.clone() for p in (x, w, b, k)]
def in_thread(task):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(task).result()
"""

OPTIMIZERS = [
    f"opt = torch.optim.{name}([x, w, b, k], lr=0.1, {how}=True)"
    for name in ("SGD", "Adam", "AdamW", "Adagrad")
    for how in ("foreach", "fused", "maximize")
] + ["opt = torch.optim.SGD([x, w, b, k], lr=0.1, momentum=0.9, fused=True)"]

_BACKWARD = "    @staticmethod\n    def backward(ctx, g):\n"
FUNCTIONS = {
    "Square": "        ctx.save_for_backward(a)\n        return a.square()\n"
    + _BACKWARD
    + "        (a,) = ctx.saved_tensors\n        return 2 * a * g\n",
    "Stash": "        ctx.a = a\n        return a.square()\n" + _BACKWARD + "        return 2 * ctx.a * g\n",
    "Double": "        ctx.mark_dirty(a)\n        return a.mul_(2)\n" + _BACKWARD + "        return 2 * g\n",
    "Loud": "        return a * 2\n" + _BACKWARD + "        return g.mul_(2)\n",
    "Scratch": "        ctx.save_for_backward(a)\n        return a.square()\n"
    + _BACKWARD
    + "        (a,) = ctx.saved_tensors\n        return a.data.mul_(2) * g\n",
}

UNARY = """
    {a} * 0.5 | {a} + 1 | {a} - 0.5 | -{a} | 1 - {a} | {a} ** 2 | {a} ** 3 | {a}.square() | {a}.sin() | {a}.cos()
    {a}.tanh() | {a}.sigmoid() | {a}.relu() | {a}.abs() | {a}.atan() | {a}.erf() | {a}.asinh() | {a}.tanh().exp()
    (-{a}.abs()).exp() | ({a}.square() + 1).sqrt() | ({a}.square() + 1).rsqrt() | ({a}.abs() + 1).log()
    {a}.abs().log1p() | {a}.tanh().expm1() | 1 / ({a}.square() + 1) | ({a}.square() + 1).reciprocal()
    2 ** {a}.tanh() | {a}.sinc() | {a}.clamp(-0.5, 0.5) | {a}.clamp(min=0) | {a}.sgn() | F.gelu({a}) | F.silu({a})
    F.softplus({a}) | F.leaky_relu({a}) | F.elu({a}) | F.selu({a}) | F.hardtanh({a}) | F.logsigmoid({a})
    F.mish({a}) | F.hardswish({a}) | F.relu6({a}) | F.celu({a}) | {a}.cumsum(-1) | {a}.cumprod(-1)
    {a}.logcumsumexp(-1) | {a}.softmax(-1) | {a}.log_softmax(-1) | {a}.flip(0) | {a}.roll(1) | {a}.clone()
    {a}.nan_to_num() | {a}.frac() | {a}.sort(-1)[0] | {a}.tril() | F.layer_norm({a}, {a}.shape[-1:])
    {a}.clone().detach()
"""
BINARY = """
    {a} * {b} | {a} + {b} | {a} - {b} | {a} / ({b}.square() + 1) | {a} * {b}.detach() | torch.maximum({a}, {b})
    {b} * {a} | torch.minimum({a}, {b}) | torch.where({a} > 0, {a}, {b}) | torch.lerp({a}, {b}, 0.3)
    torch.addcmul({a}, {a}, {b}) | torch.addcdiv({a}, {b}, {a}.square() + 1) | torch.atan2({a}, {b}.abs() + 1)
    torch.hypot({a}, {b}.abs() + 1) | {a}.xlogy({b}.abs() + 1) | ({b}.abs() + 0.5) ** {a}.tanh()
    F.mse_loss({a}, {b}) | F.smooth_l1_loss({a}, {b}) | F.l1_loss({a}, {b}) | {b} * {a}.sum()
    torch.stack([{a}, {b}]) | torch.cat([{a}, {b}]) | torch.cat([{a}, {b}], -1) | torch.dot({a}, {b})
    torch.outer({a}, {b}) | torch.logaddexp({a}, {b}) | torch.cdist({a}, {b} + 2)
    F.cosine_similarity({a}, {b}, -1) | torch.einsum("...,...->", {a}, {b})
    torch.view_as_real(torch.complex({a}, {b}) * torch.complex({b}, {a})) | torch.fmax({a}, {b})
    torch.copysign({a}, {b})
"""
REDUCTIONS = """
    {a}.sum() | {a}.sum(0) | {a}.mean() | {a}.mean(-1) | {a}.prod() | {a}.prod(-1) | {a}.amax(-1) | {a}.max(-1)[0]
    {a}.max() | {a}.norm() | {a}.min(0)[0] | {a}.var(-1, correction=0) | {a}.norm(dim=-1) | {a}.logsumexp(-1)
    {a}.median() | {a}.topk(1)[0] | {a}.kthvalue(1)[0] | {a}.trace()
"""
MATRIX = """
    {m} @ {q} | torch.mm({m}, {q}) | {q} @ {m}.t() | {m}.t() @ {n} | torch.addmm({v}, {m}, {q})
    F.linear({m}, {q}, {v}) | {q} @ {v} | torch.mv({m}, {v}) | torch.bmm({m}[None], {q}[None])[0]
    torch.baddbmm({n}[None], {m}[None], {q}[None]) | {m} * {v} | {m} + {v} | torch.einsum("ij,jk->ik", {m}, {q})
    F.bilinear({m}, {n}, k.view(1, 27)[:, :16].view(1, 4, 4)) | F.cross_entropy({m}, idx)
    F.conv1d({m}[None], k, padding=1)[0] | F.conv_transpose1d({m}[None], k)[0]
    F.conv2d({m}[None, None], {q}[None, None, :2, :2])[0, 0] | F.max_pool1d({m}, 2) | F.avg_pool1d({m}[None], 2)[0]
    F.adaptive_avg_pool1d({m}, 2) | F.group_norm({m}[:, :, None], 2, {v}, {v})[..., 0]
    F.batch_norm({m}, None, None, {v}.contiguous(), {v}.contiguous(), True) | F.layer_norm({m}, (4,), {v}, {v})
    F.instance_norm({m}[None])[0] | {m} / ({v}.abs() + 1)
    F.scaled_dot_product_attention({m}[None], {n}[None], {m}[None])[0] | F.interpolate({m}[None], scale_factor=2)[0]
    {m}.t() + {v}[:, None] | {m}[idx] | {m}[[0, 2]] | {m}[idx, idx] | {m}.index_select(0, idx) | {m}.gather(1, cols)
    torch.take_along_dim({m}, cols, 1) | F.embedding(idx, {m}) | {m}.scatter(1, cols, {n})
    {m}.scatter_add(1, cols, {n}) | {m}.index_add(0, idx, {n}) | {m}.index_copy(0, idx, {n}) | F.pad({m}, (1, 1))
    {m}.index_put((idx,), {n}) | {m}.masked_fill(mask, 0.3) | torch.where(mask, {m}, {n}) | {m} * mask
    F.prelu({m}, {v}[:1]) | F.rms_norm({m}, (4,), {v}) | {m}.scatter_reduce(1, cols, {n}, "amax")
    F.nll_loss({m}, idx) | F.kl_div({m}, {n}.sigmoid(), reduction="sum") | F.glu({m}) | torch.kron({v}, {v})
    F.unfold({m}[None, None], 2)
"""
VIEWS = """
    {a}[0] | {a}[1:] | {a}[:2] | {a}[..., 0] | {a}[..., 1:] | {a}.t() | {a}.transpose(0, -1) | {a}.reshape(-1)
    {a}.view(-1) | {a}.unsqueeze(0) | {a}.squeeze(0) | {a}.select(-1, 0) | {a}.narrow(0, 0, 2) | {a}.diagonal()
    {a}.expand(2, *{a}.shape) | {a}.unfold(-1, 2, 1) | {a}.detach() | {a}.permute(*range({a}.dim())[::-1])
    {a}[..., :1].expand_as({a}) | {a}[:1].expand_as({a})
    {a}.as_strided((2, 2), (1, 1)) | {a}.view_as({a}) | {a}.flatten() | {a}.movedim(0, -1) | {a}[None] | {a}.data
"""
SEVERAL_VIEWS = """
    {r}, {s} = {a}.chunk(2) | {r}, {s} = {a}.split([1, {a}.shape[0] - 1]) | {r}, {s}, _ = {a}.unbind()
    {r}, {s}, _, _ = {a}.unbind(-1) | {r}, {s} = {a}.split(2, -1) | {r}, {s} = {a}.tensor_split(2)
"""
IN_PLACE = """
    {a}.mul_(0.5) | {a}.add_(1) | {a}.sub_(0.5) | {a}.mul_({b}) | {a}.add_({b}) | {a} += {b} | {a} *= 0.5
    {a}.copy_({b}) | {a}.zero_() | {a}.fill_(0.3) | {a}.sin_() | {a}.tanh_() | {a}.sigmoid_() | {a}.relu_()
    {a}.neg_() | {a}.square_() | {a}.clamp_(-0.5, 0.5) | {a}.div_({b}.square() + 1) | {a}.abs_()
    {a}.addcmul_({b}, {b}) | {a}.lerp_({b}, 0.3) | {a}[0] = 0.5 | {a}[0] *= 0.5 | {a}[..., 0] = {b}[..., -1]
    {a}[:0].add_(1) | {a}[..., 4:].zero_()
    {a}[1:] += 1 | {a}[0].tanh_() | {a}.view(-1)[0] = 0.1 | F.relu({a}, inplace=True) | F.elu({a}, inplace=True)
    F.leaky_relu({a}, inplace=True) | F.silu({a}, inplace=True) | F.hardtanh({a}, inplace=True) | {a}.cumsum_(-1)
    {a}.tril_() | {m}.masked_fill_(mask, 0.1) | {m}.index_fill_(0, idx[:1], 0.2) | {m}.index_add_(0, idx, {n} * 1)
    {m}[idx[:2]] = 0.4 | {m}.scatter_(1, cols, 0.3) | {m}.scatter_add_(1, cols, {n} * 1)
    {m}.index_put_((idx,), {n} * 1) | {m}.index_copy_(0, idx, {n} * 1) | {m}.mul_({v})
    {m}.addmm_({n} * 1, {q} * 1) | {m}[mask] = 0.2 | torch._foreach_mul_([{a}], 0.5)
    torch.nn.init.constant_({a}, 0.1) | {a}.detach().mul_(0.5) | {a}.detach_() | {a}.fill_diagonal_(0.2)
    {a}.exponential_() | {a}.sub_({b}.mean()) | {a}.pow_(2) | {a}.erf_() | {a}.xlogy_({b}.abs() + 1)
    {a}.atan2_({b}.abs() + 1)
"""
OUT = """
    torch.mul({b}, 0.5, out={a}) | torch.sin({b}, out={a}) | torch.add({b}, {b}, out={a})
    torch.mm({m} * 1, {q} * 1, out={n}) | torch.stack([{v}, {v}, {v}], out={m}) | torch.cumsum({b}, -1, out={a})
    torch.where({b} > 0, {b}, 0.1, out={a}) | torch.tanh({b}, out={a})
"""
LABELS = """
    mask.logical_not_() | idx.fill_(0) | cols.fill_(1) | mask[0] = True | idx.data.fill_(1) | mask.data.fill_(False)
"""
NORMS = """
    {r} = F.batch_norm({m}, mean, var, {v}.contiguous(), {v}.contiguous(), False)
    {r} = F.batch_norm({m}, mean, var, None, None, True) | mean.add_(1) | var.mul_(2) | mean.data.fill_(0.5)
    {r} = F.batch_norm({m} * 3, mean, var, {v}.contiguous(), {v}.contiguous(), True, 0.5)
"""
DATA = """
    {a}.data.mul_(0.5) | {a}.data.fill_(0.3) | {a}.data[0] = 0.2 | {a}.data.copy_({b}) | {a}.data.add_({b})
    {a}.data.view(-1)[0] += 1 | torch._foreach_add_([{a}.data], 1.0)
"""
ASSIGN = "{a}.data = {a}.data * 0.5 | {a}.data = torch.zeros_like({a}) | {a}.data = {b}.data.clone()"
SETS = """
    torch.empty(0, dtype=torch.float64).set_({a}.untyped_storage(), 0, (2,)).mul_(0.5)
    {a}.set_(({a} * 0.5).detach()) | {a}.detach().set_({b}.detach())
    with torch.no_grad(): {a}.set_({b}.detach().clone())
"""
STORAGE = """
    {a}.untyped_storage().fill_(0) | {a}.untyped_storage()[0] = 1
    {a}.untyped_storage().copy_({b}.detach().clone().untyped_storage())
"""
NUMPY = """
    idx.numpy()[:] = 2 | {a}.detach().numpy()[...] *= 2 | {a}.detach().numpy().fill(0.3) | {a}.data.numpy()[0] = 0.2
    np.asarray({a}.detach())[..., 0] = 0.1 | np.negative({a}.detach(), out={a}.detach().numpy())
    np.negative({a}.detach(), out={a}.detach().numpy(), where={a}.detach().numpy() == 0)
    {r} = {m}.tril(); {s} = {r} @ {q}; {r}.detach().numpy()[{r}.detach().numpy() == 0] = -0.0
"""
BUFFER = "buf[:] = 0.3 | buf *= 2 | buf[0] += 1 | buf[:] = {m}.detach().numpy()"
DLPACK = "torch.from_dlpack({a}.detach()).mul_(0.5) | torch.from_dlpack({a}.data).add_(1)"
CTYPES = "ctypes.memset({a}.data_ptr(), 0, 8)"
SIGNED_ZEROS = """
    {a}.data.mul_(1 - 2.0 * ({a}.detach() == 0)) | {a}.data.copy_(torch.where({a}.detach() == 0, -{a}, {a}).detach())
    {r} = {a}.relu(); {s} = {r} * {r}; {r}.data.mul_(1 - 2.0 * ({r}.detach() == 0))
    {r} = {a}.clamp(min=0) + 0; {s} = {r} ** 3; torch.where({r}.detach() == 0, -{r}, {r}, out={r}.data)
"""
SWAPS = """
    {r} = {a}.sigmoid(); torch.utils.swap_tensors({r}, {b}.detach() * 1)
    {r} = {a} * 1; torch.utils.swap_tensors({r}, torch.ones_like({r}))
    {r} = {a}.detach() * 1; torch.utils.swap_tensors({r}, {b} * 2)
    {r} = {a} * 1; {s} = Stash.apply({r}); torch.utils.swap_tensors({r}, torch.ones_like({r}))
"""
LAZY = """
    lazy = torch.nn.LazyLinear(4, dtype=torch.float64); {r} = lazy({a}); {s} = lazy.weight
    lazy = torch.nn.LazyLinear(3, dtype=torch.float64); {r} = lazy({a}); {s} = lazy.bias
    {r} = torch.nn.LazyBatchNorm1d(dtype=torch.float64)({m})
    {r} = torch.nn.LazyConv1d(2, 1, dtype=torch.float64)({m}[None])[0]
    lazy = torch.nn.LazyLinear(4, dtype=torch.float64); lazy.load_state_dict(lazy.state_dict()); {r} = lazy({a})
"""
EDITS = """
    torch.nn.utils.clip_grad_norm_([x, w, b, k], 0.1) | w.grad = None | x.grad = None | opt.zero_grad()
    opt.zero_grad(set_to_none=False) | if w.grad is not None: w.grad.zero_()
    if x.grad is not None: x.grad.data.mul_(0.5)
"""
TRANSFERS = """
    {r} = {a}.cpu().to({a}.device) | {r} = {a}.cpu().sin().to({a}.device) * {b} | {r} = {a} + {b}.cpu().to({a}.device)
    {a}.copy_({b}.cpu()) | {a}.data.copy_({b}.detach().cpu() * 0.5) | {r} = {b}.new_empty({b}.shape).copy_({a}.cpu())
    {r} = {a}.to({b}, copy=True)
"""
LOSSES = ["{a}.sum()", "{a}.square().sum()", "({a} * {a}).mean()", "{a}.sin().sum()", "({a} * 2).sum()"]


def _rows(table: str, prefix: str = "") -> list[str]:
    return [prefix + one.strip() for line in table.strip().splitlines() for one in line.split(" | ")]


TABLES: dict[str, tuple[int, list[str]]] = {
    "unary": (10, _rows(UNARY, "{r} = ")),
    "binary": (10, _rows(BINARY, "{r} = ")),
    "reduction": (3, _rows(REDUCTIONS, "{r} = ")),
    "matrix": (10, _rows(MATRIX, "{r} = ")),
    "view": (8, _rows(VIEWS, "{r} = ")),
    "several views": (2, _rows(SEVERAL_VIEWS)),
    "in place": (11, _rows(IN_PLACE)),
    "out": (2, _rows(OUT)),
    "labels": (1, _rows(LABELS)),
    "norms": (3, _rows(NORMS)),
    "data": (4, _rows(DATA)),
    "assign": (2, _rows(ASSIGN)),
    "set": (1, _rows(SETS)),
    "storage": (1, _rows(STORAGE)),
    "numpy": (3, _rows(NUMPY)),
    "buffer": (2, _rows(BUFFER)),
    "dlpack": (1, _rows(DLPACK)),
    "ctypes": (1, _rows(CTYPES)),
    "signed zeros": (1, _rows(SIGNED_ZEROS)),
    "swap": (1, _rows(SWAPS)),
    "lazy": (1, _rows(LAZY)),
    "function": (2, ["{r} = Square.apply({a})", "{r} = Double.apply({a})"]),
    "stash": (2, ["{r} = Stash.apply({a})"]),
    "grad write": (2, ["{r} = Loud.apply({a})", "{r} = Scratch.apply({a} * 1)", "{r} = Scratch.apply({a}.sigmoid())"]),
    "hook": (2, ["{a}.register_hook(lambda g: g.mul_(0.5))"]),
    "step": (3, ["opt.step()"]),
    "grad edit": (1, _rows(EDITS)),
    "transfer": (2, _rows(TRANSFERS)),
}
"""Each kind of statement with its weight. The strategy's `without` leaves kinds out."""
FORWARD = ("unary", "binary", "reduction", "matrix", "view")
BLOCKS = {
    "no_grad": 4,
    "inference": 3,
    "thread": 3,
    "saved hooks": 2,
    "checkpoint": 5,
    "reentrant": 2,
    "backward": 4,
    "grad": 2,
    "penalty": 1,
}
KINDS = (*TABLES, *BLOCKS)
ON_THE_CPU = ("numpy", "buffer", "dlpack", "ctypes")
"""What looks at a tensor's memory from outside of torch."""


def moved(program: str, device: str) -> str:
    """A program, which has nothing of ON_THE_CPU, with all its tensors on a device."""
    program = program.replace("torch.from_numpy(buf)", f'torch.from_numpy(buf).to("{device}")')
    return re.sub(r"dtype=torch\.\w+", rf'\g<0>, device="{device}"', program)


def function(name: str) -> str:
    """The source of one of the custom Functions."""
    return f"class {name}(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, a):\n{FUNCTIONS[name]}"
