"""Tensors kept on the ctx of a custom Function: a changed one that backward reads is heard, nothing else is."""

import warnings
from collections import deque, namedtuple
from itertools import count

import pytest
import torch
from torch.autograd.function import once_differentiable

import noclobber
from tests.observe.hearing import bare, hear, is_marked
from tests.observe.used_again import until_used_again

_OPERATORS = count()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x  # saved
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x * g


class Listed(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.all = [3, x]  # saved
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return ctx.all[0] * ctx.all[1] * g - ctx.all[1] * g


class Queued(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.all = deque([x], maxlen=2)  # saved
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.all[0] * g


class InTuples(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.all = ((x.shape, 2), (x,))  # saved
        return x * x

    @staticmethod
    def backward(ctx, g):
        return ctx.all[0][1] * ctx.all[1][0] * g


Pair = namedtuple("Pair", ["by", "of"])


class Nested(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.all = {"pairs": [Pair(2, x)]}  # saved
        return x * x

    @staticmethod
    def backward(ctx, g):
        ((by, of),) = ctx.all["pairs"]
        return by * of * g


class InSetup(Square):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.kept = {"x": inputs[0]}  # saved

    @staticmethod
    def backward(ctx, g):
        return InSetup.by_name(ctx, "kept") * g

    @staticmethod
    def by_name(ctx, name):
        return 2 * getattr(ctx, name)["x"]


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()  # saved
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return ctx.y * g


class Unread(Square):
    """Keeps x for a look at it later; backward takes the one that was saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        ctx.save_for_backward(x.clone())
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class ReadOnDemand(Unread):
    @staticmethod
    def backward(ctx, g):
        ctx.looked = ctx.x if g.dim() > 5 else None
        return Unread.backward(ctx, g)


class FinishedInForward(Square):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.clone()
        ctx.x.mul_(0)
        y = x * x
        ctx.x.add_(x)
        return y


class Computing(Square):
    """Whose backward computes in the memory of what it keeps."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.clone()  # saved
        return x * x

    @staticmethod
    def backward(ctx, g):
        return ctx.x.mul_(2) * g  # written


class Averaging(Computing):
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x.clone() * g + 0 * ctx.x.mul_(0.9).add_(g)


class Lazy(Computing):
    """Whose backward computes once what it then keeps."""

    @staticmethod
    def forward(ctx, x):
        ctx.x, ctx.is_ready = x.log(), False
        return x * x

    @staticmethod
    def backward(ctx, g):
        if not ctx.is_ready:
            ctx.x.exp_()
            ctx.is_ready = True
        return 2 * ctx.x * g


GIVEN = torch.ones(3)


class Given(Computing):
    """Whose backward goes on with what others hold too."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = GIVEN
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        ctx.x.mul_(0.5)
        return 2 * ctx.saved_tensors[0] * g


class Counting(Computing):
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x.clone() * g + 0 * ctx.x.add_(1)


class Filling(Computing):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.x = torch.empty_like(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return ctx.x.copy_(ctx.saved_tensors[0]).mul_(2).mul_(g)


class Bounding(Computing):
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x.clamp_(-9, 2) * g


class Masking(Computing):
    """Whose backward leaves the same when it runs again."""

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x.mul_(torch.tensor([1.0, 0.0, 1.0])) * g


class Returning(Computing):
    """Whose backward puts back what it has changed."""

    @staticmethod
    def backward(ctx, g):
        gradient = ctx.x.mul_(2) * g
        ctx.x.mul_(0.5)
        return gradient


def counted(h, y):
    with torch.no_grad():
        h.mul_(3)  # written


def counted_after_another(h, y):
    h.data.mul_(1)
    with torch.no_grad():
        h.mul_(3)  # written


def through_data(h, y):
    h.data.mul_(3)  # written


def assigned(h, y):
    h.data = torch.zeros(3)  # written


def set_elsewhere(h, y):
    with torch.no_grad():
        h.set_(torch.zeros(3))  # written


def of_the_result(h, y):
    y.data.mul_(2)  # written


def through_numpy(h, y):
    h.detach().numpy()[:] = 9  # written


def nothing(h, y):
    pass


def the_same_bytes(h, y):
    h.data.copy_(h.detach().clone())


def gradient_of(function, write):
    def program():
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        h = x * 1.5
        y = function.apply(h)  # applied
        write(h, y)
        y.sum().backward()
        return x.grad

    return program


WRONG = [
    (Square, counted, "ctx.x"),
    (Square, counted_after_another, "ctx.x"),
    (Square, through_data, "ctx.x"),
    (Square, assigned, "ctx.x"),
    (Square, set_elsewhere, "ctx.x"),
    (Square, through_numpy, "ctx.x"),
    (Listed, counted, "ctx.all[1]"),
    (Listed, through_numpy, "ctx.all[1]"),
    (Queued, counted, "ctx.all[0]"),
    (InTuples, counted, "ctx.all[1][0]"),
    (Nested, counted, "ctx.all['pairs'][0][1]"),
    (InSetup, through_data, "ctx.kept['x']"),
    (Exponential, of_the_result, "ctx.y"),
]


@pytest.mark.parametrize(("function", "write", "field"), WRONG)
@pytest.mark.parametrize("contents", [True, False])
def test_a_changed_stash_that_backward_reads(function, write, field, contents):
    if write is through_numpy and not contents:
        pytest.skip("only the bytes tell")
    program = gradient_of(function, write)
    heard, gradient = hear(program, contents)
    right = bare(gradient_of(function, nothing))
    assert not torch.equal(gradient, right)
    assert torch.equal(gradient, bare(program))
    (clobber,) = heard.clobbers
    save = clobber.save
    assert (save.unchecked, save.field, save.node, clobber.message) == (
        "ctx",
        field,
        function.__name__ + "Backward",
        None,
    )
    assert is_marked(save.site, "saved")
    assert is_marked(save.applied, "applied")
    if write is not through_numpy:
        assert is_marked(clobber.writes[-1].site, "written")


class Reversible(torch.autograd.Function):
    """Frees its input in forward, and computes it again in backward."""

    @staticmethod
    def forward(ctx, x):
        y = x.detach() * 3.0
        x.untyped_storage().resize_(0)
        ctx.inputs, ctx.outputs = [x], [y]
        return y

    @staticmethod
    def backward(ctx, g):
        (x,), (y,) = ctx.inputs, ctx.outputs
        with torch.no_grad():
            again = y * (1.0 / 3.0)
            x.untyped_storage().resize_(again.numel() * again.element_size())
            x.set_(again)
        return g * 3.0


def test_what_the_program_frees_and_computes_again_is_not_compared():
    def program():
        w = torch.rand(64, generator=torch.Generator().manual_seed(0)).requires_grad_()
        x = w * 3.0
        for _ in range(4):
            x = Reversible.apply(x)
        x.clone().pow(2).sum().backward()
        return w.grad

    bare_gradient = bare(program)
    with warnings.catch_warnings(), noclobber.watch() as watched:
        warnings.simplefilter("error")
        assert torch.equal(program(), bare_gradient)
    assert any("whose memory the program frees" in what for what in watched.report.coverage.unseen)
    assert vars(torch.UntypedStorage).get("resize_") is None


def test_what_an_operator_of_the_program_keeps_on_its_ctx():
    @torch.library.custom_op(f"noclobber_test::op{next(_OPERATORS)}", mutates_args=())
    def times(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x * b

    def keep(ctx, inputs, output):
        ctx.b = inputs[1]  # saved

    times.register_autograd(lambda ctx, g: (g * ctx.b, None), setup_context=keep)

    def program():
        x, b = torch.ones(3, requires_grad=True), torch.full((3,), 3.0)
        y = times(x, b)
        b.zero_()  # written
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program)
    assert gradient.tolist() == [0.0] * 3
    (clobber,) = heard.clobbers
    assert (clobber.save.field, clobber.save.unchecked) == ("ctx.b", "ctx")
    assert is_marked(clobber.save.site, "saved")
    assert is_marked(clobber.writes[-1].site, "written")


class Recursive(Square):
    """Sets an attribute on the node of another call of itself, which runs within it."""

    @staticmethod
    def forward(ctx, x, depth=1):
        ctx.x = x  # saved
        if depth:
            with torch.enable_grad():
                inner = Recursive.apply(x.detach().requires_grad_(), depth - 1)
            inner.grad_fn.tag = [torch.ones(1)]
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.x * g, None


def test_a_call_within_another_of_the_same_function_keeps_its_own():
    heard, _ = hear(gradient_of(Recursive, counted))
    assert [one.save.field for one in heard.clobbers] == ["ctx.x"]


RIGHT = [
    (Square, nothing),
    (Square, the_same_bytes),
    (Unread, through_data),
    (Unread, counted),
    (ReadOnDemand, through_data),
    (ReadOnDemand, counted),
    (FinishedInForward, nothing),
    (FinishedInForward, counted),
]


@pytest.mark.parametrize(("function", "write"), RIGHT)
@pytest.mark.parametrize("contents", [True, False])
def test_right_gradients_are_quiet(function, write, contents):
    heard, gradient = hear(gradient_of(function, write), contents)
    assert torch.equal(gradient, bare(gradient_of(function, nothing)))
    assert not heard.clobbers


def run_again(function):
    def program():
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = function.apply(x)
        return [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2)]

    return program


@pytest.mark.parametrize("contents", [True, False])
def test_a_backward_that_computes_in_what_it_keeps_gives_another_gradient_when_it_runs_again(contents):
    program = run_again(Computing)
    first, second = program()
    assert torch.equal(first, torch.tensor([2.0, 4.0, 6.0]))
    assert not torch.equal(first, second)
    heard, _ = hear(program, contents)
    (clobber,) = heard.clobbers
    assert clobber.save.field == "ctx.x"
    assert is_marked(clobber.save.site, "saved")
    assert all(is_marked(write.site, "written") for write in clobber.writes)
    with noclobber.preserve(), pytest.raises(noclobber.ClobberError, match="holds other bytes"):
        program()


@pytest.mark.parametrize("function", [Square, Counting, Filling, Bounding, Averaging, Lazy, Given, Masking, Returning])
def test_what_a_backward_fills_or_adds_to_is_its_own(function):
    heard, _ = hear(run_again(function))
    assert heard.clobbers == []


@pytest.mark.parametrize("contents", [True, False])
def test_another_tensor_put_where_one_was(contents):
    """Its `id` is that of the one which the Function put there."""

    def program():
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = Listed.apply(x * 1.5)
        kept = y.grad_fn.all
        was = id(kept.pop())
        kept.append(until_used_again(lambda: torch.zeros(3), id, was))
        y.sum().backward()
        return x.grad

    heard, gradient = hear(program, contents)
    assert torch.equal(gradient, bare(program))
    assert heard.clobbers == []


@pytest.mark.parametrize(
    ("write", "is_state"),
    [
        (lambda state, gradient: state.add_(gradient.abs()), True),
        (lambda state, gradient: state.mul_(0.9).add_(gradient), True),
        (lambda state, gradient: state.mul_(gradient), False),
    ],
    ids=["count", "average", "table"],
)
def test_a_state_that_several_nodes_hold_is_meant_for_the_next_backward(write, is_state):
    state = torch.full((3,), 0.5)

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.state = state
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            held = ctx.state
            write(held, gradient)
            return gradient * 2

    x = torch.ones(3, requires_grad=True)
    with warnings.catch_warnings(), noclobber.watch() as watched:
        warnings.simplefilter("ignore")
        (Counting.apply(x) * 3 + Counting.apply(x) * 2).sum().backward()
    assert [found.code for found in watched.findings] == ([] if is_state else ["NC204"])
    assert x.grad.tolist() == [10.0] * 3
