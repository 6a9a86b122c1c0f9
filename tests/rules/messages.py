"""Small programs that make PyTorch 2.13 refuse on a CPU: the words it must raise, and the rule that explains them."""

from __future__ import annotations

from typing import NamedTuple


class Program(NamedTuple):
    """`raises` is a piece of the error's text; `text` runs after `torch`, `nn` and `forward_ad` were imported."""

    code: str
    raises: str
    text: str


X = "x = torch.ones(4, requires_grad=True) * 1\n"
LEAF = "x = torch.ones(4, requires_grad=True)\n"
INFERENCE = "with torch.inference_mode(): t = torch.ones(3)\n"
DUAL = "dual = lambda: forward_ad.make_dual(torch.ones(3), torch.ones(3))\n"


def function(forward: str, backward: str = "return g", jvp: str = "return g", setup: str = "") -> str:
    """The text of a custom Function `F` with these bodies."""
    body = [("forward", "ctx, x" if not setup else "x", forward), ("backward", "ctx, *g", backward), ("jvp", "ctx, "
            "g", jvp)]
    body += [("setup_context", "ctx, inputs, output", setup)] if setup else []
    methods = "".join(f"    @staticmethod\n    def {name}({given}): {does}\n" for name, given, does in body)
    return f"class F(torch.autograd.Function):\n{methods}"


SAVES = (
    Program("NC101", "has been modified by an inplace operation", X + "y = x.exp()\ny += 1\ny.sum().backward()"),
    Program("NC104", "backward through the graph a second time", X + "y = x.exp().sum()\ny.backward()\ny.backward()"),
    Program("NC104", "access saved tensors after they have", X + "y = x.exp()\ny.sum().backward()\n"
            "y.grad_fn._saved_result"),
    Program("NC399", "has been detached in-place", X + "y = x**2\nx.detach_()\ny.sum().backward()"),
    Program(
        "NC399",
        "pack hook is modifying its input in place",
        X + "with torch.autograd.graph.saved_tensors_hooks(lambda t: t.add_(1), lambda t: t): x.exp()",
    ),
    Program(
        "NC399",
        "whose hooks have already been set",
        X + "y = x**2\nh = y.grad_fn._raw_saved_self\nfor _ in '12': h.register_hooks(lambda t: t, lambda t: t)",
    ),
    Program(
        "NC399",
        "Calling register_hooks on a saved tensor after it has been freed",
        X + "y = x**2\nh = y.grad_fn._raw_saved_self\ny.sum().backward()\nh.register_hooks(lambda t: t, lambda t: t)",
    ),
    Program(
        "NC399",
        "with value None",
        "y = nn.functional.batch_norm(torch.ones(2, 3, requires_grad=True), None, None, training=True)\n"
        "y.grad_fn._raw_saved_weight.register_hooks(lambda t: t, lambda t: t)",
    ),
    Program("NC306", "cannot be saved for backward", INFERENCE + "torch.ones(3, requires_grad=True) * t"),
    Program("NC306", "Inplace update to inference tensor", INFERENCE + "t += 1"),
    Program("NC306", "do not track version counter", INFERENCE + "t._version"),
    Program("NC306", "does not have a version counter", INFERENCE +
            "torch._C._autograd._unsafe_set_version_counter((t,), (1,))"),
    Program("NC306", "requires_grad=True on inference tensor", INFERENCE + "t.requires_grad_()"),
    Program(
        "NC399",
        "Tensor cached during selective activation checkpoint has been mutated",
        "from torch.utils.checkpoint import CheckpointPolicy as P, checkpoint, create_selective_checkpoint_contexts "
            "as c\n"
        "pick = lambda ctx, op, *a, **k: P.MUST_SAVE if 'mm' in str(op) else P.PREFER_RECOMPUTE\n"
        "def f(x):\n    y = x @ x\n    z = y.sin()\n    y.detach().mul_(2)\n    return z.sum()\n"
        "checkpoint(f, torch.ones(2, 2, requires_grad=True), use_reentrant=False, context_fn=lambda: "
            "c(pick)).backward()",
    ),
    Program(
        "NC399",
        "Recomputed values for the following tensors have different metadata",
        "from torch.utils.checkpoint import checkpoint\nsizes = [2, 3]\n"
        "f = lambda x: (x.sum() * torch.ones(sizes.pop(0))).exp().sum()\n"
        "checkpoint(f, torch.ones(1, requires_grad=True), use_reentrant=False).backward()",
    ),
)

