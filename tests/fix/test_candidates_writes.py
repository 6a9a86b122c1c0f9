"""Candidates for writes between save and read: out of place, without flags, into clones, to new tensors, into lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from noclobber.mend.cures import candidates
from noclobber.model.reports.finding import Label
from noclobber.model.seen.clobber import Clobber
from tests.fix.mending import PATH, changes, finding, mended, span


@pytest.mark.parametrize(
    ("write", "right"),
    [
        ("h += y", "h = h + y"),
        ("h += a * b", "h = h + a * b"),
        ("h -= a - b", "h = h - (a - b)"),
        ("h *= a + b", "h = h * (a + b)"),
        ("self.h /= 2", "self.h = self.h / 2"),
        ("h.mul_(k)", "h = h * k"),
        ("h.clamp_(min=0)", "h = h.clamp(min=0)"),
        ("h.mul_(k).add_(y)", "h = h.mul(k).add(y)"),
        ("torch.relu_(h)", "h = torch.relu(h)"),
        ("F.relu(h, inplace=True)", "h = F.relu(h)"),
        ("F.relu(h, True)", "h = F.relu(h)"),
        ("F.dropout(h, 0.5, inplace=True)", "h = F.dropout(h, 0.5)"),
        ("torch.mul(h, 2, out=h)", "h = torch.mul(h, 2)"),
        ("h.copy_(torch.tanh(x))", "h = torch.tanh(x)"),
        ("h.copy_(new(x))", "h = torch.empty_like(h).copy_(new(x))"),
        ("h.copy_(torch.randn(3))", "h = torch.empty_like(h).copy_(torch.randn(3))"),
        ("h.copy_(torch.randn(3, device=d))", "h = torch.randn(3, device=d)"),
        ("h.copy_(self.rows[0])", "h = self.rows[0].clone()"),  # a later write would go into the rows
        ("self.h.copy_(x)", "self.h = x.clone()"),
        ("h[:] = x", "h = x.clone()"),
        ("h.copy_(x.view(3))", "h = torch.empty_like(h).copy_(x.view(3))"),
        ("self.eps.normal_()", "self.eps = torch.randn_like(self.eps)"),
        ("h.zero_()", "h = torch.zeros_like(h)"),
        ("h.fill_(2)", "h = torch.full_like(h, 2)"),
    ],
)
def test_a_statement_is_written_out_of_place(write: str, right: str) -> None:
    """The first candidate binds a new tensor to the name."""
    source = f"def f(self, h, x):\n    keep = h.exp()\n    {write}  # why\n    return h\n"
    assert changes("NC101", source, write=write)[0] == f"{right}  # why"


@pytest.mark.parametrize(
    ("made", "right"),
    [
        ("fresh = torch.randn(3)", "h = torch.empty_like(h).copy_(fresh)"),
        ("a, fresh = noise(3), noise(3)", "h = torch.empty_like(h).copy_(fresh)"),
        ("a = torch.randn(3)\n    fresh = a.outer(a)", "h = torch.empty_like(h).copy_(fresh)"),
        ("fresh = torch.randn(3, device=x.device)", "h = fresh.clone()"),
        ("fresh = x.exp()\n    fresh = fresh + 1", "h = fresh.clone()"),
    ],
)
def test_what_was_made_on_no_device_in_particular_is_copied(made: str, right: str) -> None:
    """A run on a CPU does not show that `copy_` brings it to the device of what is filled."""
    source = f"def f(h, x):\n    keep = h.exp()\n    {made}\n    h.copy_(fresh)\n    return h\n"
    assert changes("NC101", source, write="h.copy_(fresh)")[0] == right


@pytest.mark.parametrize(
    ("line", "write", "right"),
    [
        ("return h.add_(1)", "h.add_(1)", "return h.add(1)"),
        ("y = g(h.relu_())", "h.relu_()", "y = g(h.relu())"),
        ("y = F.relu(h, inplace=True)", "F.relu(h, inplace=True)", "y = F.relu(h)"),
        ("y = torch.add(h, 1, out=h)", "torch.add(h, 1, out=h)", "y = h = torch.add(h, 1)"),
    ],
)
def test_a_write_whose_value_is_used_keeps_its_place(line: str, write: str, right: str) -> None:
    assert right.removeprefix("y = h") in changes("NC101", f"def f(h):\n    {line}\n", write=write)[0]


def test_an_index_is_written_into_a_clone_made_before_the_first_write_of_the_batch() -> None:
    source = """
        def f(x):
            h = x.sigmoid()
            h[:, 0] = 1.0
            h[:, 1] = 2.0
            return h
    """
    first = mended("NC101", source, write="h[:, 1]", save="x.sigmoid()", field="result", op="aten::fill_")[0]
    assert first.split("\n")[1:4] == ["    h = x.sigmoid()", "    h = h.clone()", "    h[:, 0] = 1.0"]


def test_a_fill_by_a_comparison_with_itself_makes_a_new_tensor_first() -> None:
    source = "h = x.tanh()\nh[h < 0] = 0\n"
    first = mended("NC101", source, write="h[h < 0]", save="x.tanh()", field="result", op="aten::index_put_")[0]
    assert first == "h = x.tanh()\nh = h.masked_fill(h < 0, 0)\n"


def test_a_clone_stands_before_the_loop_where_the_save_does() -> None:
    source = """
        h = x.sigmoid()
        for i in range(3):
            h[i] = 0.0
    """
    first = mended("NC101", source, write="h[i]", save="x.sigmoid()", field="result")[0]
    assert first.split("\n")[1:3] == ["h = h.clone()", "for i in range(3):"]


def test_a_clone_before_a_write_on_a_shared_line_shares_the_line() -> None:
    found = changes("NC101", "if late: h[0] = 1\n", write="h[0]")
    assert "if late: h = h.clone(); h[0] = 1" in found


@pytest.mark.parametrize(
    ("save", "field", "right"),
    [
        ("h * g", "self", "y = h.clone() * g"),
        ("h * g", "other", "y = h * g.clone()"),
        ("f(h, g)", "input", "y = f(h.clone(), g)"),
        ("(h + 1) * g", "self", "y = (h + 1).clone() * g"),
        ("torch.tanh(h)", "result", "y = torch.tanh(h).clone()"),
    ],
)
def test_autograd_is_given_a_clone_to_keep(save: str, field: str, right: str) -> None:
    assert right in changes("NC101", f"y = {save}\nk[0] = 1\n", write="k[0]", save=save, field=field)


def test_a_weight_of_a_module_is_no_argument_of_its_call() -> None:
    """The last way out copies the weights of the module, through which gradients still flow."""
    found = changes(
        "NC101", "y = net(x)\nw.mul_(2)\n", write="w.mul_(2)", save="net(x)", kind="parameter", name="net.w"
    )
    assert not any("x.clone()" in one for one in found)
    copies = "copies = {name: one.clone() for name, one in net.named_parameters()}"
    assert found[-1] == f"{copies}\ny = torch.func.functional_call(net, copies, (x,))"


def test_where_a_part_of_a_module_saves_its_buffer_the_calls_of_the_whole_are_tried_on_copies() -> None:
    source = """
        def forward(self, x):
            return self.bn(self.lin(x))

        clean = net(x)
        noisy = net(x + 1)
    """
    found = changes(
        "NC203", source, write="net(x + 1)", save="self.bn(self.lin(x))", kind="buffer", name="net.bn.running_mean"
    )
    assert any("clean = torch.func.functional_call(net, copies, (x,))" in one for one in found)


NET = """
    class Net(nn.Module):
        def __init__(self):
            self.first = nn.ReLU(inplace=True)
            self.act = nn.LeakyReLU(0.2, inplace=True)
            self.drop = nn.Dropout(0.3, True)

        def forward(self, x):
            return self.{name}(x)
