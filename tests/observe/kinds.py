"""Tensors of every kind that PyTorch's wheel can make, and a program that tries each in every way of seeing.

`python -m tests.observe.kinds` reads names of kinds, one a line, and answers each with a line of JSON: what came of
every step in each way. It tries each kind in a fork of itself; where that dies, the way gets its exit status instead.
"""

import json
import os
import re
import sys
import tempfile
import warnings
from contextlib import nullcontext, suppress
from functools import partial

import numpy as np
import torch
import torch._lazy.ts_backend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import noclobber
from noclobber.observe.native import bridge
from tests.observe.alike import MODES, outcome


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Shell(torch.Tensor):
    """A subclass without memory, on which no operator works."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32, requires_grad=True)

    def __repr__(self):
        return "Shell"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls()
        return NotImplemented


class Passing(torch.Tensor):
    """A subclass with memory of its own, whose operators go through Python."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


def inference():
    with torch.inference_mode():
        return torch.ones(3)


def fake():
    with FakeTensorMode():
        return torch.ones(3, requires_grad=True).clone()


def nested(*, layout=torch.strided, requires_grad=False):
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout, requires_grad=requires_grad)


def ones(*shape, **kwargs):
    """Not a leaf."""
    return torch.ones(*shape, requires_grad=True, **kwargs).clone()


def mapped():
    """A tensor on a file of its own."""
    with tempfile.NamedTemporaryFile() as file:
        return torch.from_file(file.name, shared=True, size=4).fill_(1).requires_grad_()


def lazy():
    return torch.ones(4, device="lazy", requires_grad=True)


