"""Writes that autograd is kept from seeing: told where they make a gradient wrong, and only there."""

import contextlib
import itertools
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import noclobber
from noclobber.observe.arming.recorder import CONTEXT
from tests.observe.used_again import until_used_again


def warned(program):
    with warnings.catch_warnings(), noclobber.watch() as watched:
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        program()
    return [finding.code for finding in watched.findings]


def gradient(body):
    x = torch.linspace(-1, 1, 4, requires_grad=True)
    body(x * 2).sum().backward()
    return x.grad


def under_no_grad(write):
    def body(h):
        with torch.no_grad():
            write(h)
        return h * 3

    return body


def through_data(write):
    def body(h):
        write(h.data)
        return h * 3

    return body


def through_detach(write):
    def body(h):
        write(h.detach())
        return h * 3

    return body


def assigned(value):
    def body(h):
        h.data = value(h.data)
        return h * 3

    return body


class Operators(TorchDispatchMode):
    """Notes the operators that it sees."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("body", [under_no_grad(lambda h: h.mul_(2)), through_data(lambda h: h.mul_(2))])
def test_what_it_computes_itself_is_not_seen_by_the_modes_of_the_program(body):
    def seen():
        with Operators() as operators:
            h = body(torch.ones(3, requires_grad=True) * 2)
        h.sum().backward()
        return operators.names

    once = seen()
    with pytest.warns(noclobber.ClobberWarning), noclobber.watch():
        assert seen() == once


VALUES = {
    "times": lambda d: d * torch.tensor([2.0, 0, 2, 0]),
    "clamp": lambda d: d.clamp(-1, 1),
    "round": torch.round,
}


@pytest.mark.parametrize("value", VALUES)
def test_values_assigned_to_the_data_of_what_was_computed(value):
    right = gradient(lambda h: VALUES[value](h) * 3)
    assert not torch.equal(gradient(assigned(VALUES[value])), right)
    assert warned(lambda: gradient(assigned(VALUES[value]))) == ["NC208"]


def test_values_from_a_graph_assigned_to_what_was_computed():
    def body(h):
        h.data = h.relu()
        return h * 3

    assert warned(lambda: gradient(body)) == ["NC208"]


def of_loss(write, inside=torch.enable_grad):
    x = torch.linspace(-1, 1, 4, requires_grad=True)
    loss = (x * x).sum()
    with inside():
        loss = write(loss)
    loss.backward()
    return x.grad


LOSSES = {
    "through data": lambda: of_loss(lambda loss: (loss.data.div_(2), loss)[1]),
    "under no_grad": lambda: of_loss(lambda loss: loss.div_(2), torch.no_grad),
    "assigned": lambda: of_loss(lambda loss: (setattr(loss, "data", loss.data / 2), loss)[1]),
}


@pytest.mark.parametrize("program", LOSSES.values(), ids=LOSSES.keys())
def test_a_loss_that_is_changed_before_its_own_backward(program):
    right = of_loss(lambda loss: loss / 2)
    assert torch.equal(program(), 2 * right)
    assert warned(program) == ["NC208"]


def test_a_loss_that_is_changed_where_no_gradient_begins():
    def program(weight):
        y = torch.ones(4, requires_grad=True).sin()
        y.data.mul_(torch.tensor([1.0, 1, 3, 1]))
        y.backward(torch.tensor([1.0, 1, weight, 1]))

    assert warned(lambda: program(0)) == []
    assert warned(lambda: program(1)) == ["NC208"]
    assert warned(lambda: of_loss(lambda loss: (loss.data.add_(2), loss)[1])) == []


def test_other_memory_at_the_address_of_what_was_computed_and_moved():
    def program():
        h = torch.ones(4000, requires_grad=True) * 2
        address = h.data_ptr()
        h.data = h.data * 1
        reused.extend(one for one in (torch.empty(4000) for _ in range(50)) if one.data_ptr() == address)
        for one in reused:
            one.fill_(7)
        (h * 3).sum().backward()

    reused = []
    for _ in range(20):
        assert warned(program) == []
        if reused:
            return
    pytest.skip("the allocator gave the address to nobody")


def test_what_an_operator_makes_larger_at_an_address_whose_data_was_taken():
    def program():
        h = torch.ones(4, requires_grad=True) * 2
        torch.abs(-torch.ones(4), out=h.data.set_(h.data.untyped_storage(), 0, (0,)))
        return h.tolist()

    with noclobber.watch():
        assert program() == [1.0] * 4


def noisy(h):
    h.data = h.data + torch.ones(4)
    return h * 3


@pytest.mark.parametrize(
    "body",
    [noisy, assigned(lambda d: d.clamp(-9, 9)), assigned(torch.clone)],
    ids=["a shift", "no element changed", "a copy"],
)
def test_values_assigned_that_leave_the_gradient_as_it_is(body):
    assert torch.equal(gradient(body), gradient(lambda h: h * 3))
    assert warned(lambda: gradient(body)) == []


def shifted(h):
    h.data = h.data - h.data.max()
    return h * WEIGHTS


def shifted_by_a_name(h):
    largest = h.data.max()
    h.data = h.data - largest
    return h * WEIGHTS


def shifted_in_place(h):
    h.data.sub_(h.data.max())
    return h * WEIGHTS


def shifted_and_more(h):
    with torch.no_grad():
        h -= h.max()
        h += 1
    return h * WEIGHTS


def shifted_before_and_after_it_is_read(h):
    h.data -= h.data.max()
    out = h * WEIGHTS
    h.data += 1
    return out


WEIGHTS = torch.tensor([1.0, 2, 3, 4])


def shifted_in_a_part(h):
    everything = torch.arange(4)
    with torch.no_grad():
        h[everything] -= h.max()
    return h * WEIGHTS


@pytest.mark.parametrize(
    "body",
    [
        shifted,
        shifted_by_a_name,
        shifted_in_place,
        shifted_in_a_part,
        shifted_and_more,
        shifted_before_and_after_it_is_read,
    ],
)
def test_what_is_taken_from_values_is_computed_from_them(body):
    right = gradient(lambda h: (h - h.max()) * WEIGHTS)
    assert torch.equal(right, torch.tensor([2.0, 4, 6, -12]))
    assert torch.equal(gradient(body), 2 * WEIGHTS)
    assert warned(lambda: gradient(body)) == ["NC208"]


def rounded_straight_through(h):
    h.data = h.data + (h.round() - h).detach()
    return h * WEIGHTS


def noise_of_the_same_shape(h):
    noise = torch.zeros_like(h) + 2
    h.data = h.data + noise
    return h * WEIGHTS


def rounded_straight_through_in_place(h):
    h.data.add_(h.data.round() - h.data)
    return h * WEIGHTS


def shifted_by_a_constant(h):
    h.data = h.data - (h.detach().max() + h.min().item())
    return h * WEIGHTS


def noise_in_place(h):
    with torch.no_grad():
        for _ in range(3):
            h += torch.randn_like(h) * 0.1
    return h * WEIGHTS


def noise_in_a_part(h):
    first = torch.tensor([0, 1])
    with torch.no_grad():
        h[first] += 1
    return h * WEIGHTS


def noise_of_a_product(h):
    h.data.addcmul_(torch.ones(4), torch.ones(4), value=0.1)
    return h * WEIGHTS


def noise_at_indexes(h):
    with torch.no_grad():
        h.index_put_((torch.tensor([0, 0]),), torch.ones(2), accumulate=True)
    return h * WEIGHTS


@pytest.mark.parametrize(
    "body",
    [
        rounded_straight_through,
        noise_of_the_same_shape,
        rounded_straight_through_in_place,
        noise_in_a_part,
        noise_of_a_product,
        noise_at_indexes,
        shifted_by_a_constant,
        noise_in_place,
    ],
)
def test_what_is_added_to_values_and_has_no_gradient_of_its_own(body):
    assert torch.equal(gradient(body), gradient(lambda h: h * WEIGHTS))
    assert warned(lambda: gradient(body)) == []


def score(shift):
    """What a shift of scores by their largest does before a softmax: nothing, to the values and to the gradient."""
    x = torch.randn(3, 4, requires_grad=True, generator=torch.Generator().manual_seed(0))
    scores = x * 3
    shift(scores)
    (scores.softmax(-1)[:, 0] * WEIGHTS[:3]).sum().backward()
    return x.grad


def by_the_largest_in_place(h):
    h.data.sub_(h.data.amax(-1, keepdim=True))


def by_the_largest_assigned(h):
    h.data = h.data - h.data.amax(-1, keepdim=True)


@pytest.mark.parametrize("shift", [by_the_largest_in_place, by_the_largest_assigned])
def test_a_shift_that_the_loss_does_not_see(shift):
    torch.testing.assert_close(score(shift), score(lambda h: None))
    assert warned(lambda: score(shift)) == []


def test_a_scale_is_not_hidden_by_what_is_added_later():
    def body(h):
        h.data.mul_(2)
        h.data.add_(1)
        return h * 3

    assert warned(lambda: gradient(body)) == ["NC208"]


def test_a_scale_that_was_read_is_not_hidden_by_a_later_one():
    def body(h):
        h.data.mul_(2)
        out = h * 3
        h.data.mul_(5)
        return out + 0 * h.sum().detach()

    assert warned(lambda: gradient(body)) == ["NC208"]


def by_numpy(h):
    h.detach().numpy()[:] *= 3
    return h.square()


def by_numpy_in_part(h):
    shown = h.data[1:].numpy()
    shown.clip(-0.5, 0.5, out=shown)
    return h.square()


def by_numpy_before_a_sum_of_something_else(h):
    h.detach().numpy()[:] *= 3
    total = torch.zeros(4)
    total += h * h
    return total


def by_numpy_through_what_it_was_given_earlier(h):
    kept = h.detach().numpy()
    h.data.numpy().sum()
    kept += h.data.numpy().max()
    return h.square()


@pytest.mark.parametrize(
    "body",
    [
        by_numpy,
        by_numpy_in_part,
        by_numpy_before_a_sum_of_something_else,
        by_numpy_through_what_it_was_given_earlier,
    ],
)
def test_what_numpy_writes_before_anything_saves_it(body):
    """The right gradient is that of the same function in operators of torch."""
    right = {
        by_numpy: lambda h: (h * 3).square(),
        by_numpy_before_a_sum_of_something_else: lambda h: (h * 3).square(),
        by_numpy_in_part: lambda h: torch.cat([h[:1], h[1:].clamp(-0.5, 0.5)]).square(),
        by_numpy_through_what_it_was_given_earlier: lambda h: (h + h.max()).square(),
    }
    assert not torch.equal(gradient(body), gradient(right[body]))
    with warnings.catch_warnings(), noclobber.watch(contents=True) as watched:
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        gradient(body)
    (finding,) = watched.findings
    assert finding.code == "NC208"
    assert "numpy changes it somewhere from here on" in finding.labels[0].text


@pytest.mark.parametrize("write", [True, False])
def test_a_large_tensor_that_numpy_gets(write):
    x = torch.ones(1 << 17, requires_grad=True)
    with warnings.catch_warnings(), noclobber.watch(contents=True) as watched:
        warnings.simplefilter("ignore", noclobber.ClobberWarning)
        h = x * 2
        array = h.detach().numpy()
        if write:
            array *= 3
        h.square().sum().backward()
    assert [one.code for one in watched.findings] == ["NC208"] * write


def read_by_numpy(h):
    h.detach().numpy().sum()
    return h.square()


def written_by_torch_since(h):
    shown = h.detach().numpy()
    h.mul_(3)
    return h.square() + float(shown.sum()) * 0


def where_no_gradient_arrives(h):
    h.detach().numpy()[:2] = 0
    return h.relu().square()


@pytest.mark.parametrize("body", [read_by_numpy, written_by_torch_since, where_no_gradient_arrives])
def test_what_numpy_got_and_did_not_spoil(body):
    with noclobber.watch(contents=True) as watched:
        gradient(body)
    assert watched.findings == ()


def test_an_alias_that_is_kept_and_never_written():
    def program():
        h = torch.linspace(-1, 1, 4, requires_grad=True) * 2
        kept = h.detach()
        mean = kept.clone().mul_(2)
        (h * 3).sum().backward()
        return mean

    assert warned(program) == []


def test_a_state_that_is_reset_below_its_last_use():
    def program():
        h = torch.linspace(-1, 1, 4, requires_grad=True) * 2
        loss = (h * 3).sum()
        state = h.detach()
        state *= torch.tensor([1.0, 0, 1, 0])
        loss.backward()

    assert warned(program) == []


def test_a_loss_that_is_changed_for_a_log():
    def program():
        loss = (torch.linspace(-1, 1, 4, requires_grad=True) * 2).sum()
        shown = loss.detach()
        shown *= 100
        loss.backward()

    assert warned(program) == []


class Keeps(torch.Tensor):
    """Keeps its type in the functions of a table, as torchvision's images do."""

    KEEPING = frozenset({torch.Tensor.detach})

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return out.as_subclass(cls) if func in cls.KEEPING else out