"""


@pytest.mark.parametrize(
    ("name", "op", "right"),
    [
        ("first", "relu_", "self.first = nn.ReLU()"),
        ("act", "leaky_relu_", "self.act = nn.LeakyReLU(0.2)"),
        ("drop", "dropout_", "self.drop = nn.Dropout(0.3)"),
    ],
)
def test_a_module_loses_its_flag_where_it_is_built(name: str, op: str, right: str) -> None:
    assert changes("NC101", NET.format(name=name), write=f"self.{name}(x)", op=f"aten::{op}")[0] == right


def test_the_modules_of_a_library_are_switched_off_once_the_net_is_there() -> None:
    found = mended("NC101", "net = models.resnet18()\ny = net(x)\n", write="net(x)", op="aten::relu_")
    assert any('for module in net.modules():\n    if getattr(module, "inplace", False):' in one for one in found)


def test_equal_edits_are_one_candidate_and_there_are_no_more_than_eight() -> None:
    found = mended(
        "NC101", "y = h * g\nfor i in r:\n    h[i] += g[i]\n", write="h[i] += g[i]", save="h * g", field="self"
    )
    assert len(set(found)) == len(found) <= 8


def test_text_that_is_no_python_gives_no_candidates() -> None:
    assert mended("NC101", "h += (\n", write="h += (") == []


LIST = """
hs = [w.exp() for w in ws]
for i in (2, 1):
    hs[i - 1] += f(hs[i])