KINDS = {
    "leaf": lambda: torch.ones(3, requires_grad=True),
    "inner": lambda: ones(3),
    "large": lambda: ones(64, 512),
    "bytes": lambda: torch.ones(3, dtype=torch.uint8),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse in the graph": lambda: torch.eye(3).to_sparse().requires_grad_().clone(),
    "sparse, of rows": lambda: torch.eye(3).to_sparse(1).requires_grad_().clone(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "csc": lambda: torch.eye(3).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "mkldnn": lambda: torch.ones(3, 3).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "quantized by channel": lambda: torch.quantize_per_channel(
        torch.ones(3), torch.ones(3), torch.zeros(3), 0, torch.qint8
    ),
    "meta": lambda: ones(3, device="meta"),
    "nested": nested,
    "nested in the graph": lambda: nested(requires_grad=True).clone(),
    "jagged": lambda: nested(layout=torch.jagged, requires_grad=True).clone(),
    "complex": lambda: ones(3, dtype=torch.cfloat),
    "conjugated": lambda: ones(3, dtype=torch.cfloat).conj(),
    "negated": lambda: ones(3, dtype=torch.cfloat).conj().imag,
    "expanded": lambda: ones(1).expand(3),
    "one of several views": lambda: ones(2, 3).unbind()[1],
    "overlapping": lambda: ones(3).as_strided((3, 2), (1, 1)),
    "far apart": lambda: ones(3).as_strided((3, 1), (1, 2**60)),
    "empty": lambda: ones(0),
    "empty slice": lambda: ones(3)[2:2],
    "scalar": lambda: ones(()),
    "half": lambda: ones(3, dtype=torch.half),
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "bool": lambda: torch.ones(3, dtype=torch.bool),
    "inference": inference,
    "subclass": lambda: ones(3).as_subclass(Plain),
    "subclass that dispatches": lambda: ones(3).as_subclass(Passing),
    "subclass without memory": Shell,
    "two tensors": lambda: TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_().clone(),
    "masked": lambda: masked_tensor(torch.ones(3), torch.tensor([True, False, True]), requires_grad=True).clone(),
    "fake": fake,
    "functional": lambda: torch._to_functional_tensor(torch.ones(3)),
    "zero": lambda: torch._efficientzerotensor((3,)),
    "from numpy": lambda: torch.from_numpy(np.ones(3, dtype=np.float32)).requires_grad_().clone(),
    "read-only": lambda: torch.from_numpy(np.frombuffer(bytearray(12), dtype=np.float32)),
    "from a file": mapped,
    "shared": lambda: torch.ones(3).share_memory_().requires_grad_(),
    "pinned": lambda: torch.ones(3).pin_memory(),
    "copied when written": lambda: torch._lazy_clone(torch.ones(3)).requires_grad_(),
    "lazy parameter": torch.nn.UninitializedParameter,
    "named": lambda: ones(3).refine_names("N"),
}
"""What can be made anywhere."""


class Kept(torch.autograd.Function):
    """Keeps its input in both ways, and reads it in backward alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.x = x
        return torch.ones(3)

    @staticmethod
    def backward(ctx, gradient):
        (saved,) = ctx.saved_tensors
        return torch.ones_like(saved) if ctx.x is not None else None


def written(x):
    y = x * 1
    y.mul_(2)
    y.sum().backward()
    return y


def written_by_a_view(x):
    y = x * 1
    y[..., :1].add_(1)
    y.sum().backward()
    return y


def stepped(x):
    weight = torch.nn.Parameter(x.detach() * 1)
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
    (weight * weight).sum().backward()
    optimizer.step()
    return weight


def handed_out(x):
    y = x * 1
    z = y * y
    array = y.detach().numpy()
    size = array.size
    z.sum().backward()
    return size


def unseen(x):
    y = x * 1
    with torch.no_grad():
        y.mul_(2)
    y.data.add_(1)
    y.sum().backward()
    return y


def overwritten(x):
    y = x.exp()
    z = y.sum()
    y.mul_(2)
    z.backward()


STEPS = {
    "forward": lambda x: x * 2,
    "twice": lambda x: (x * x).sum().backward(),
    "view": lambda x: x.view(x.shape),
    "copied view": lambda x: (torch.view_copy(x, x.shape) * x).sum().backward(),
    "slice": lambda x: (x[:1] * x[:1]).sum().backward(),
    "several views": lambda x: sum((one * one).sum() for one in x.unbind()).backward(),
    "detached": lambda x: x.detach(),
    "written": written,
    "written by a view": written_by_a_view,
    "written below autograd": unseen,
    "written at once": lambda x: x.mul_(2),
    "written as data": lambda x: setattr(x, "data", x.detach().clone()),
    "resized": lambda x: x.detach().clone().resize_(2).zero_(),
    "out": lambda x: torch.mul(x.detach(), 2, out=x.detach().clone()),
    "list": lambda x: torch._foreach_mul_([x.detach().clone()], 2),
    "relu": lambda x: F.relu(x * 1, inplace=True).sum().backward(),
    "joined": lambda x: (torch.cat([x, x]) * torch.cat([x, x])).sum().backward(),
    "kept": lambda x: Kept.apply(x).sum().backward(),
    "hook": lambda x: (x.register_hook(lambda gradient: gradient * 2), (x * x).sum().backward())[1],
    "region": lambda x: checkpoint(lambda x: (x * x).exp(), x, use_reentrant=False).sum().backward(),
    "region, reentrant": lambda x: checkpoint(lambda x: (x * x).exp(), x, use_reentrant=True).sum().backward(),
    "stepped": stepped,
    "handed out": handed_out,
    "penalty": lambda x: torch.autograd.grad((x**3).sum(), x, create_graph=True)[0].sum().backward(),
}
CLOBBERS = {"overwritten": overwritten}
"""What `preserve` and `on_write="raise"` end in another way than bare PyTorch."""


def freed(size, offset, left=0):
    """What a program may do with a storage that has no memory for a while, as FSDP's have: save it, and read nothing.

    Later the storage has its bytes again.
    """

    def program():
        base = torch.ones(size, requires_grad=True) * 1
        part = base[offset:] if offset else base
        storage = part.untyped_storage()
        copy, z = storage.clone(), Kept.apply(part)
        storage.resize_(left)
        again = Kept.apply(part.detach().requires_grad_())
        noclobber.observe.arming.recorder.CONTEXT.live.all()  # what a report looks at
        storage.resize_(size * 4)
        steps = {"restored": lambda: storage.copy_(copy).nbytes()}
        steps |= {name: lambda one=one: one.sum().backward() for name, one in (("again", again), ("first", z))}
        return {name: outcome(step) for name, step in steps.items()}

    return program


def of_kind(make):
    """The outcomes of all steps with tensors of a kind."""
    steps = STEPS | CLOBBERS
    return lambda: {name: outcome(lambda step=step: state(make, step)) for name, step in steps.items()}


def state(make, step):
    x = make()
    result = step(x)
    return [shown(result), shown(x), shown(x.grad) if x.is_leaf else None]


def shown(result):
    """A value as text, as kinds of tensors have nothing else in common."""
    return repr(result) if isinstance(result, torch.Tensor) else type(result).__name__


NUMBERED = re.compile(
    r"(?<=<function )\S+ at 0x[0-9a-f]+|0x[0-9a-f]+|\bj[0-9]+|(?<=only available for these backends: )[^\"]*"
)
"""What is another text each time: addresses with the names of functions, of which some are noclobber's; the sizes of
jagged tensors, which have numbers of their own; and PyTorch's list of the backends that an operator has, to which a
kernel of noclobber's adds one."""


def transformed(transform, shape=(2, 3)):
    """The outcomes of all steps with a tensor inside a transform."""

    def program():
        found = {}

        def steps(x):
            for name, step in STEPS.items():
                if "backward" not in step.__code__.co_names:
                    found[name] = outcome(lambda step=step: shown(step(x * 1)))
            return (x * x).sum()

        found["after"] = outcome(lambda: str(transform(steps)(torch.ones(shape))))
        return found

    return program


def batched():
    x = torch.ones(3, requires_grad=True)
    y = x.exp() * x
    return {"gradient": str(torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True))}