def test_detach_is_found_in_a_table_of_the_program():
    native, image = torch.Tensor.detach, torch.ones(3).as_subclass(Keeps)
    assert type(image.detach()) is Keeps
    with noclobber.watch():
        assert type(image.detach()) is Keeps
        assert torch.Tensor.detach == native
        assert {native: 1}[torch.Tensor.detach] == {torch.Tensor.detach: 1}[native] == 1
        assert pickle.loads(pickle.dumps(torch.Tensor.detach)) == native
        assert torch.Tensor.detach.__name__ == "detach"
        assert torch.Tensor.detach.__doc__ == native.__doc__
        assert torch.overrides.is_tensor_method_or_property(torch.Tensor.detach)
        assert repr(torch.Tensor.detach) == repr(native)
        assert torch.Tensor.detach.__objclass__ is native.__objclass__
        assert not torch.Tensor.detach.__get__(torch.ones(1, requires_grad=True))().requires_grad
        with pytest.raises(TypeError, match="detach"):
            torch.Tensor.detach()
    assert torch.Tensor.detach is native


def tracked(write):
    def body(h):
        write(h)
        return h * 3

    return body


HIDDEN = pytest.mark.parametrize("hidden", [under_no_grad, through_data, through_detach])
WRITES = {
    "mul_": lambda h: h.mul_(torch.tensor([2.0, 0, 2, 0])),
    "relu_": lambda h: h.relu_(),
    "clamp_": lambda h: h.clamp_(-1, 1),
    "zero_": lambda h: h.zero_(),
    "masked": lambda h: h.__setitem__(h < 0, 0.0),
    "slice": lambda h: h[1:].mul_(2),
}
HARMLESS = {
    "add_": lambda h: h.add_(5),
    "sub_": lambda h: h.sub_(torch.ones(4)),
    "no element changed": lambda h: h.clamp_(-9, 9),
    "times one": lambda h: h.mul_(1),
}


