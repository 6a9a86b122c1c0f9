"""Small programs that make PyTorch 2.13 refuse on a CPU: the words it must raise, and the rule that explains them.

Below each heading (the rule's code, then a piece of the error's text) stands a program. It runs among these names:
`leaf`, a leaf of four elements that requires grad; `x`, made from such a leaf; `inferred`, made in inference mode;
`dual()`, a tensor with a tangent; `function(forward, ...)`, a custom Function with these methods.
"""

from __future__ import annotations

import re
import textwrap
from typing import NamedTuple


class Program(NamedTuple):
    """`raises` is a piece of the error's text."""

    code: str
    raises: str
    text: str


def programs(block: str) -> tuple[Program, ...]:
    """The programs of a block of text."""
    parts = re.split(r"^(NC\d+): (.*)$", textwrap.dedent(block), flags=re.MULTILINE)
    headed = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return tuple(Program(code, raises, textwrap.dedent(text)) for code, raises, text in headed)


SAVES = programs("""
    NC101: has been modified by an inplace operation
        y = x.exp()
        y += 1
        y.sum().backward()
    NC104: backward through the graph a second time
        y = x.exp().sum()
        y.backward()
        y.backward()
    NC104: access saved tensors after they have
        y = x.exp()
        y.sum().backward()
        y.grad_fn._saved_result
    NC399: has been detached in-place
        y = x**2
        x.detach_()
        y.sum().backward()
    NC399: pack hook is modifying its input in place
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.add_(1), lambda t: t):
            x.exp()
    NC399: whose hooks have already been set
        y = x**2
        saved = y.grad_fn._raw_saved_self
        saved.register_hooks(lambda t: t, lambda t: t)
        saved.register_hooks(lambda t: t, lambda t: t)
    NC399: Calling register_hooks on a saved tensor after it has been freed
        y = x**2
        saved = y.grad_fn._raw_saved_self
        y.sum().backward()
        saved.register_hooks(lambda t: t, lambda t: t)
    NC399: with value None
        y = nn.functional.batch_norm(x.view(2, 2), None, None, training=True)
        y.grad_fn._raw_saved_weight.register_hooks(lambda t: t, lambda t: t)
    NC205: Tensor cached during selective activation checkpoint has been mutated
        from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
        def keep(ctx, op, *args, **kwargs):
            return CheckpointPolicy.MUST_SAVE if "mm" in str(op) else CheckpointPolicy.PREFER_RECOMPUTE
        def block(x):
            y = x @ x
            z = y.sin()
            y.detach().mul_(2)
            return z.sum()
        contexts = lambda: create_selective_checkpoint_contexts(keep)
        checkpoint(block, x.view(2, 2), use_reentrant=False, context_fn=contexts).backward()
    NC205: Recomputed values for the following tensors have different metadata
        from torch.utils.checkpoint import checkpoint
        sizes = [2, 3]
        block = lambda x: (x.sum() * torch.ones(sizes.pop(0))).exp().sum()
        checkpoint(block, x, use_reentrant=False).backward()
    NC306: cannot be saved for backward
        leaf * inferred
    NC306: Inplace update to inference tensor
        inferred += 1
    NC306: do not track version counter
        inferred._version
    NC306: does not have a version counter
        torch._C._autograd._unsafe_set_version_counter((inferred,), (1,))
    NC306: requires_grad=True on inference tensor
        inferred.requires_grad_()
""")

WRITES = programs("""
    NC301: a leaf Variable that requires grad is being used
        leaf += 1
    NC301: a leaf Variable that requires grad is being used
        torch._foreach_mul_([leaf], 2)
    NC301: a leaf Variable that requires grad has been used
        function(lambda ctx, x: ctx.mark_dirty(x) or x).apply(leaf)
    NC302: a view of a leaf Variable
        leaf[0] = 1
    NC302: a view of a leaf Variable
        leaf.reshape(2, 2).mul_(2)
    NC307: more than one element
        torch.ones(1, 3).expand(2, 3).add_(1)
    NC307: some elements of the input tensor
        y = torch.ones(2, 2)
        y += y.t()
    NC307: that has internal overlap
        torch.func.functionalize(lambda y: y.clone().unfold(0, 2, 1).add_(1))(torch.ones(4))
    NC308: can't be cast to the desired
        y = torch.ones(4, dtype=torch.long)
        y += 0.5
    NC308: can't be cast to the desired
        torch.exp(torch.ones(3), out=torch.ones(3, dtype=torch.long))
    NC308: doesn't match the broadcast shape
        y = torch.ones(3)
        y += torch.ones(2, 3)
    NC308: source and destination dtypes
        y = torch.ones(3)
        y[torch.tensor([0])] = torch.ones(1, dtype=torch.long)
    NC308: Bad in-place call
        torch.ones(2, 2).addmm_(torch.ones(3, 2), torch.ones(2, 2))
    NC309: functions with out=... arguments
        torch.add(leaf, 1, out=torch.empty(4))
    NC309: out= function
        with forward_ad.dual_level():
            torch.add(dual(), 1, out=torch.empty(3))
    NC399: cannot resize variables
        leaf.resize_(5)
    NC399: only change requires_grad flags
        x.requires_grad_(False)
    NC399: must be floating point or complex
        leaf.data = torch.ones(4, dtype=torch.long)
    NC399: In-place leakyReLu backward
        nn.functional.leaky_relu(x, -0.2, inplace=True).sum().backward()
    NC399: In-place elu backward
        nn.functional.elu(x, -0.2, inplace=True).sum().backward()
    NC399: inplace version of atanh
        x.atanh_()
        x.sum().backward()
    NC399: In-place abs
        torch.ones(3, dtype=torch.cfloat).abs_()
    NC399: requires coalesced
        torch.sparse_coo_tensor([[0, 0]], [1.0, 1.0], (3,)).asin_()
    NC399: is not defined as mutable
        from torch._subclasses.schema_check_mode import SchemaCheckMode
        library = torch.library.Library("noclobber_messages", "FRAGMENT")
        library.define("write(Tensor x) -> Tensor")
        library.impl("write", lambda t: t.add_(1).clone(), "CompositeExplicitAutograd")
        with SchemaCheckMode():
            torch.ops.noclobber_messages.write(torch.ones(3))
""")