WRITES = (
    Program("NC301", "a leaf Variable that requires grad is being used", LEAF + "x += 1"),
    Program("NC301", "a leaf Variable that requires grad is being used", LEAF + "torch._foreach_mul_([x], 2)"),
    Program(
        "NC301",
        "a leaf Variable that requires grad has been used",
        function("ctx.mark_dirty(x); return x") + LEAF + "F.apply(x)",
    ),
    Program("NC302", "a view of a leaf Variable", LEAF + "x[0] = 1"),
    Program("NC302", "a view of a leaf Variable", LEAF + "x.reshape(2, 2).mul_(2)"),
    Program("NC309", "out=... arguments", LEAF + "torch.add(x, 1, out=torch.empty(4))"),
    Program("NC309", "out= function", DUAL + "with forward_ad.dual_level(): torch.add(dual(), 1, out=torch.empty(3))"),
    Program("NC307", "more than one element", "torch.ones(1, 3).expand(2, 3).add_(1)"),
    Program("NC307", "some elements of the input tensor", "x = torch.ones(2, 2)\nx += x.t()"),
    Program("NC307", "that has internal overlap", "torch.func.functionalize(lambda x: x.clone().unfold(0, 2, "
            "1).add_(1))(torch.ones(4))"),
    Program("NC308", "can't be cast to the desired", "x = torch.ones(4, dtype=torch.long)\nx += 0.5"),
    Program("NC308", "can't be cast to the desired", "torch.exp(torch.ones(3), out=torch.ones(3, dtype=torch.long))"),
    Program("NC308", "doesn't match the broadcast shape", "x = torch.ones(3)\nx += torch.ones(2, 3)"),
    Program("NC308", "source and destination dtypes", "x = torch.ones(3)\n"
            "x[torch.tensor([0])] = torch.ones(1, dtype=torch.long)"),
    Program("NC308", "Bad in-place call", "torch.ones(2, 2).addmm_(torch.ones(3, 2), torch.ones(2, 2))"),
    Program("NC399", "cannot resize variables", LEAF + "x.resize_(5)"),
    Program("NC399", "only change requires_grad flags", X + "x.requires_grad_(False)"),
    Program("NC399", "must be floating point or complex", LEAF + "x.data = torch.ones(4, dtype=torch.long)"),
    Program("NC399", "In-place leakyReLu backward", X + "nn.functional.leaky_relu(x, -0.2, "
            "inplace=True).sum().backward()"),
    Program("NC399", "In-place elu backward", X + "nn.functional.elu(x, -0.2, inplace=True).sum().backward()"),
    Program("NC399", "inplace version of atanh", X + "x.atanh_()\nx.sum().backward()"),
    Program("NC399", "In-place abs", "torch.ones(3, dtype=torch.cfloat).abs_()"),
    Program("NC399", "requires coalesced", "torch.sparse_coo_tensor([[0, 0]], [1.0, 1.0], (3,)).asin_()"),
    Program("NC399", "is not defined as mutable", "from torch._subclasses.schema_check_mode import SchemaCheckMode\n"
            "@torch.library.custom_op('noclobber_test::w', mutates_args=())\n"
            "def w(x: torch.Tensor) -> torch.Tensor:\n    x.add_(1)\n    return x.clone()\n"
            "with SchemaCheckMode(): w(torch.ones(3))"),
)  # fmt: skip

VIEWS = (
    Program("NC303", "returns multiple views", X + "a, b = x.split(2)\na += 1"),
    Program("NC303", "returns multiple views", X + "for row in x: row *= 2"),
    Program("NC303", "returns multiple views", X + "x.unbind()[0].unsqueeze_(0)"),
    Program("NC303", "its base or another view of its base", X + "a, b = x.chunk(2)\nx += 1\na.sum().backward()"),
    Program("NC304", "created in no_grad mode", X + "with torch.no_grad(): v = x[:2]\nv *= 2"),
    Program("NC304", "created in no_grad mode and its base", X + "with torch.no_grad(): v = x[:2]\nx *= 2\nv.grad_fn"),
    Program("NC304", "created in inference mode", X + "with torch.inference_mode(): v = x[:2]\nv *= 2"),
    Program("NC305", "created inside a custom Function", function("return x.view(2, 2)") + X + "y = F.apply(x)\n"
            "y += 1"),
    Program("NC305", "an input was returned as-is", function("return x") + X + "F.apply(x).mul_(2)"),
    Program("NC305", "its base or another view", function("return x.view(2, 2)") + X + "y = F.apply(x)\nx += 1\n"
            "y.grad_fn"),
    Program("NC305", "BackwardHookFunction", "net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))\n"
            "net[0].register_full_backward_hook(lambda *a: None)\nnet(torch.ones(2, 3))"),
    Program("NC399", "Can't detach views in-place", X + "x[:2].detach_()"),
)  # fmt: skip