@HIDDEN
@pytest.mark.parametrize("write", WRITES)
def test_a_write_with_a_derivative_of_its_own(write, hidden):
    assert not torch.equal(gradient(hidden(WRITES[write])), gradient(tracked(WRITES[write])))
    assert warned(lambda: gradient(hidden(WRITES[write]))) == ["NC208"]


@HIDDEN
@pytest.mark.parametrize("write", HARMLESS)
def test_a_write_that_leaves_the_gradient_as_it_is(write, hidden):
    assert torch.equal(gradient(hidden(HARMLESS[write])), gradient(tracked(HARMLESS[write])))
    assert warned(lambda: gradient(hidden(HARMLESS[write]))) == []


@HIDDEN
@pytest.mark.parametrize(("least", "codes"), [(-9, []), (2, ["NC208"])])
def test_of_a_large_tensor_only_the_bytes_are_compared(least, codes, hidden):
    def program():
        h = torch.ones(1 << 21, requires_grad=True) * 1
        hidden(lambda whole: whole.clamp_(min=least))(h).sum().backward()

    assert warned(program) == codes


def adapted(create_graph, write):
    """The inner step of a meta-learner, whose loop the source does not follow."""
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    fast = {"w": x.clone()}
    found = torch.autograd.grad((fast["w"] ** 3).sum(), list(fast.values()), create_graph=create_graph)
    for (name, weight), gradient in zip(list(fast.items()), found, strict=True):
        fast[name] = write(weight, 0.1 * gradient)
    (fast["w"] ** 2).sum().backward()
    return x.grad