"""


def test_an_element_of_a_list_is_written_out_of_place_first() -> None:
    found = changes("NC101", LIST, write="hs[i - 1] += f(hs[i])", save="w.exp()", field="result")
    assert found[0] == "hs[i - 1] = hs[i - 1] + f(hs[i])"


def test_a_row_of_a_tensor_would_be_written_in_place_again() -> None:
    found = changes("NC101", LIST, write="hs[i - 1] += f(hs[i])", save="w.exp()", field="result", op="aten::copy_")
    assert found[0] != "hs[i - 1] = hs[i - 1] + f(hs[i])"


def test_beside_the_bytes_that_are_read_a_clone_of_these_alone_comes_first() -> None:
    source = "self.cache[pos] = k\nkeys = self.cache[:pos]\nscores = q @ keys\n"
    found = changes("NC102", source, write="self.cache[pos]", save="q @ keys", field="mat2", name="keys")
    assert found[0] == "scores = q @ keys.clone()"


HOOK = """
    def prune(module, given, out):
        out *= mask

    net[1].register_forward_hook(prune)
    loss = net(x).sum()
"""


def test_a_hook_of_a_module_returns_what_it_would_have_written() -> None:
    """A new tensor or a clone under the name of its argument would reach nobody, and no mask of ones shows it."""
    found = changes("NC101", HOOK, write="out *= mask", save="net(x)")
    assert found[0] == "return out * mask"
    assert not any("out = " in one for one in found)


@pytest.mark.parametrize("write", ["h *= scale", "h.mul_(scale)", "h.copy_(scale)", "h[:] = scale", "h[0] = scale"])
def test_what_only_the_caller_reads_is_not_bound_to_a_name_of_the_function(write: str) -> None:
    source = f"""
        def decay(h, scale):
            {write}

        h = net(x)
        decay(h, 2)
        loss = h.sum()
    """
    found = changes("NC101", source, write=write, save="net(x)")
    assert found
    assert not any(one.startswith(("h = h", "h = scale", "h = torch")) for one in found)


@pytest.mark.parametrize(
    ("write", "right"),
    [("h[0] *= 2", "h[0] = h[0] * 2"), ('h["a"] += 1', 'h["a"] = h["a"] + 1'), ("h[0].mul_(2)", "h[0] = h[0].mul(2)")],
)
def test_an_item_of_an_argument_reaches_the_caller(write: str, right: str) -> None:
    """The argument may be a list or a dict."""
    source = f"""
        def decay(h):
            {write}

        h = [net(x)]
        decay(h)
        loss = h[0].sum()
    """
    assert right in changes("NC101", source, write=write, save="net(x)")


def test_what_a_function_binds_or_returns_may_be_a_new_tensor() -> None:
    source = """
        def decay(h, scale):
            y = h.mul_(scale)
            return y

        loss = decay(net(x), 2).sum()
    """
    assert "y = h.mul(scale)" in changes("NC101", source, write="h.mul_(scale)", save="net(x)")


@pytest.mark.parametrize(
    "taken",
    [
        "state = self.states[name]",
        "state = self.state",
        "for state in self.states:",
        "self.state = state = net(x) * 2",
        "state = net(x) * 2; self.kept.append(state)",
    ],
)
def test_a_write_that_an_object_goes_on_with_is_not_bound_to_a_local_name(taken: str) -> None:
    """`state = torch.zeros_like(state)` would reach nobody: the state of the object would keep its old numbers."""
    source = f"""
        def reset(self, name):
            {taken}
                state.detach_().zero_()
    """
    if not taken.startswith("for"):
        source = source.replace("    state.detach_", "state.detach_")
    found = changes("NC101", source, write="state.detach_().zero_()", save=taken)
    assert not any("state = torch" in one or "state = state" in one for one in found)


def test_a_local_tensor_that_is_read_again_may_be_a_new_one() -> None:
    source = """
        def f(x):
            h = net(x) * 2
            keep = h.exp()
            h.zero_()
            return h + keep
    """
    assert "h = torch.zeros_like(h)" in changes("NC101", source, write="h.zero_()", save="h.exp()")


def test_what_the_policy_of_a_checkpoint_keeps_is_written_out_of_place() -> None:
    """The record of the save says what kept it, and not the words of the finding."""
    source = "def block(x):\n    h = x @ w\n    h.add_(1)\n    return h.tanh()\n"
    found = finding("NC205", source, write="h.add_(1)", save="x @ w", unchecked="policy")
    replacements = [edit.replacement for one in candidates(found, lambda _: source) for edit in one.edits]
    assert "h = h + 1" in replacements


def test_a_write_in_one_file_and_a_backward_in_another_are_not_brought_together() -> None:
    files = {PATH: "h += 1\n", "/nowhere/other.py": "loss.backward()\n"}
    found = finding("NC101", files[PATH], write="h += 1")
    read = Label("read", span(files["/nowhere/other.py"], "loss.backward()", "/nowhere/other.py"), "")
    titles = [one.title for one in candidates(replace(found, labels=(*found.labels, read)), files.__getitem__)]
    assert titles[0] == "write out of place"
    assert "make this change after the backward" not in titles


def test_a_view_is_not_written_out_of_place_where_what_it_shows_is_read_later() -> None:
    """The new tensor would not reach it."""
    source = """
        def f(x):
            keep = x.exp()
            head = x.narrow(0, 0, 2)
            head += 1
            return keep * x
    """
    found = changes("NC101", source, write="head += 1", save="x.exp()")
    assert found
    assert not any("head = " in one for one in found)


def test_the_states_that_a_cell_is_given_in_a_tuple_are_cloned_for_it() -> None:
    source = """
        for t in range(5):
            h[t + 1], c[t + 1] = cell(x[t], (h[t], c[t]))
    """
    found = mended("NC102", source, write="h[t + 1]", save="cell(x[t], (h[t], c[t]))")
    assert any("cell(x[t].clone(), (h[t].clone(), c[t].clone()))" in one for one in found)


@pytest.mark.parametrize("is_leaf", [False, True])
def test_a_leaf_that_is_written_through_data_stays_a_leaf(is_leaf: bool) -> None:
    """A new tensor under its name would be in the graph: no later backward fills its `.grad`."""
    source = "def f(x, w):\n    keep = x @ w\n    w.data -= 0.1 * x\n    return keep @ w\n"
    told = finding("NC201", source, op="aten::sub_", save="x @ w", write="w.data -= 0.1 * x")
    assert isinstance(told.event, Clobber)
    told = told.about(replace(told.event, save=replace(told.event.save, is_leaf=is_leaf)))
    found = [edit.replacement for one in candidates(told, lambda _: source) for edit in one.edits]
    assert found
    assert any(one.startswith("w = ") for one in found) == (not is_leaf)
