"""NC207 to NC210 on hand-written events: writes that are not declared or not recorded, and what they leave behind."""

from __future__ import annotations

from typing import Literal

import pytest

from noclobber.model.reports.finding import Finding
from noclobber.model.seen.events import Read, Tensor
from noclobber.model.seen.silent import LostHook, Overwritten, Undeclared, Untracked
from noclobber.rules import explain

from .places import Program, clobber, helped, save, told, write
from .test_silent_rules import the

FUNCTION = Program("""
    class Triple(Function):
        @staticmethod
        def forward(ctx, t):
            t.mul_(3)
            return t

        @staticmethod
        def backward(ctx, grad):
            return 3 * grad

    y = Triple.apply(h)
    loss.backward()
""")


def test_a_function_does_not_mark_its_input() -> None:
    change = write("aten::mul_", FUNCTION.at("t.mul_(3)"), tensor=Tensor((4,), name="t"))
    finding = the(Undeclared("Triple", change, FUNCTION.at("Triple.apply(h)")))
    assert (finding.code, finding.rule, finding.severity) == ("NC207", "undeclared-write", "error")
    assert finding.message == "the Function `Triple` writes its input and does not say so: later gradients leave it out"
    assert told(finding, "write").text == "`mul_` writes the input here (version 0 -> 1)"
    assert told(finding, "create").text == "`Triple` is applied here"
    assert "as if `Triple` had not run" in finding.notes[0]
    assert FUNCTION.mended(finding)[0].splitlines()[3:5] == ["        ctx.mark_dirty(t)", "        t.mul_(3)"]


def test_a_function_whose_write_has_no_line_is_blamed_where_it_is_applied() -> None:
    finding = the(Undeclared("Triple", write("", None), FUNCTION.at("Triple.apply(h)")))
    assert told(finding, "create").primary


def test_a_function_that_returns_something_else_gets_words_only() -> None:
    program = Program(FUNCTION.text.replace("return t\n", "return other\n"))
    finding = the(Undeclared("Triple", write("aten::mul_", program.at("t.mul_(3)")), None))
    assert "`ctx.mark_dirty`" in helped(finding)


def test_an_operator_whose_schema_hides_the_write() -> None:
    program = Program("y = h.exp()\nscale(h)\n")
    change = write("mylib::scale", program.at("scale(h)"), via="undeclared", version_after=0)
    finding = the(clobber(save("ExpBackward0", "result", program.at("h.exp()")), change, raised=False))
    assert finding.code == "NC207"
    assert finding.message == "`mylib::scale` writes a tensor that backward still needs, and its schema does not say so"
    assert "the schema of `mylib::scale` says that it writes nothing" in finding.notes[0]
    assert "mutates_args" in helped(finding)


UNTRACKED = Program("""
    with torch.no_grad():
        h.mul_(keep)
    g.data *= 2
    with torch.no_grad():
        h.copy_(u)
        h.add_(1)
    conv.weight.data = made
    w.data -= lr * d
    loss.backward()
""")


def untracked(
    piece: str,
    op: str,
    how: Literal["no_grad", "inference_mode", "data", "assigned"],
    tensor: Tensor,
    source: Tensor | None = None,
) -> Finding:
    read = Read("", UNTRACKED.at("loss.backward()"))
    finding = the(Untracked(write(op, UNTRACKED.at(piece), version_after=0), how, tensor, read, source))
    assert (finding.code, finding.rule, finding.severity) == ("NC208", "untracked-write", "warning")
    assert told(finding, "write").primary
    return finding


def test_a_mask_under_no_grad() -> None:
    finding = untracked("h.mul_(keep)", "aten::mul_", "no_grad", Tensor((4,), name="h"))
    assert finding.message == "`h` is changed under `no_grad`: the gradient leaves that out"
    assert told(finding, "write").text == "`mul_` changes `h` here"
    assert told(finding, "read").text == "backward goes through it here"
    assert "without the derivative of `mul_`" in finding.notes[0]
    assert "`h = h + (new - h).detach()`" in helped(finding)


def test_a_mask_under_inference_mode() -> None:
    finding = untracked("h.mul_(keep)", "aten::mul_", "inference_mode", Tensor((4,), name="h"))
    assert finding.message == "`h` is changed under `inference_mode`: the gradient leaves that out"
    assert finding.notes[0].startswith("under `inference_mode` nothing is recorded")


def test_a_change_through_data() -> None:
    finding = untracked("g.data *= 2", "aten::mul_", "data", Tensor((4,), name="g"))
    assert finding.message == "`g` is changed through `.data`: the gradient leaves that out"


@pytest.mark.parametrize(
    ("line", "piece", "op", "said"),
    [
        ("h[:, 0] = h[:, 0] * 2", "h[:, 0]", "aten::copy_", "`h[:, 0]`"),
        ("h.view(-1).data[0] *= 2", "h.view(-1).data[0]", "aten::mul_", "`h.view(-1).data[0]`"),
        ("torch.nn.init.normal_(h[1:])", "", "aten::normal_", "`h[1:]`"),
        ("F.relu(h[1:], inplace=True)", "", "aten::relu_", "`h[1:]`"),
        ("torch.mul(h.T, 2, out=h.T)", "", "aten::mul", "`h.T`"),
        ("torch._foreach_mul_([h.T, h[0]], 2)", "", "aten::_foreach_mul_", "a tensor of shape (2, 2)"),
        ("self.relu(h.T)", "", "aten::relu_", "a tensor of shape (2, 2)"),
        ("self.averages.update_(h.T)", "", "aten::mul_", "a tensor of shape (2, 2)"),
        ("h.view(-1)[: len(h) * 2 - 1].unflatten(0, (2, 2)).mul_(2)", "", "aten::mul_", "a tensor of shape (2, 2)"),
    ],
)
def test_what_has_no_name_is_told_as_the_line_has_it(line: str, piece: str, op: str, said: str) -> None:
    program = Program(f"""
    def forward(self, h):
        with torch.no_grad():
            {line}
        h.sum().backward()
""")
    read = Read("", program.at("h.sum().backward()"))
    finding = the(Untracked(write(op, program.at(piece or line), version_after=0), "no_grad", Tensor((2, 2)), read))
    assert finding.message == f"{said} is changed under `no_grad`: the gradient leaves that out"