@pytest.mark.parametrize(("create_graph", "codes"), [(True, ["NC208"]), (False, [])])
def test_what_is_added_through_data_is_of_the_tensor_itself_where_the_graph_says_so(create_graph, codes):
    def wrote(weight, step):
        weight.data.sub_(step)
        return weight

    right = adapted(create_graph, torch.sub)
    assert torch.equal(adapted(create_graph, wrote), right) == (codes == [])
    assert warned(lambda: adapted(create_graph, wrote)) == codes


@HIDDEN
def test_a_part_that_gets_no_gradient_may_change(hidden):
    def body(h):
        hidden(lambda whole: whole[-1:].zero_())(h)
        return h[:-1] * 3

    assert torch.equal(gradient(body), gradient(lambda h: h[:-1] * 3))
    assert warned(lambda: gradient(body)) == []


STRAIGHT_THROUGH = {
    "round_": lambda h: h.div_(0.5).round_().clamp_(-1, 1).mul_(0.5),
    "sign_": lambda h: h.mul_(2).sign_(),
}


@HIDDEN
@pytest.mark.parametrize("write", STRAIGHT_THROUGH)
def test_a_gradient_that_should_pass_what_has_none(write, hidden):
    """Recorded, such a write would leave no gradient at all: it is hidden so that the gradient passes unchanged."""
    rounded = STRAIGHT_THROUGH[write]
    assert not gradient(tracked(rounded)).any()
    right = gradient(lambda h: (h + (rounded(h.detach().clone()) - h).detach()) * 3)
    assert torch.equal(gradient(hidden(rounded)), right)
    assert warned(lambda: gradient(hidden(rounded))) == []


