"""More programs that make PyTorch 2.13 refuse, as in `messages`: views, Functions, transforms; ordinary errors."""

from __future__ import annotations

from .messages import programs

VIEWS = programs("""
    NC303: returns multiple views
        a, b = x.split(2)
        a += 1
    NC303: returns multiple views
        for row in x:
            row *= 2
    NC303: returns multiple views
        x.unbind()[0].unsqueeze_(0)
    NC303: its base or another view of its base
        a, b = x.chunk(2)
        x += 1
        a.sum().backward()
    NC304: created in no_grad mode and is being
        with torch.no_grad():
            view = x[:2]
        view *= 2
    NC304: created in no_grad mode and its base
        with torch.no_grad():
            view = x[:2]
        x *= 2
        view.grad_fn
    NC304: created in inference mode
        with torch.inference_mode():
            view = x[:2]
        view *= 2
    NC305: created inside a custom Function
        y = function(lambda ctx, x: x.view(2, 2)).apply(x)
        y += 1
    NC305: an input was returned as-is
        function(lambda ctx, x: x).apply(x).mul_(2)
    NC305: its base or another view of its base
        y = function(lambda ctx, x: x.view(2, 2)).apply(x)
        x += 1
        y.grad_fn
    NC305: BackwardHookFunction
        net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
        net[0].register_full_backward_hook(lambda *_: None)
        net(torch.ones(2, 3))
    NC399: Can't detach views in-place
        x[:2].detach_()
""")

FUNCTIONS = programs("""
    NC313: marked as dirty
        function(lambda ctx, x: ctx.mark_dirty(x) or x * 2).apply(x)
    NC313: cannot return more than one Tensor
        function(lambda ctx, x: ctx.mark_dirty(x) or (x.add_(1), x * 2)).apply(x[:2])
    NC313: mark_dirty can only accept variables
        function(lambda ctx, x: ctx.mark_dirty(3) or x * 2).apply(x)
    NC313: expected to be a tuple
        function(lambda ctx, x: setattr(ctx, "dirty_tensors", 3) or x * 2).apply(x)
    NC313: Only input Tensors should be given
        def forward(ctx, x):
            y = x.clone()
            ctx.mark_dirty(y)
            return y
        with forward_ad.dual_level():
            function(forward, jvp=lambda ctx, t: t).apply(dual())
    NC399: returned as-is as output is being saved
        keep = lambda ctx, inputs, output: ctx.save_for_backward(output)
        function(lambda x: x, setup_context=keep).apply(x)
    NC312: not modifying the forward mode gradients
        with forward_ad.dual_level():
            function(lambda ctx, x: ctx.mark_dirty(x) or x.mul_(2), jvp=lambda ctx, t: t * 2).apply(dual())
    NC312: the jvp is not returning a view
        with forward_ad.dual_level():
            function(lambda ctx, x: x.view(-1), jvp=lambda ctx, t: t.clone()).apply(dual())
""")

TRANSFORMS = programs("""
    NC310: inplace arithmetic(self, *extra_args)
        def place(value):
            canvas = torch.zeros(3)
            canvas[0] = value
            return canvas
        torch.vmap(place)(torch.ones(2))
    NC310: index_put_(self, *extra_args)
        torch.vmap(lambda a: torch.zeros(3).index_put_((torch.tensor([0]),), a))(torch.ones(2, 1))
    NC310: aten::scatter_(self, *extra_args)
        torch.vmap(lambda a: torch.zeros(3).scatter_(0, a, 1.0))(torch.zeros(2, 3).long())
    NC310: different inplace randomness
        torch.vmap(lambda a: torch.ones(3).bernoulli_(0.5) + a, randomness="different")(torch.ones(2, 3))
    NC310: updated in place, were not batched
        torch.vmap(nn.BatchNorm1d(3))(torch.ones(2, 4, 3))
    NC310: accessing `data` under vmap
        torch.vmap(lambda a: a.data)(torch.ones(3))
    NC310: `.data` under vmap
        torch.vmap(lambda a: setattr(a, "data", torch.ones(3)))(torch.ones(3, 3))
    NC311: that would mutate a captured Tensor
        total = torch.zeros(3)
        torch.func.grad(lambda a: total.add_(a).sum())(torch.ones(3))
    NC311: that would mutate a captured Tensor
        norm = nn.BatchNorm1d(3)
        torch.func.grad(lambda a: norm(a).sum())(torch.ones(4, 3))
    NC311: `.data` inside functorch
        torch.func.grad(lambda a: setattr(a, "data", torch.ones(3)))(torch.ones(3))
    NC311: non-functional tensor with a functional
        total = torch.ones(4)
        torch.func.functionalize(lambda a: total.add_(a))(torch.ones(4))
    NC399: mutation on a view chain
        chain = lambda a: a.clone().as_strided((3,), (1,)).view(3).as_strided((2,), (1,))
        torch.func.functionalize(lambda a: chain(a).add_(1))(torch.ones(3))
    NC399: resize a view tensor to a larger
        torch.func.functionalize(lambda a: a.clone()[:2].resize_(10))(torch.ones(4))
""")

ORDINARY = (
    "torch.ones(2, 3) @ torch.ones(2, 3)",
    "torch.ones(2) + torch.ones(3)",
    "leaf.backward()",
    "torch.ones(3).sum().backward()",
    "leaf.numpy()",
    "leaf[7]",
    "leaf.view(3, 3)",
    "nn.Linear(3, 2)(leaf)",
    "nn.functional.cross_entropy(torch.ones(2, 3), torch.ones(2))",
    "torch.ones(3, dtype=torch.long, requires_grad=True)",
    "torch.autograd.grad(x.sum(), torch.ones(3, requires_grad=True))",
    "torch.ones(2, 3).t().view(6)",
    "torch.cat([torch.ones(2, 3), torch.ones(3, 2)])",
    "leaf.item()",
    "nn.Linear(3, 2).load_state_dict({})",
    "leaf.to('nowhere')",
    "undefined_name",
)
"""Programs whose errors have nothing to do with writing in place."""