def test_values_of_another_tensor_are_cut_off() -> None:
    finding = untracked("h.copy_(u)", "aten::copy_", "no_grad", Tensor((4,), name="h"), Tensor((4,), name="u"))
    assert finding.message == "`h` gets values from the graph under `no_grad`: no gradient flows back to them"
    assert told(finding, "write").text == "`copy_` cuts `u` off its graph here"
    assert "assign the new tensor to the name" in helped(finding)


def test_a_generated_weight_is_assigned() -> None:
    weight, made = Tensor((4,), name="conv.weight", kind="parameter"), Tensor((4,), name="made")
    finding = untracked("conv.weight.data", "data=", "assigned", weight, made)
    assert finding.message.startswith("the parameter `conv.weight` gets values from the graph by `t.data = u`")
    assert told(finding, "write").text == "the assignment to `.data` cuts `made` off its graph here"
    assert "`torch.func.functional_call(" in helped(finding)


def test_an_inner_step_on_a_leaf() -> None:
    finding = untracked("w.data -= lr * d", "aten::sub_", "data", Tensor((4,), name="w"), Tensor((4,)))
    assert told(finding, "write").text == "`sub_` cuts the value written off its graph here"


@pytest.mark.parametrize(
    "value",
    [
        "h.data + noise",
        "noise + h",
        "h.detach() - noise",
        "h.data - 2",
        "h.data + 0.1 * torch.randn_like(h)",
        "h.data + h.data.sign()",
        "h.data + (h.round() - h).detach()",
        "h.data - (h - h.round()).data",
    ],
)
def test_a_constant_shift_leaves_the_gradient_as_it_is(value: str) -> None:
    program = Program(f"h.data = {value}\nloss.backward()\n")
    change = write("data=", program.at("h.data"), via="set_data", version_after=0)
    read = Read("", program.at("loss.backward()"))
    assert explain(Untracked(change, "assigned", Tensor((4,), name="h"), read)) is None
    assert explain(Untracked(change, "assigned", Tensor((4,), name="h"), read, Tensor((4,)))) is not None


@pytest.mark.parametrize(
    "value",
    [
        "h.data * 2",
        "noise - h.data",
        "other.data + noise",
        "h.round()",
        "h.data - h.data.mean()",
        "h.data.mean() + h.data",
        "h.data + h.data",
        "h.data + 0.1 * (mean - h.data)",
    ],
)
def test_any_other_value_does_not(value: str) -> None:
    program = Program(f"h.data = {value}\nloss.backward()\n")
    change = write("data=", program.at("h.data"), via="set_data", version_after=0)
    finding = the(Untracked(change, "assigned", Tensor((4,), name="h"), Read("", program.at("loss.backward()"))))
    assert finding.message == "`h` is changed by `t.data = u`: the gradient leaves that out"


INPUT = Program("""
    feat = trunk(x)
    feat.register_hook(record)
    score = head(F.relu(feat, inplace=True))
    torch.autograd.grad(score, feat)
""")


def test_a_gradient_of_an_overwritten_tensor() -> None:
    change = write("aten::relu_", INPUT.at("F.relu(feat, inplace=True)"))
    read = Read("", INPUT.at("torch.autograd.grad(score, feat)"), "grad")
    finding = the(Overwritten(Tensor((4,), name="feat"), change, read))
    assert (finding.code, finding.rule, finding.severity) == ("NC209", "overwritten-input", "warning")
    assert finding.message == (
        "a gradient is taken with respect to `feat` after an in-place write: it belongs to the new value"
    )
    assert [(one.role, one.text) for one in finding.labels] == [
        ("write", "`relu_` overwrites it here (version 0 -> 1)"),
        ("read", "`autograd.grad` asks for its gradient here"),
    ]
    assert "let `relu` write a new tensor" in helped(finding)
    assert any("F.relu(feat)" in text for text in INPUT.mended(finding))


def test_a_gradient_of_a_tensor_that_a_module_overwrites() -> None:
    program = Program("score = net(image)\ntorch.autograd.grad(score, kept)\n")
    read = Read("", program.at("torch.autograd.grad(score, kept)"), "grad")
    finding = the(Overwritten(Tensor((4,)), write("aten::relu_", program.at("net(image)")), read))
    assert "build this module with `inplace=False`" in helped(finding)


@pytest.mark.parametrize("name", ["feat", None])
def test_a_hook_on_a_view_is_lost(name: str | None) -> None:
    change = write("aten::relu_", INPUT.at("F.relu(feat, inplace=True)"))
    read, hook = Read("", INPUT.at("torch.autograd.grad(score, feat)")), INPUT.at("feat.register_hook(record)")
    finding = the(LostHook(Tensor((4,), name=name), hook, change, read))
    assert (finding.code, finding.rule, finding.severity) == ("NC210", "lost-hook", "warning")
    assert finding.message.endswith("drops the hooks registered on it")
    assert told(finding, "create").span.line == 2
    assert told(finding, "write").text == "`relu_` drops the hook here (version 0 -> 1)"
    assert told(finding, "read").text == "backward skips the hook here"
    assert "register the hook after the write" in helped(finding)