def test_masked_scores_get_no_gradient_through_softmax():
    """The oldest attention code writes its mask through `.data`; softmax gives what it masked no gradient."""
    mask = torch.tensor([False, True, False, True])

    def attend(h):
        h.data.masked_fill_(mask, float("-inf"))
        return torch.softmax(h, 0)[0] * 3

    right = gradient(lambda h: torch.softmax(h.masked_fill(mask, float("-inf")), 0)[0] * 3)
    torch.testing.assert_close(gradient(attend), right)
    assert warned(lambda: gradient(attend)) == []


def test_what_was_computed_before_the_write_is_not_its_business():
    def body(h):
        out = h.sin().sum() + h.sum()
        with torch.no_grad():
            other = h.detach().clone()
            other.mul_(0)
        return out

    assert warned(lambda: gradient(body)) == []


def meta_learning(write):
    w, b = torch.ones(2, requires_grad=True), torch.zeros(1, requires_grad=True)
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])

    def loss(w, b):
        return (torch.tanh(x @ w + b) - 1).square().sum()

    inner = torch.autograd.grad(loss(w, b), (w, b), create_graph=True)
    w, b = write(w, b, inner)
    loss(w, b).backward()


def adapted_in_place(w, b, inner):
    for p, g in zip((w, b), inner, strict=True):
        p.data -= 0.1 * g
    return w, b


def adapted_by_an_operator(w, b, inner):
    w.data.sub_(0.1 * inner[0])
    b.data.sub_(0.1 * inner[1])
    return w, b


def adapted_through_detach(w, b, inner):
    for p, g in zip((w, b), inner, strict=True):
        p.detach().sub_(0.1 * g)
    return w, b


def adapted_out_of_place(w, b, inner):
    return w - 0.1 * inner[0], b - 0.1 * inner[1]


def adapted_without_a_graph(w, b, inner):
    for p, g in zip((w, b), inner, strict=True):
        p.data -= 0.1 * g.detach()
    return w, b


@pytest.mark.parametrize("write", [adapted_in_place, adapted_by_an_operator, adapted_through_detach])
def test_a_graph_is_cut_off_at_a_parameter(write):
    assert set(warned(lambda: meta_learning(write))) == {"NC208"}


@pytest.mark.parametrize("write", [adapted_out_of_place, adapted_without_a_graph])
def test_no_graph_is_cut_off(write):
    assert warned(lambda: meta_learning(write)) == []


def test_a_generated_weight_assigned_to_data():
    maker, conv, x = nn.Linear(1, 9), nn.Conv2d(1, 1, 3), torch.randn(1, 1, 5, 5)

    def cut():
        conv.weight.data = maker(torch.ones(1)).view(1, 1, 3, 3)
        conv(x).sum().backward()

    def whole():
        weight = maker(torch.ones(1)).view(1, 1, 3, 3)
        torch.func.functional_call(conv, {"weight": weight}, x).sum().backward()

    assert warned(cut) == ["NC208"]
    assert maker.weight.grad is None
    assert warned(whole) == []
    assert maker.weight.grad is not None


def copied(leaf, source):
    leaf.data.copy_(source)


def given(leaf, source):
    leaf.data = source


class ActNorm(nn.Module):
    """Takes its scale from the first batch, or from every batch."""

    def __init__(self, write, *, once=True):
        super().__init__()
        self.scale, self.write, self.once, self.ready = nn.Parameter(torch.zeros(3)), write, once, False

    def forward(self, x):
        if not (self.once and self.ready):
            self.write(self.scale, self.values(x))
            self.ready = True
        return x * self.scale.exp()

    def values(self, x):
        return -x.std(0).log()


class DetachedActNorm(ActNorm):
    def values(self, x):
        return super().values(x).detach()


def item_by_item(leaf, source):
    for index, value in enumerate(source):
        leaf.data[index] = value