def dual():
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.ones(3, requires_grad=True), torch.ones(3))
        return {name: outcome(lambda step=step: shown(step(x * 1))) for name, step in STEPS.items()}


def on_lazy_device():
    with suppress(RuntimeError):
        torch._lazy.ts_backend.init()
    return of_kind(lazy)()


PROGRAMS = {name: of_kind(make) for name, make in KINDS.items()} | {
    "lazy": on_lazy_device,
    "vmap": transformed(torch.func.vmap),
    "grad": transformed(torch.func.grad),
    "vmap of grad": transformed(lambda f: torch.func.vmap(torch.func.grad(f))),
    "jvp": transformed(lambda f: lambda x: torch.func.jvp(f, (x,), (x,))),
    "functionalize": transformed(torch.func.functionalize),
    "dual": dual,
    "batched gradient": batched,
    "freed": freed(8, 0),
    "part of freed": freed(8, 2),
    "large part of freed": freed(400_000, 2),
    "made smaller": freed(4_000_000, 2, 64),
}
WAYS = {
    "bare": nullcontext,
    "probe": nullcontext,
    **MODES,
    "hints": partial(noclobber.watch, hints=True),
    "raise": partial(noclobber.watch, on_write="raise", ledger=True),
}


def tried(kind, way):
    """What comes of a program in a way of seeing, and which ways of seeing have failed."""
    if way == "probe":
        for function in (torch.exp, lambda x: x[:1], lambda x: (x * 1).mul_(2), Kept.apply):
            with suppress(Exception):
                noclobber.probe(function, KINDS.get(kind, lazy)())
    with WAYS[way]() as around:
        steps = PROGRAMS[kind]()
    lost = around._session.report().coverage.lost if around else ()
    return {"steps": steps, "lost": [str(one) for one in lost]}


def in_all_ways(kind):
    """What comes of a program in each way, in a fork of this process; a status in place of the way that ends it."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writes, "w") as pipe:
            for way in WAYS:
                print(NUMBERED.sub("", json.dumps(tried(kind, way))), file=pipe, flush=True)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        said = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    return dict(zip(WAYS, [*said, f"ended with {os.waitstatus_to_exitcode(status)}"], strict=False))


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for way in WAYS:  # what all kinds need is imported and armed once
        tried("leaf", way)
        tried("vmap of grad", way)
    sys.stdout.write(f"{json.dumps(bridge.why_not())}\n")
    sys.stdout.flush()
    for kind in sys.stdin:
        sys.stdout.write(f"{json.dumps(in_all_ways(kind.strip()))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
