"""Tensors of every kind, written in every way: each in-place operator does under noclobber what it does bare."""

import gc
import re
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

from tests.observe.alike import MODES, outcome, outcome_in


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


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


KINDS = {
    "leaf": lambda: torch.ones(3, requires_grad=True),
    "inner": lambda: ones(3),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse in the graph": lambda: torch.eye(3).to_sparse().requires_grad_().clone(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "csc": lambda: torch.eye(3).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "mkldnn": lambda: torch.ones(3, 3).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "meta": lambda: ones(3, device="meta"),
    "nested": nested,
    "nested in the graph": lambda: nested(requires_grad=True).clone(),
    "jagged": lambda: nested(layout=torch.jagged, requires_grad=True).clone(),
    "conjugated": lambda: ones(3, dtype=torch.cfloat).conj(),
    "negated": lambda: ones(3, dtype=torch.cfloat).conj().imag,
    "expanded": lambda: ones(1).expand(3),
    "one of several views": lambda: ones(2, 3).unbind()[1],
    "overlapping": lambda: ones(3).as_strided((3, 2), (1, 1)),
    "empty": lambda: ones(0),
    "scalar": lambda: ones(()),
    "half": lambda: ones(3, dtype=torch.half),
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "bool": lambda: torch.ones(3, dtype=torch.bool),
    "inference": inference,
    "subclass": lambda: ones(3).as_subclass(Plain),
    "two tensors": lambda: TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_().clone(),
    "masked": lambda: masked_tensor(torch.ones(3), torch.tensor([True, False, True]), requires_grad=True).clone(),
    "fake": fake,
    "functional": lambda: torch._to_functional_tensor(torch.ones(3)),
    "zero": lambda: torch._efficientzerotensor((3,)),
    "read-only": lambda: torch.from_numpy(np.frombuffer(bytearray(12), dtype=np.float32)),
    "lazy": torch.nn.UninitializedParameter,
    "named": lambda: ones(3).refine_names("N"),
}


def backward_of(save, write):
    def used(x):
        y = save(x)
        write(y)
        y.sum().backward()

    return used


WRITES = {
    "mul_": lambda x: x.mul_(2),
    "add_ itself": lambda x: x.add_(x),
    "zero_": lambda x: x.zero_(),
    "relu_": lambda x: x.relu_(),
    "copy_": lambda x: x.copy_(x.clone()),
    "data": lambda x: x.data.mul_(2),
    "set data": lambda x: setattr(x, "data", x.detach().clone()),
    "detach": lambda x: x.detach().zero_(),
    "detach_": lambda x: x.detach_(),
    "index": lambda x: x.__setitem__(0, 1),
    "+=": lambda x: x.__iadd__(1),
    "resize_": lambda x: x.resize_(2),
    "fill_": lambda x: x.fill_(3),
    "set_ storage": lambda x: x.set_(torch.ones(3).untyped_storage()),
    "set_": lambda x: x.set_(torch.ones(3)),
    "dropout": lambda x: F.dropout(x, 0.5, True, True),
    "normal_": lambda x: x.normal_(),
    "abs_": lambda x: x.abs_(),
    "neg_": lambda x: x.neg_(),
    "sqrt_": lambda x: x.sqrt_(),
    "out": lambda x: torch.exp(x, out=x),
    "clamp_": lambda x: x.clamp_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "t_": lambda x: x.t_(),
    "foreach": lambda x: torch._foreach_mul_([x], 2),
    "no_grad": torch.no_grad()(lambda x: x.mul_(2)),
    "inference_mode": torch.inference_mode()(lambda x: x.mul_(2)),
    "numpy": lambda x: x.detach().numpy().fill(1),
    "saved": lambda x: (x * x, x.mul_(2)),
    "a save that backward needs no more": backward_of(torch.sin, torch.relu_),
}
CLOBBERS = {
    "a save that backward needs": backward_of(torch.exp, lambda y: y.mul_(2)),
    "detached after its save": backward_of(torch.exp, lambda y: (y * y, y.detach_())),
}


@pytest.fixture
def leaves_no_garbage():
    """As long as a tensor with names is there, torch 2.10 to 2.12 lets writes go by unseen (named_tensors.py)."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("leaves_no_garbage")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_each_write_to_a_tensor_of_this_kind_is_as_without_noclobber(kind, mode):
    bare, (_, watched) = all_writes(kind), outcome_in(mode, partial(all_writes.__wrapped__, kind))
    names = WRITES if mode == "preserve" else bare
    assert {name: (bare[name], watched[name]) for name in names if watched[name] != bare[name]} == {}


@cache
def all_writes(kind):
    """What comes of each write, by its name."""
    writes = WRITES | CLOBBERS
    return {name: _NUMBERED.sub("", str(outcome(partial(_written, KINDS[kind], writes[name])))) for name in writes}


_NUMBERED = re.compile(r"0x[0-9a-f]+|\bj[0-9]+|(?<=only available for these backends: ).*")
"""Addresses, and the sizes of jagged tensors: each has a number of its own. A kernel of noclobber's is one more backend
in PyTorch's list of those that an operator has."""


def _written(make, write):
    tensor = make()
    return _state(write(tensor)), _state(tensor)


def _state(result):
    """What is left of a write: values as text, as kinds of tensors have nothing else in common, and the version."""
    if not isinstance(result, torch.Tensor):
        return type(result).__name__
    return repr(result), None if result.is_inference() else result._version
