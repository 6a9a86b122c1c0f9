"""What a node keeps and does not read, for what it was computed with: to overwrite that is no finding."""

import numpy
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import noclobber
from noclobber.observe.torch_api.autograd import graph
from tests.observe.hearing import bare, hear

aten = torch.ops.aten
NORMS = {
    "native": lambda x, w, mean, var, train: aten.native_batch_norm(x, w, w, mean, var, train, 0.1, 1e-5)[0],
    "legit": lambda x, w, mean, var, train: aten._native_batch_norm_legit(x, w, w, mean, var, train, 0.1, 1e-5)[0],
    "one operator each": lambda x, w, mean, var, train: (
        aten._batch_norm_with_update(x, w, w, mean, var, 0.1, 1e-5)[0]
        if train
        else aten._batch_norm_no_update(x, w, w, mean, var, 0.1, 1e-5)[0]
    ),
}


def by_another_forward(mean, var):
    torch.nn.functional.batch_norm(torch.linspace(-3, 5, 18).reshape(6, 3), mean, var, None, None, True)


def through_data(mean, var):
    mean.data.add_(1)
    var.data.mul_(2)


def normalized(norm, write, *, train, twice):
    def program(writes):
        x = torch.randn(6, 3, requires_grad=True)
        w = torch.randn(3, requires_grad=True)
        mean, var = torch.randn(3), torch.rand(3) + 0.5
        result = norm(x, w, mean, var, train).pow(3).sum()
        if twice:
            (gradient,) = torch.autograd.grad(result, x, create_graph=True)
            result = gradient.square().sum()
        if writes:
            write(mean, var)
        result.backward()
        return torch.stack([x.grad.sum(0), w.grad])

    return program


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("twice", [True, False])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("write", [by_another_forward, through_data])
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_running_statistics_are_read_in_evaluation_only(norm, write, train, twice, contents):
    program = normalized(norm, write, train=train, twice=twice)
    right = bare(lambda: program(False))
    heard, gradient = hear(lambda: program(True), contents)
    assert torch.equal(gradient, bare(lambda: program(True)))
    assert torch.equal(gradient, right) == train
    assert bool(heard.clobbers) != train

    def preserved():
        with noclobber.preserve():
            return program(True)

    assert torch.equal(bare(preserved), right)


