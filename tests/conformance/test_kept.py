"""What `noclobber.probe` says of each operator is what bare autograd does when that tensor is overwritten."""

import itertools
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

import noclobber
from noclobber.ops.probing import overwrite

SAMPLES = 1
"""Of each operator. With 100 the answer is the same (torch 2.13: 537 operators, 23,943 tensors)."""


class Bare:
    """One call on copies: the tensors that went in and came out, and the leaves behind them."""

    def __init__(self, function, sample):
        torch.default_generator.manual_seed(0)
        self.leaves, copies = [], {}

        def copy(tensor):
            if id(tensor) not in copies:
                leaf = tensor.detach().clone()
                if tensor.requires_grad:
                    self.leaves.append(leaf.requires_grad_())
                copies[id(tensor)] = leaf.clone()
            return copies[id(tensor)]

        args, kwargs = tree_map_only(torch.Tensor, copy, ((sample.input, *sample.args), sample.kwargs))
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        self.results = [one for one in tree_leaves(function(*args, **kwargs)) if isinstance(one, torch.Tensor)]
        self.tensors = inputs + self.results

    def gradients(self):
        roots = [one for one in self.results if one.requires_grad]
        torch.default_generator.manual_seed(1)
        seeds = [torch.randn_like(one) for one in roots]
        return torch.autograd.grad(roots, self.leaves, seeds, allow_unused=True)


def dense(tensor):
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def same(some, other):
    pairs = zip(some, other, strict=True)
    return all(a is b or torch.allclose(dense(a), dense(b), equal_nan=True) for a, b in pairs)


def kept(function, sample, number, right):
    """Whether backward needs a tensor unchanged, and whether PyTorch notices that it changed."""
    call = Bare(function, sample)
    overwrite(call.tensors[number])
    try:
        return not same(right, call.gradients()), False
    except RuntimeError:
        return True, True


def differences(function, sample):
    """The number of tensors that were overwritten, and those of which the probe says something else."""
    right = Bare(function, sample).gradients()
    said = noclobber.probe(function, sample.input, *sample.args, **sample.kwargs)
    wrong = []
    for number, operand in enumerate(said.operands):
        broken, noticed = kept(function, sample, number, right)
        if (broken, noticed and broken) != (operand.kept, operand.kept and operand.noticed):
            wrong.append((operand, broken, noticed))
    return len(said.operands), wrong


@pytest.mark.parametrize("form", ["op", "inplace_variant"])
def test_the_probe_says_what_bare_autograd_does(form):
    tensors, operators, wrong = 0, 0, []
    for op in op_db:
        function = op if form == "op" else op.get_inplace()
        dtype = torch.float64 if torch.float64 in op.supported_dtypes("cpu") else torch.float32
        if function is None or not op.supports_autograd or dtype not in op.supported_dtypes("cpu"):
            continue
        counted = tensors
        for sample in itertools.islice(op.sample_inputs_func(op, "cpu", dtype, True), SAMPLES):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    Bare(function, sample).gradients()
                except (RuntimeError, NotImplementedError, TypeError, ValueError):
                    continue  # no gradient, or no such form of this overload
                count, found = differences(function, sample)
            tensors += count
            wrong += [(op.name, *one) for one in found]
        operators += tensors > counted
    assert not wrong
    assert operators > (500 if form == "op" else 120)
    assert tensors > 2 * operators
