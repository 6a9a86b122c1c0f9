"""`ctx.saved_tensors` of custom Functions: in backward, in forward mode, under torch.func, with nothing saved."""

import pytest
import torch
from torch.autograd import Function, forward_ad
from torch.autograd.function import once_differentiable

import noclobber
from tests.observe.alike import differing


class Square(Function):
    """Saves for both modes in `forward`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, None)
        ctx.save_for_forward(x, None)
        return x * x

    @staticmethod
    def jvp(ctx, tangent):
        x, nothing = ctx.saved_tensors
        assert nothing is None
        return 2 * x * tangent

    @staticmethod
    def backward(ctx, gradient):
        x, nothing = ctx.saved_tensors
        assert nothing is None
        return 2 * x * gradient


class Cube(Function):
    """Saves in `setup_context`: the input twice, the result, and what is neither."""

    @staticmethod
    def forward(x):
        square = x * x
        return x * square, square

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,), (result, square) = inputs, output
        ctx.mark_non_differentiable(square)
        ctx.save_for_backward(x, x, result, square)
        ctx.save_for_forward(x, square)

    @staticmethod
    def jvp(ctx, tangent):
        _, square = ctx.saved_tensors
        return 3 * square * tangent, None

    @staticmethod
    def backward(ctx, gradient, _):
        x, again, _, _ = ctx.saved_tensors
        return 3 * x * again * gradient

    @staticmethod
    def vmap(info, in_dims, x):
        return Cube.apply(x), (in_dims[0], in_dims[0])


class Generated(Function):
    """Has its vmap made by PyTorch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def jvp(ctx, tangent):
        (result,) = ctx.saved_tensors
        return result * tangent

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        return result * gradient


class Once(Function):
    """Its backward is not differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return x.cos() * gradient


class Forward(Function):
    """Saves for forward mode alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_forward(x)
        return x * 2

    @staticmethod
    def jvp(ctx, tangent):
        return ctx.saved_tensors[0] * 0 + 2 * tangent

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient + len(ctx.saved_tensors)


X = torch.tensor([3.0, 4.0])


def cube(x):
    return Cube.apply(x)[0]


def dual(function):
    x = X.clone().requires_grad_()
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, torch.ones(2)))).tangent
    tangent.sum().backward()
    return tangent.tolist(), None if x.grad is None else x.grad.tolist()


def backward_twice(function):
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    gradient.square().sum().backward()
    return gradient.tolist(), x.grad.tolist()


FUNCTIONS = [Square.apply, cube, Generated.apply, Once.apply, Forward.apply]
USES = {
    "backward": backward_twice,
    "dual": dual,
    "jvp": lambda f: torch.func.jvp(f, (X,), (torch.ones(2),))[1].tolist(),
    "vjp": lambda f: torch.func.vjp(f, X)[1](torch.ones(2))[0].tolist(),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X).tolist(),
    "jacfwd": lambda f: torch.func.jacfwd(f)(X).tolist(),
    "jacrev": lambda f: torch.func.jacrev(f)(X).tolist(),
    "hessian": lambda f: torch.func.hessian(lambda x: f(x).sum())(X).tolist(),
    "vmap": lambda f: torch.func.vmap(f)(X.clone().requires_grad_()).tolist(),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(X).tolist(),
    "functional.jvp": lambda f: torch.autograd.functional.jvp(f, X, torch.ones(2))[1].tolist(),
    "functional.hessian": lambda f: torch.autograd.functional.hessian(lambda x: f(x).sum(), X).tolist(),
    "gradcheck": lambda f: torch.autograd.gradcheck(f, X.double().requires_grad_(), check_forward_ad=True),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("function", FUNCTIONS, ids=["Square", "Cube", "Generated", "Once", "Forward"])
def test_saved_tensors_are_as_without_noclobber(function, use):
    assert differing(lambda: use(function)) == {}


def test_what_is_saved_is_given_back_itself():
    class Identity(Function):
        """Says whether it gets the very tensor that it saved."""

        @staticmethod
        def forward(ctx, x):
            ctx.x = [x]
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x * 1

        @staticmethod
        def jvp(ctx, tangent):
            same.append(ctx.saved_tensors[0] is ctx.x[0])
            return tangent * 1

        @staticmethod
        def backward(ctx, gradient):
            same.append(ctx.saved_tensors[0] is ctx.x[0])
            return gradient

    def program():
        same.clear()
        x = X.clone().requires_grad_()
        with forward_ad.dual_level():
            result = Identity.apply(forward_ad.make_dual(x, torch.ones(2)))
        result.sum().backward()
        return list(same)

    same = []
    assert differing(program) == {}
    assert len(program()) == 2


def test_a_save_with_a_version_counter_of_its_own_is_blamed_on_the_write_to_its_memory():
    def run(kron):
        a, b = (torch.rand(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
        x, z = a * 1.5, b * 1.0
        with noclobber.watch() as watched:
            y = kron(x, z)
            z.mul_(2)  # written
            (y * y).sum().backward()
        return watched.findings, a, b

    (found,), a, b = run(torch.kron)  # PyTorch raises nothing
    assert found.code == "NC201"
    (label,) = (one for one in found.labels if one.role == "write")
    assert label.source[0].endswith("# written")
    (right,) = torch.autograd.grad(torch.kron(a * 1.5, b * 1.0).square().sum(), [a])
    assert not torch.allclose(a.grad, right)
    findings, a, b = run(lambda x, z: torch.kron(x, z.clone()))
    assert not findings
    assert torch.allclose(a.grad, torch.autograd.grad(torch.kron(a * 1.5, b * 1.0).square().sum(), [a])[0])