FUNCTIONS = (
    Program("NC313", "marked as dirty", function("ctx.mark_dirty(x); return x * 2") + X + "F.apply(x)"),
    Program("NC313", "cannot return more than one Tensor", function("ctx.mark_dirty(x); return x.add_(1), x * 2") + "
            "X + "F.apply(x[:2])"),
    Program("NC313", "mark_dirty can only accept variables", function("ctx.mark_dirty(3); return x * 2") + X + "
            ""F.apply(x)"),
    Program("NC313", "expected to be a tuple", function("ctx.dirty_tensors = 3; return x * 2") + X + "F.apply(x)"),
    Program("NC313", "Only input Tensors should be given", DUAL + function("y = x.clone(); ctx.mark_dirty(y); return y")
            + "with forward_ad.dual_level(): F.apply(dual())"),
    Program("NC399", "returned as-is as output is being saved", function("return x", "
            "setup="ctx.save_for_backward(output)") + X + "F.apply(x)"),
    Program("NC312", "not modifying the forward mode gradients", DUAL + function("ctx.mark_dirty(x); return "
            "x.mul_(2)", jvp="return g * 2")
            + "with forward_ad.dual_level(): F.apply(dual())"),
    Program("NC312", "the jvp is not returning a view", DUAL + function("return x.view(-1)", jvp="return g.clone()")
            + "with forward_ad.dual_level(): F.apply(dual())"),
    Program("NC310", "inplace arithmetic(self, *extra_args)", "def f(a):\n    z = torch.zeros(3)\n    z[0] = a\n"
            "    return z\ntorch.vmap(f)(torch.ones(2))"),
    Program("NC310", "index_put_(self, *extra_args)", "torch.vmap(lambda a: "
            "torch.zeros(3).index_put_((torch.tensor([0]),), a))(torch.ones(2, 1))"),
    Program("NC310", "aten::scatter_(self, *extra_args)", "torch.vmap(lambda a: torch.zeros(3).scatter_(0, a, "
            "1.0))(torch.zeros(2, 3).long())"),
    Program("NC310", "different inplace randomness", "torch.vmap(lambda a: torch.ones(3).bernoulli_(0.5) + a, "
            "randomness='different')(torch.ones(2, 3))"),
    Program("NC310", "updated in place, were not batched", "torch.vmap(nn.BatchNorm1d(3))(torch.ones(2, 4, 3))"),
    Program("NC310", "accessing `data` under vmap", "torch.vmap(lambda a: a.data)(torch.ones(3))"),
    Program("NC310", "`.data` under vmap", "def f(a):\n    a.data = torch.ones(3)\n    return a\n"
            "torch.vmap(f)(torch.ones(3, 3))"),
    Program("NC311", "that would mutate a captured Tensor", "c = torch.zeros(3)\n"
            "torch.func.grad(lambda a: c.add_(a).sum())(torch.ones(3))"),
    Program("NC311", "that would mutate a captured Tensor", "bn = nn.BatchNorm1d(3)\n"
            "torch.func.grad(lambda a: bn(a).sum())(torch.ones(4, 3))"),
    Program("NC311", "`.data` inside functorch", "def f(a):\n    a.data = torch.ones(3)\n    return a.sum()\n"
            "torch.func.grad(f)(torch.ones(3))"),
    Program("NC311", "non-functional tensor with a functional", "c = torch.ones(4)\n"
            "torch.func.functionalize(lambda x: c.add_(x))(torch.ones(4))"),
    Program("NC399", "mutation on a view chain", "torch.func.functionalize(lambda x: x.clone().as_strided((3,), "
            "(1,)).view(3).as_strided((2,), (1,)).add_(1))(torch.ones(3))"),
    Program("NC399", "resize a view tensor to a larger", "torch.func.functionalize(lambda x: "
            "x.clone()[:2].resize_(10))(torch.ones(4))"),
)  # fmt: skip

ORDINARY = (
    "torch.ones(2, 3) @ torch.ones(2, 3)",
    "torch.ones(2) + torch.ones(3)",
    "torch.ones(3, requires_grad=True).backward()",
    "torch.ones(3).sum().backward()",
    "torch.ones(3, requires_grad=True).numpy()",
    "torch.ones(3)[7]",
    "torch.ones(3).view(2, 2)",
    "nn.Linear(3, 2)(torch.ones(4))",
    "nn.functional.cross_entropy(torch.ones(2, 3), torch.ones(2))",
    "torch.ones(3, dtype=torch.long, requires_grad=True)",
    "x = torch.ones(3, requires_grad=True)\ny = torch.ones(3, requires_grad=True)\ntorch.autograd.grad(x.sum(), y)",
    "torch.ones(2, 3).t().view(6)",
    "torch.cat([torch.ones(2, 3), torch.ones(3, 2)])",
    "torch.tensor([1.0, 2.0]).item()",
    "nn.Linear(3, 2).load_state_dict({})",
    "torch.ones(3).to('nowhere')",
    "undefined_name",
)
"""Programs whose errors have nothing to do with writing in place."""