def trained_flow(norm):
    torch.default_generator.manual_seed(0)
    flow = nn.Sequential(nn.Linear(3, 3), norm, nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(flow.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        flow(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
    return [parameter.grad for parameter in flow.parameters()]


@pytest.mark.parametrize("write", [copied, given, item_by_item])
def test_first_values_from_the_graph(write):
    assert warned(lambda: trained_flow(ActNorm(write))) == []
    torch.testing.assert_close(trained_flow(ActNorm(write)), trained_flow(DetachedActNorm(write)), rtol=0, atol=0)
    assert "NC208" in warned(lambda: trained_flow(ActNorm(write, once=False)))


def used(leaf):
    return [(leaf * 1).sum()]


def differentiated(leaf):
    (leaf * 1).sum().backward()


def unused(leaf):
    pass


@pytest.mark.parametrize(
    ("before", "found"),
    [(unused, []), (used, ["NC208"]), (differentiated, ["NC208"])],
    ids=["unused", "used", "differentiated"],
)
@pytest.mark.parametrize("write", [copied, given])
def test_values_from_the_graph_after_a_use(write, before, found):
    def program():
        leaf, source = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
        kept = before(leaf)
        write(leaf, source * 2)
        (leaf * source).sum().backward()
        return kept

    assert warned(program) == found


def test_values_from_the_graph_taken_before_a_use_and_written_after_it():
    def program():
        leaf, source = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
        data = leaf.data
        early = leaf + 1
        data.copy_(source * 2)
        (early + leaf * source).sum().backward()

    assert warned(program) == ["NC208"]


def test_what_another_thread_does_hides_no_graph_that_is_cut_off_at_a_parameter():
    def program():
        p, g = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        (p * 2).sum().backward()
        data = p.data
        thread = threading.Thread(target=backwards, args=(3,))
        thread.start()
        thread.join()
        data[...] = g * 2
        (p * 3).sum().backward()
        assert g.grad is None

    assert warned(program) == ["NC208"]


def test_first_values_whose_source_shares_only_a_part_with_the_loss():
    def program():
        trunk, maker, leaf = nn.Linear(3, 3), nn.Linear(3, 3), nn.Parameter(torch.zeros(3))
        features = trunk(torch.ones(3)).tanh()
        leaf.data = maker(features)
        (leaf * features).sum().backward()

    assert warned(program) == ["NC208"]


@pytest.mark.parametrize("write", [copied, given])
def test_first_values_from_leaves_that_are_gone(write):
    def program():
        leaf = nn.Parameter(torch.zeros(3))
        write(leaf, torch.ones(3, requires_grad=True) * 2)
        (leaf * 2).sum().backward()

    assert warned(program) == []


def test_a_graph_holds_the_leaves_that_it_depends_on():
    leaf = nn.Parameter(torch.zeros(3))
    assert leaf._use_count() == 1
    out = leaf + 1
    assert leaf._use_count() == 2
    del out
    assert leaf._use_count() == 1


def averages(net, mean):
    for p, q in zip(net.parameters(), mean.parameters(), strict=True):
        q.data = 0.9 * q + 0.1 * p


def averages_by_copy(net, mean):
    for p, q in zip(net.parameters(), mean.parameters(), strict=True):
        q.data.copy_(q * 0.9 + p * 0.1)


def pruned(net, mean):
    for p in net.parameters():
        p.data = p * (p.abs() > 0.1)


def clipped(net, mean):
    for p in net.parameters():
        p.data.clamp_(-0.1, 0.1)


def by_hand(net, mean):
    for p in net.parameters():
        p.data -= 0.1 * p.grad
        p.data.mul_(0.99)


def without_grad(net, mean):
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(0.99).sub_(p.grad)


def initialised(net, mean):
    net[0].weight.data.normal_(0, 0.1)
    nn.init.zeros_(net[0].bias)


@pytest.mark.parametrize("write", [copied, given])
def test_another_leaf_where_one_was_that_had_been_written(write):
    source = nn.Parameter(torch.ones(3))

    def program():
        gone, data = nn.Parameter(torch.zeros(3)), torch.zeros(3)
        write(gone, source * 2)
        was = id(gone)
        del gone
        leaf = until_used_again(lambda: nn.Parameter(data), id, was)
        (leaf * 2).sum().backward()

    assert warned(program) == []


def test_the_other_output_of_the_node_whose_one_was_written():
    def program(which):
        results = torch.var_mean(torch.randn(3, 3, requires_grad=True) * 1, 0)
        with torch.no_grad():
            results[0].mul_(3)
        (results[which] * 2).sum().backward()

    assert warned(lambda: program(1)) == []
    assert warned(lambda: program(0)) == ["NC208"]


@pytest.mark.parametrize("another", [torch.exp, torch.sin], ids=["the same operator", "another operator"])
def test_a_node_of_another_thread_that_has_the_same_number(another):
    """Each thread counts its own (torch 2.13)."""
    made = {}

    def compute(name, operator):
        made[name] = operator(torch.ones(3, requires_grad=True))

    def program():
        for name, operator in (("written", torch.exp), ("other", another)):
            thread = threading.Thread(target=compute, args=(name, operator))
            thread.start()
            thread.join()
        numbers = {one.grad_fn._sequence_nr() for one in made.values()}
        assert len(numbers) == 1
        with torch.no_grad():
            made["written"].mul_(2)
        (made["other"] * 2).sum().backward()

    assert warned(program) == []


def test_the_leaf_that_was_written_is_told_of_though_it_was_swapped():
    def program():
        leaf, other, source = (nn.Parameter(torch.ones(3)) for _ in range(3))
        leaf.data.copy_(source * 2)
        torch.utils.swap_tensors(leaf, other)
        (leaf * 2).sum().backward()
        (other * 2).sum().backward()

    assert warned(program) == ["NC208"]


@pytest.mark.parametrize(
    "after_step", [averages, averages_by_copy, pruned, clipped, by_hand, without_grad, initialised]
)
def test_weights_may_be_written_between_steps(after_step):
    net, mean = (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)),
    )

    def train():
        for _ in range(3):
            net.zero_grad()
            net(torch.ones(2, 3)).square().sum().backward()
            after_step(net, mean)

    assert warned(train) == []


def test_nothing_of_the_program_is_kept_alive():
    import weakref

    with noclobber.watch():
        x = torch.ones(3, requires_grad=True)
        h = x * 2
        h.data.mul_(2)
        with torch.no_grad():
            h.mul_(2)
        gone = weakref.ref(h.untyped_storage())
        del h
        assert gone() is None


OUTSIDE = {
    "under no_grad": ("y = x.exp()\nwith torch.no_grad():\n    y.mul_(2)", True),
    "through data": ("y = x.exp()\ny.data.mul_(2)", True),
    "through detach": ("y = x.exp()\ny.detach().mul_(2)", True),
    "in the graph": ("y = x.exp()\ny.mul_(2)", False),
    "of a leaf": ("w = torch.ones(3, requires_grad=True)\ny = x * w\nwith torch.no_grad():\n    w.mul_(2)", False),
    "of a leaf through data": (
        "w = torch.ones(3, requires_grad=True)\ny = x * w\nw.data[torch.tensor([0])] = 2.0",
        False,
    ),
    "of a buffer": ("w = torch.ones(3)\ny = x * w\nwith torch.no_grad():\n    w.mul_(2)", False),
}


@pytest.mark.parametrize(("program", "untracked"), OUTSIDE.values(), ids=OUTSIDE)
def test_a_write_says_whether_autograd_was_kept_from_seeing_it(program, untracked):
    """Then nobody but its author knows whether it is to be part of the gradient: no change is shown for it."""
    names = {"torch": torch, "x": torch.ones(3, requires_grad=True)}
    with warnings.catch_warnings(), noclobber.watch(contents=True) as seen, contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore")
        exec(program + "\ny.sum().backward()", names)
    (finding,) = (one for one in seen.findings if one.code in ("NC101", "NC201"))
    assert [one.untracked for one in finding.writes] == [untracked]
    if untracked:
        assert not any(one.edits for one in finding.suggestions)


def beside_a_thread(between):
    """A program that takes `.data`, lets another thread do something, and then writes and calls backward."""

    def program():
        h = torch.linspace(-1, 1, 4, requires_grad=True) * 2
        data = h.data
        thread = threading.Thread(target=between)
        thread.start()
        thread.join()
        data.mul_(2)
        (h * 3).sum().backward()

    return program


def backwards(times):
    for _ in range(times):
        torch.ones(2, requires_grad=True).exp().sum().backward()


def reads_of_data(times):
    for one in [torch.ones(2, requires_grad=True).exp() for _ in range(times)]:
        one.data.size()


@pytest.mark.parametrize("between", [lambda: None, lambda: backwards(5), lambda: reads_of_data(20)])
def test_what_another_thread_does_hides_no_write_through_data(between):
    assert warned(beside_a_thread(between)) == ["NC208"]


@pytest.mark.parametrize("others", range(8))
def test_of_several_tensors_whose_data_was_read_each_is_known(others):
    def program():
        computed = [torch.linspace(-1, 1, 4, requires_grad=True) * 2 for _ in range(others + 1)]
        shown = [h.data for h in computed]
        shown[0].mul_(2)
        (computed[0] * 3).sum().backward()

    assert warned(program) == ["NC208"]


@pytest.mark.parametrize("by", ["gone", "alive"])
def test_an_alias_is_forgotten_with_the_tensor_that_it_was_taken_of(by):
    h = torch.ones(3, requires_grad=True) * 2
    with noclobber.watch():
        data = h.data
        backwards(3)
        assert len(CONTEXT.untracked.taken) == 1
        if by == "gone":
            del h
        backwards(1)
        assert len(CONTEXT.untracked.taken) == (by == "alive")
    assert data.sum() == 6


VIEWS = {
    "view": lambda h: h.view(2, 2),
    "of a view": lambda h: h.view(2, 2).t(),
    "slice": lambda h: h[1:],
}


def aside(h):
    with torch.no_grad():
        h.mul_(0.5)


ALIASES = [lambda h: h.data.mul_(0.5), lambda h: h.detach().mul_(0.5), aside]
PAIRS = [*itertools.product(VIEWS.values(), ALIASES), (lambda h: h.chunk(2)[1], ALIASES[0])]


@pytest.mark.parametrize(("view", "write"), PAIRS)
def test_what_is_written_through_a_view_or_below_one_is_known_to_all_who_read_it(view, write):
    def of(written, read):
        def program():
            h = torch.linspace(-1, 1, 4, requires_grad=True) * 2
            part = view(h)
            write(part if written == "part" else h)
            ((part if read == "part" else h) * 3).sum().backward()

        return program

    assert warned(of("part", "part")) == warned(of("part", "whole")) == warned(of("whole", "part")) == ["NC208"]


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_what_nobody_reads_of_a_written_view_is_quiet(view):
    def read_before():
        h = torch.linspace(-1, 1, 4, requires_grad=True) * 2
        part = view(h)
        y = part + 3
        part.data.mul_(0.5)
        y.sum().backward()

    def another_part():
        h = torch.linspace(-1, 1, 4, requires_grad=True) * 2
        one, other = h[:1], view(h[2:].repeat(2))
        h[1:].data.mul_(0.5)
        other.detach().mul_(0.5)
        (one * 3).sum().backward()

    assert warned(read_before) == warned(another_part) == []


def test_what_a_checkpointed_region_keeps_of_its_second_run_is_not_taken_for_an_alias_of_the_programs():
    taken = []
    x = torch.ones(3, requires_grad=True)
    with noclobber.watch():
        y = checkpoint(lambda h: (h * 2).sin().cos(), x, use_reentrant=False)
        y.register_hook(lambda _: taken.append(len(CONTEXT.untracked.taken)))
        x.register_hook(lambda _: taken.append(len(CONTEXT.untracked.taken)))  # the second run has ended by then
        y.sum().backward()
    assert taken == [0, 0]


def test_backward_calls_of_other_threads_make_no_write_forgotten_too_early():
    def program():
        h = torch.linspace(-1, 1, 4, requires_grad=True) * 2
        with torch.no_grad():
            h.mul_(2)
        thread = threading.Thread(target=backwards, args=(12,))
        thread.start()
        thread.join()
        (h * 3).sum().backward()

    assert warned(program) == ["NC208"]


def test_a_write_is_forgotten_with_its_graph():
    with noclobber.watch():
        h = torch.linspace(-1, 1, 4, requires_grad=True) * 2
        with torch.no_grad():
            h.mul_(2)
        backwards(100)
        assert len(CONTEXT.untracked._waiting) == 1
        del h
        backwards(1)
        assert not CONTEXT.untracked._waiting


def test_a_write_to_a_leaf_is_forgotten_where_no_backward_meets_it():
    with noclobber.watch():
        leaf, source = (torch.ones(4, requires_grad=True) for _ in range(2))
        leaf.data.copy_(source * 2)
        backwards(5)
        assert len(CONTEXT.untracked._waiting) == 1
        backwards(100)
        assert not CONTEXT.untracked._waiting


def test_a_write_that_other_backward_calls_come_after():
    """As those of a critic are, which sees what is generated several times first."""

    def program():
        h = torch.linspace(-1, 1, 4, requires_grad=True) * 2
        data = h.data
        backwards(9)
        data.clamp_(-1, 1)
        backwards(9)
        (h * 3).sum().backward()

    assert warned(program) == ["NC208"]