def test_a_statistic_that_is_the_weight_too_is_read():
    def program():
        x, both, var = torch.randn(6, 3, requires_grad=True), torch.randn(3), torch.rand(3) + 0.5
        aten.native_batch_norm(x, both, None, both, var, True, 0.1, 1e-5)[0].pow(3).sum().backward()
        return x.grad

    heard, _ = hear(program)
    assert [clobber.save.field for clobber in heard.clobbers] == ["weight"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("draw", [torch._C._nn.rrelu_with_noise, torch._C._nn.rrelu_with_noise_])
def test_noise_is_read_where_it_was_drawn(draw, training):
    def program(writes):
        x, noise = torch.linspace(-2, 2, 8).requires_grad_(), torch.ones(8)
        y = draw(x * 1, noise, 0.2, 0.3, training)
        if writes:
            noise.data.fill_(7)
        y.sum().backward()
        return x.grad

    heard, gradient = hear(lambda: program(True))
    assert torch.equal(gradient, bare(lambda: program(False))) != training
    assert bool(heard.clobbers) == training


@pytest.mark.parametrize("kind", ["Cudnn", "Miopen"])
def test_the_second_derivatives_on_accelerators_are_of_training_and_say_nothing_of_it(kind):
    """In evaluation their first derivative is that of the native one (derivatives.yaml of torch 2.13)."""
    node = getattr(torch._C._functions, f"{kind}BatchNormBackwardBackward0")
    assert hasattr(node, "_saved_running_mean")
    assert not any(hasattr(node, f"_saved_{flag}") for flag in ("training", "train", "update"))


ROWS = torch.tensor([2, 0, 1])
SHAPE_ONLY = {
    "avg_pool1d": lambda h: functional.avg_pool1d(h, 2),
    "avg_pool2d": lambda h: functional.avg_pool2d(h[None], 2),
    "avg_pool3d": lambda h: functional.avg_pool3d(h[None, :, None], (1, 2, 2)),
    "adaptive_avg_pool2d": lambda h: functional.adaptive_avg_pool2d(h, 2),
    "adaptive_avg_pool3d": lambda h: functional.adaptive_avg_pool3d(h[None], 2),
    "max_pool1d": lambda h: functional.max_pool1d(h, 2),
    "max_pool2d": lambda h: functional.max_pool2d(h, 2),
    "max_pool3d": lambda h: functional.max_pool3d(h[None], 2),
    "adaptive_max_pool2d": lambda h: functional.adaptive_max_pool2d(h, 2),
    "adaptive_max_pool3d": lambda h: functional.adaptive_max_pool3d(h[None], 2),
    "fractional_max_pool2d": lambda h: functional.fractional_max_pool2d(
        h, 2, 2, _random_samples=torch.full((1, 3, 2), 0.4)
    ),
    "fractional_max_pool3d": lambda h: functional.fractional_max_pool3d(
        h[None], (1, 2, 2), (2, 2, 2), _random_samples=torch.full((1, 1, 3), 0.4)
    ),
    **{
        f"{mode} pad {dims}d": lambda h, mode=mode, dims=dims: (
            functional.pad(h.reshape(3, 4, 2, 2), [1] * 2 * dims, mode)
            if dims < 3
            else functional.pad(h.reshape(1, 3, 2, 2, 4), [1] * 6, mode)
        )
        for mode in ("reflect", "replicate")
        for dims in (2, 3)
    },
    "reflect pad 1d": lambda h: functional.pad(h, [1, 1], "reflect"),
    "gather": lambda h: h.gather(0, ROWS[:, None, None].expand(3, 4, 4)),
    "take": lambda h: h.take(ROWS),
    "masked_select": lambda h: h.masked_select(torch.arange(48).reshape(3, 4, 4) % 3 == 0),
    "cummax": lambda h: h.cummax(1)[0],
    "cummin": lambda h: h.cummin(1)[0],
    "nll_loss": lambda h: functional.nll_loss(h[0], torch.tensor([2, 0, 1, 3])),
    "nll_loss2d": lambda h: functional.nll_loss(h[None], torch.zeros(1, 4, 4, dtype=torch.long)),
    "index_add": lambda h: torch.zeros(3, 4, 4).index_add(0, ROWS, h),
    "index_copy": lambda h: torch.zeros(3, 4, 4).index_copy(0, ROWS, h),
    "put": lambda h: torch.zeros(3, 4, 4).put(torch.arange(48), h.flatten()),
    "bias of layer_norm": lambda h: functional.layer_norm(torch.arange(48.0).reshape(3, 4, 4), (3, 4, 4), None, h),
    "div, rounded": lambda h: torch.div(h, h + 3, rounding_mode="floor") + h,
    "div by a number, rounded": lambda h: torch.div(h, 3, rounding_mode="trunc") + h,
}


@pytest.mark.parametrize("compute", SHAPE_ONLY.values(), ids=SHAPE_ONLY)
def test_what_is_kept_for_its_shape_may_be_overwritten(compute):
    def program(writes):
        x = torch.randn(3, 4, 4, requires_grad=True)
        h = x * 1
        y = compute(h)
        if writes:
            h.data.uniform_(-9, 9)
        (y * torch.linspace(1, 2, y.numel()).reshape(y.shape)).sum().backward()
        return x.grad

    heard, gradient = hear(lambda: program(True))
    assert torch.equal(gradient, bare(lambda: program(False)))
    assert gradient.count_nonzero()
    assert heard.clobbers == []


# -- the sign of zeros -------------------------------------------------------------------------------------------------


def zeros_flipped(h):
    h.data.mul_(torch.where(h.detach() == 0, -1.0, 1.0))


def zeros_flipped_by_numpy(h):
    array = h.detach().numpy()
    numpy.negative(array, out=array, where=array == 0)


def other_numbers(h):
    h.data.add_(1)


def of_zeros(compute, write, wrap=lambda function, h: function(h)):
    def program(writes):
        x = torch.linspace(-1, 2, 12).reshape(3, 4)
        x[1:, 1:3] = 0
        h = x.requires_grad_() * 1
        y = wrap(compute, h)
        if writes:
            write(h)
        y.sum().backward()
        return x.grad

    return program


MULTIPLY = {
    "product": lambda h: h * h,
    "of a part": lambda h: h[:, ::2] * h[:, 1::2],
    "of an expanded row": lambda h: h[1].expand(5, 4) ** 2,
    "turned": lambda h: h.t() @ h,
    "power": lambda h: h**3,
    "sine": torch.sin,
    "convolution": lambda h: functional.conv1d(h[None], h[:, :3][None]),
    "norm": lambda h: h.norm(),
    "copysign": lambda h: torch.copysign(h, h.detach() + 1),
    "atan2": lambda h: torch.atan2(h, h + 1),
}
DIVIDE = {
    "quotient": lambda h: h.detach().add(1) * (h / h),
    "inverse power": lambda h: h**-3,
    "logarithm": lambda h: h.log(),
    "root of an exponent": lambda h: h ** (h * 0 - 1),
    "xlogy": lambda h: torch.xlogy(h + 1, h),
}
WRAPS = {
    "alone": lambda function, h: function(h),
    "under the program's own hooks": lambda function, h: _under_hooks(function, h),
    "in a region": lambda function, h: checkpoint(function, h, use_reentrant=False),
    "in a region that closes over it": lambda function, h: checkpoint(
        lambda one: function(h) * one, torch.ones(()), use_reentrant=False
    ),
}


def _under_hooks(function, h):
    with saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        return function(h)


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("write", [zeros_flipped, zeros_flipped_by_numpy])
@pytest.mark.parametrize("compute", MULTIPLY.values(), ids=MULTIPLY)
def test_a_zero_of_another_sign_is_no_other_number(compute, write, wrap):
    program = of_zeros(compute, write, wrap)
    heard, gradient = hear(lambda: program(True))
    assert torch.equal(gradient, bare(lambda: program(False)))
    assert heard.clobbers + heard.events == []
    if write is zeros_flipped_by_numpy:
        with noclobber.preserve():
            assert torch.equal(program(True), gradient)


@pytest.mark.parametrize("compute", MULTIPLY.values(), ids=MULTIPLY)
def test_other_numbers_are_told(compute):
    program = of_zeros(compute, other_numbers)
    heard, gradient = hear(lambda: program(True))
    wrong = not torch.equal(gradient, bare(lambda: program(False)))
    assert bool(heard.clobbers) == wrong


@pytest.mark.parametrize("compute", DIVIDE.values(), ids=DIVIDE)
def test_where_backward_divides_by_zero_its_sign_is_told(compute):
    heard, gradient = hear(lambda: of_zeros(compute, zeros_flipped)(True))
    assert not gradient.isfinite().all()
    assert heard.clobbers


class AsksForTheSign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a.abs()

    @staticmethod
    def backward(ctx, gradient):
        return torch.where(ctx.saved_tensors[0].signbit(), -gradient, gradient)


def test_code_in_python_may_ask_for_the_sign():
    program = of_zeros(AsksForTheSign.apply, zeros_flipped)
    heard, gradient = hear(lambda: program(True))
    assert not torch.equal(gradient, bare(lambda: program(False)))
    assert heard.clobbers


def test_zeros_of_both_signs_can_not_be_told_from_other_numbers():
    """A fingerprint is all that is left of what was saved."""

    def both(function, h):
        h.data[1, 1] = -0.0
        return function(h)

    heard, _ = hear(lambda: of_zeros(torch.square, zeros_flipped, both)(True))
    assert heard.clobbers


def test_a_gradient_whose_zeros_change_their_sign_is_no_other():
    def program(factor):
        x = torch.ones(3, requires_grad=True)
        h = x * 1
        h.register_hook(lambda gradient: gradient.mul_(factor))
        y = (x * 1) + h
        (y * torch.zeros(3)).sum().backward()
        return x.grad

    heard, _ = hear(lambda: program(-1))
    assert heard.events == []


@pytest.mark.parametrize("contents", [True, False])
def test_the_workspace_of_an_lstm_is_written_by_its_own_backward(contents):
    def program():
        lstm, x = torch.nn.LSTM(4, 3), torch.randn(5, 2, 4, requires_grad=True)
        result = lstm(x)[0].square().sum()
        assert "MkldnnRnnLayerBackward0" in {node.name() for node in graph.walk([result.grad_fn])}
        first = torch.autograd.grad(result, x, retain_graph=True)[0]
        return torch.stack([first, torch.autograd.grad(result, x)[0]])

    once, again = bare(program)
    assert torch.equal(once, again)
    heard, gradients = hear(program, contents)
    assert not heard.clobbers
    assert torch.equal(gradients[1], once)

    def preserved():
        with noclobber.preserve():
            return program()

    assert torch.equal(bare(preserved)[1], once)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


PRODUCTS = {
    "mul": (torch.mul, [(3,), (3,)]),
    "div": (torch.div, [(3,), (3,)]),
    "dot": (torch.dot, [(3,), (3,)]),
    "mm": (torch.mm, [(2, 3), (3, 2)]),
    "mv": (torch.mv, [(2, 3), (3,)]),
    "bmm": (torch.bmm, [(2, 2, 3), (2, 3, 2)]),
    "addmm": (torch.addmm, [(2, 2), (2, 3), (3, 2)]),
    "addmv": (torch.addmv, [(2,), (2, 3), (3,)]),
    "addbmm": (torch.addbmm, [(2, 2), (2, 2, 3), (2, 3, 2)]),
    "baddbmm": (torch.baddbmm, [(2, 2, 2), (2, 2, 3), (2, 3, 2)]),
    "addcmul": (torch.addcmul, [(3,), (3,), (3,)]),
    "linear": (functional.linear, [(2, 3), (4, 3), (4,)]),
    "conv": (functional.conv1d, [(1, 2, 5), (3, 2, 2), (3,)]),
    "conv2d": (functional.conv2d, [(1, 2, 5, 5), (3, 2, 2, 2), (3,)]),
    "layer_norm": (lambda x, w, b: functional.layer_norm(x, (3,), w, b), [(2, 3), (3,), (3,)]),
}


@pytest.mark.parametrize("asked", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize("how", ["grad", "inputs", "computed"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_what_only_an_unasked_gradient_needs_is_not_read(product, how, written, asked):
    function, shapes = PRODUCTS[product]

    def program(writes):
        leaves = [numbers(*shape) for shape in shapes]
        given = [leaf * 1 for leaf in leaves] if how == "computed" else leaves
        result = function(*given).sum()
        wanted = [leaves[number] for number in asked]
        if writes:
            given[written].data.mul_(3)
        if how == "inputs":
            result.backward(inputs=wanted)
            return [one.grad for one in wanted]
        return list(torch.autograd.grad(result, wanted))

    right = bare(lambda: program(False))
    heard, found = hear(lambda: program(True))
    assert bool(heard.clobbers) == (not all(torch.equal(one, other) for one, other in zip(right, found, strict=True)))


class Named(torch.autograd.Function):
    """A Function whose ctx has an attribute that nodes of leaves have."""

    @staticmethod
    def forward(ctx, x):
        ctx.variable = [1, 2]
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_ctx_may_have_any_attribute():
    def program():
        a, b = numbers(3), numbers(3)
        y = Named.apply(a) * b
        b.data.mul_(3)
        return torch.autograd.grad(y.sum(), a)

    assert len(hear(program)[0].clobbers) == 1


def test_a_hook_may_read_what_only_an_unasked_gradient_needs():
    def program():
        a, s = numbers(3), numbers(3)
        y = a * s
        node = y.grad_fn
        node.register_hook(lambda into, _: (into[0] * node._saved_self, into[1]))
        a.data.mul_(3)
        return torch.autograd.grad(y.sum(), a)

    assert len(hear(program)[0].clobbers) == 1
